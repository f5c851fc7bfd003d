"""The console where stderr is closed, as by `2>&-`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.telemetry import console as module
from paceline.telemetry.console import console, show_cursor
from paceline.telemetry.phases import Phases
from paceline.telemetry.progress import Progress


@pytest.fixture
def close_stderr(monkeypatch):
    """A function, because pytest sets `sys.stderr` after fixtures have run."""
    console.cache_clear()
    yield lambda: monkeypatch.setattr(sys, "stderr", None)
    console.cache_clear()


def test_without_stderr_there_is_no_terminal(close_stderr):
    close_stderr()
    assert not console().is_terminal
    show_cursor()
    module.print_line("nobody reads this")
    with module.status("loading"):
        pass


def run(code: str, *closed: int) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process in which some of files 0 to 2 are closed."""
    command = " ".join(['exec "$0" -c "$1"', *(f"{number}>&-" for number in closed)])
    return subprocess.run(["sh", "-c", command, sys.executable, code], capture_output=True, text=True, timeout=60)


PRINTS = """
import os, sys
from paceline.telemetry.console import stdout_to_stderr
with stdout_to_stderr():
    print("python")
    os.write(1, b"compiled")
print("result")
"""


@pytest.mark.parametrize(("closed", "out"), [((), "result\n"), ((2,), "result\n"), ((1,), "")])
def test_prints_of_simulators_stay_out_of_results_where_stderr_is_closed(closed, out):
    done = run(PRINTS.replace('os.write(1, b"compiled")', "") if 1 in closed else PRINTS, *closed)
    assert (done.returncode, done.stdout) == (0, out)


@pytest.mark.parametrize("closed", [(2,), (0, 2), (1, 2)], ids=str)
def test_files_of_a_command_do_not_get_the_numbers_of_closed_streams(closed):
    """A library in C would print into them."""
    code = """
import os, sys
from paceline.cli.main import _open_closed_streams
_open_closed_streams()
with open(os.devnull) as file:
    assert file.fileno() > 2
assert os.get_inheritable(2)
print("error", file=sys.stderr)
print("result")
"""
    done = run(code, *closed)
    assert (done.returncode, done.stdout) == (0, "" if 1 in closed else "result\n")


def test_errors_of_a_command_do_not_go_to_stdout():
    done = run("import sys; sys.argv[1:] = ['nosuch']; from paceline.cli.main import main; main()", 2)
    assert (done.returncode, done.stdout) == (2, "")


def test_the_display_of_a_run_writes_nothing_without_stderr(close_stderr):
    close_stderr()
    with Progress("ddppo on gym:CartPole-v1", Path("runs/x"), Phases(), line_seconds=0.01) as progress:
        progress._write("nobody reads this")


def test_a_process_that_ends_at_a_failure_has_its_exit_code_without_stderr():
    done = run(
        """
from paceline.distributed.failures import RankFailure, end_process
end_process(RankFailure(rank=0, message="hung", code=7))
""",
        2,
    )
    assert (done.returncode, done.stdout) == (7, "")
