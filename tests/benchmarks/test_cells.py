import contextlib
import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import control_speed_cell, navigation_speed
from benchmarks.cells import CellError, Watch, run_cell
from tests.forks import forks


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_result_is_read_from_among_other_lines():
    assert run_cell(python("""print("hello"); print('RESULT {"steps_per_second": 7}'); print("bye")""")) == {
        "steps_per_second": 7
    }


def test_a_failure_says_its_error_first():
    with pytest.raises(CellError, match=r"^status 1: KeyError: 'appo'\n"):
        run_cell(python("{}['appo']"))


def test_time_is_limited_and_the_cell_is_watched_until_then():
    seen: list[int] = []
    with pytest.raises(CellError, match="not finished after 1 seconds"):
        run_cell(python("import time; time.sleep(60)"), timeout_seconds=1, watch=Watch(0.1, seen.append))
    assert seen and set(seen) == {seen[0]} and not psutil.pid_exists(seen[0])


def test_what_a_cell_leaves_running_is_ended():
    left = run_cell(
        python(
            "import json, subprocess, sys\n"
            "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "print('RESULT ' + json.dumps({'pid': left.pid}))"
        )
    )["pid"]
    with contextlib.suppress(psutil.NoSuchProcess):
        assert ended(psutil.Process(left))


def run_one_cell(python: Path) -> None:
    run_cell([str(python)])


def train_for_one_cell(python: Path) -> None:
    sys.executable = str(python)
    sys.argv = ["cell", json.dumps({"arguments": [], "seconds": 1.0, "patience": 60.0})]
    control_speed_cell.main()


def start_one_agent(python: Path) -> None:
    sys.executable = str(python)
    navigation_speed.Cell({}, python.parent / "agent").process.wait()


@pytest.mark.parametrize("start", [run_one_cell, train_for_one_cell, start_one_agent])
def test_what_a_killed_process_has_started_ends_with_it(tmp_path, start):
    python, said = tmp_path / "python", tmp_path / "pid"
    python.write_text(f"#!/bin/sh\necho $$ > {said}\nexec sleep 60\n")
    python.chmod(0o700)
    parent = forks().Process(target=start, args=(python,))
    parent.start()
    try:
        while not (said.exists() and said.read_text()):
            assert parent.is_alive()
            time.sleep(0.01)
        left = psutil.Process(int(said.read_text()))
    finally:
        parent.kill()
        parent.join()
    with contextlib.suppress(psutil.NoSuchProcess):
        assert ended(left)


def ended(process: psutil.Process, seconds: float = 10.0) -> bool:
    """Whether a process ends in this time. A zombie has ended, even if its new parent has not reaped it yet."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
    return False
