"""Processes of a population: restarted within a budget, stopped together, none left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline.cli.options import without_options
from paceline.cli.population import OWN, OWN_FLAGS
from paceline.population import launch
from paceline.population.display import PopulationTable, last_report
from paceline.population.launch import MemberPlan, PopulationProcesses, shares


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch):
    monkeypatch.setattr(launch, "RESTART_SECONDS", 0.0)
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.02)


def plan(folder: Path, name: str, program: str, resumed: str | None = None) -> MemberPlan:
    """A member that is a small Python program. `here` is its folder."""
    (folder / name).mkdir()
    start = f"import os, pathlib, signal, sys, time; here = pathlib.Path({str(folder / name)!r}); "
    checkpoint = "(here / 'checkpoints').mkdir(); (here / 'checkpoints' / 'latest').touch(); "
    return MemberPlan(
        name=name,
        folder=folder / name,
        log=folder / f"{name}.log",
        new=[sys.executable, "-c", start + (checkpoint if resumed is not None else "") + program],
        resumed=[sys.executable, "-c", start + (resumed or program)],
        cores=sorted(os.sched_getaffinity(0))[:1],
        gpus=["7"],
    )


def run(*plans: MemberPlan, max_restarts: int = 3) -> tuple[int, PopulationProcesses]:
    processes = PopulationProcesses(plans, max_restarts)
    return processes.run(lambda: None), processes


def test_a_member_that_dies_continues_from_its_checkpoint(tmp_path):
    killed = plan(tmp_path, "killed", "os.kill(os.getpid(), signal.SIGKILL)", resumed="print('again')")
    code, processes = run(killed, plan(tmp_path, "other", "pass"))
    assert code == 0
    assert [(member.status, member.restarts) for member in processes.members] == [("finished", 1), ("finished", 0)]
    assert killed.log.read_text() == "again\n"


def test_the_others_go_on_without_a_member_that_cannot_live(tmp_path):
    count = "(here / f'{time.time_ns()}').touch(); "
    code, processes = run(
        plan(tmp_path, "failing", count + "sys.exit('no luck')"),
        plan(tmp_path, "wrong", count + "print('bad option'); sys.exit(2)"),
        plan(tmp_path, "fine", "time.sleep(0.5)"),
        max_restarts=2,
    )
    failing, wrong, fine = processes.members
    assert code == 2, "the worst exit code of the members that failed"
    assert [member.status for member in processes.members] == ["failed", "failed", "finished"]
    assert failing.restarts == 2 and len(list(failing.plan.folder.iterdir())) == 3
    assert wrong.restarts == 0, "a restart would not help"
    assert wrong.plan.last_line() == "bad option" and failing.plan.last_line() == "no luck"
    assert fine.plan.last_line() == "it has written nothing"


def test_one_signal_stops_all_members(tmp_path):
    """Members end as `train` does, with exit code 130, and are not restarted."""
    polite = (
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(130)); (here / 'ready').touch(); time.sleep(60); sys.exit(1)"
    )
    plans = [plan(tmp_path, name, polite) for name in ("a", "b")]
    threading.Thread(target=_interrupt_when_ready, args=(plans, 1)).start()
    code, processes = run(*plans)
    assert code == 130 and [member.status for member in processes.members] == ["stopped", "stopped"]


def test_the_third_signal_kills(tmp_path):
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN); (here / 'ready').touch(); time.sleep(60)"
    plans = [plan(tmp_path, "deaf", deaf)]
    threading.Thread(target=_interrupt_when_ready, args=(plans, 3)).start()
    code, processes = run(*plans)
    assert code == 130 and processes.members[0].status == "stopped"


def _interrupt_when_ready(plans, times: int) -> None:
    deadline = time.monotonic() + 30
    while not all((one.folder / "ready").exists() for one in plans) and time.monotonic() < deadline:
        time.sleep(0.02)
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)  # two at a time would count as one


def test_nothing_is_left_behind_if_this_process_fails(tmp_path):
    endless = plan(tmp_path, "endless", "(here / str(os.getpid())).touch(); time.sleep(60)")
    processes = PopulationProcesses([endless], 0)

    def fail_when_ready() -> None:
        if any(endless.folder.iterdir()):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        processes.run(fail_when_ready)
    (file,) = endless.folder.iterdir()
    process = processes.members[0]._process
    assert process is not None and process.pid == int(file.name) and process.wait(10) == -signal.SIGINT


def fail_when_ready(member: MemberPlan) -> PopulationProcesses:
    """Run a member until it is ready, and then fail in this process."""
    processes = PopulationProcesses([member], 0)

    def look() -> None:
        if (member.folder / "ready").exists():
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        processes.run(look)
    return processes


def test_members_save_if_this_process_fails(tmp_path):
    """A fault of the display, or of another trial of a sweep, must not cost the others their work."""
    saves = "signal.signal(signal.SIGINT, lambda *_: ((here / 'saved').touch(), sys.exit(130)))"
    saving = plan(tmp_path, "saving", f"{saves}; (here / 'ready').touch(); time.sleep(60)")
    fail_when_ready(saving)
    assert (saving.folder / "saved").exists()


def test_members_that_are_saving_are_left_to_it(tmp_path):
    """A second signal would end them without a checkpoint."""
    count = "n = [0]\ndef count(*_):\n  n[0] += 1\n  (here / f'signal_{n[0]}').touch()\n"
    count += "signal.signal(signal.SIGINT, count)\n"
    wait = "while n == [0]: time.sleep(0.02)\ntime.sleep(1); (here / 'saved').touch()"
    saving = plan(tmp_path, "saving", f"exec({count!r}); (here / 'ready').touch()\n{wait}")
    processes = PopulationProcesses([saving], 0)

    def stop_and_fail() -> None:
        if (saving.folder / "signal_1").exists():
            raise RuntimeError("mine")
        if (saving.folder / "ready").exists() and not processes._signals:
            processes._count(signal.SIGINT, None)

    with pytest.raises(RuntimeError, match="mine"):
        processes.run(stop_and_fail)
    assert (saving.folder / "saved").exists() and not (saving.folder / "signal_2").exists()


def test_members_that_do_not_stop_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.2)
    deaf = plan(
        tmp_path, "deaf", "signal.signal(signal.SIGINT, signal.SIG_IGN); (here / 'ready').touch(); time.sleep(60)"
    )
    process = fail_when_ready(deaf).members[0]._process
    assert process is not None and process.wait(10) == -signal.SIGKILL


def test_members_have_their_share_of_the_machine(tmp_path):
    told = plan(tmp_path, "told", "print(sorted(os.sched_getaffinity(0)), os.environ['CUDA_VISIBLE_DEVICES'])")
    assert run(told)[0] == 0
    assert told.log.read_text() == f"{told.cores} 7\n"


def test_shares():
    assert shares(2, [0, 1, 2, 3, 4]) == [[0, 1], [2, 3, 4]]
    assert shares(3, "ab") == [["a"], ["b"], ["a"]]
    assert shares(1, [4, 5]) == [[4, 5]]


def test_lines_and_reports(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n{"step": 9, "episode_win": 0.25}\n{"step": 1')
    assert last_report(tmp_path) == {"step": 9, "episode_win": 0.25}
    assert last_report(tmp_path / "none") == {}
    member = PopulationProcesses([plan(tmp_path, "one", "pass")], 0).members[0]
    (tmp_path / "metrics.jsonl").rename(tmp_path / "one" / "metrics.jsonl")
    with PopulationTable("title", [member], "win", 0.0, None) as table:
        table.update()
    assert "one training, step 9, win 0.25" in capsys.readouterr().err


def test_options_that_a_resumed_member_gets():
    given = [
        "--resume",
        "--run-dir",
        "x",
        "--members=3",
        "--steps",
        "5",
        "--max_restarts",
        "1",
        "--seed=4",
        "--ppo.clip=0.1",
    ]
    assert without_options(given, OWN, OWN_FLAGS) == ["--steps", "5", "--ppo.clip=0.1"]
