"""How the launcher of `--ranks` explains the end of its ranks, and when a restarted rank continues."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from paceline.distributed.failures import FAILURES, RESTARTS, RankFailure, read_failures, report_to_launcher
from paceline.distributed.launch import Ranks, is_restart, launch_ranks
from paceline.learner.finite import NonFiniteError, NonFiniteOnRanks


@pytest.fixture
def ranks(tmp_path) -> Ranks:
    return Ranks(2, [], tmp_path)


def lost(rank: int) -> RankFailure:
    return RankFailure(rank=rank, message=f"rank {rank}: a connection to another rank failed", code=1, consequence=True)


def checkpoint(folder: Path, written: float | None = None) -> None:
    (folder / "checkpoints").mkdir()
    latest = folder / "checkpoints" / "latest"
    latest.write_text("step_512\n")
    if written is not None:
        os.utime(latest, (written, written))


def test_a_killed_rank_is_named_and_not_the_one_that_lost_it(ranks, tmp_path):
    checkpoint(tmp_path)
    failure = ranks._explain([1, -signal.SIGKILL], [lost(0)])
    last = tmp_path / "checkpoints" / "step_512"
    assert failure is not None and failure.code == 1
    assert failure.message == f"rank 1 was killed by SIGKILL; the last good checkpoint is {last}"


def test_a_cause_counts_and_its_consequences_do_not(ranks):
    cause = RankFailure(rank=1, message="rank 1: no memory", code=1)
    assert ranks._explain([1, 1], [lost(0), cause]) == cause


def test_a_rank_that_says_nothing_is_named_with_its_exit_code(ranks):
    failure = ranks._explain([0, 3], [])
    assert failure is not None
    assert failure.message == "rank 1 ended with exit code 3; there is no checkpoint yet"


def test_a_message_that_names_its_rank_is_reported_as_it_is(tmp_path, monkeypatch):
    with open(tmp_path / "failures", "w+b") as file:
        monkeypatch.setenv(FAILURES, str(file.fileno()))
        for error in (NonFiniteError("update 3"), NonFiniteOnRanks("rank 1: policy 1: update 3")):
            with pytest.raises(SystemExit), report_to_launcher(0):
                raise error
        messages = [failure.message for failure in read_failures(file)]
    assert messages == ["rank 0: update 3", "rank 1: policy 1: update 3"]


def test_connections_that_fail_by_themselves_are_a_failure(ranks):
    assert ranks._explain([1, 1], [lost(1), lost(0)]) == lost(1)


def test_interrupted_ranks_have_not_failed(ranks):
    assert ranks._explain([130, 0], []) is None and ranks.interrupted


def test_ranks_that_end_well_have_not_failed(ranks):
    assert ranks._explain([0, 0], []) is None and not ranks.interrupted


def test_a_restart_continues_only_what_its_own_launch_has_saved(tmp_path, monkeypatch):
    assert not is_restart(tmp_path)
    monkeypatch.setenv(RESTARTS, "1")
    assert not is_restart(tmp_path), "there is no checkpoint"
    checkpoint(tmp_path, written=1.0)
    assert not is_restart(tmp_path), "another run's"
    os.utime(tmp_path / "checkpoints" / "latest")
    assert is_restart(tmp_path)
    monkeypatch.setenv(RESTARTS, "0")
    assert not is_restart(tmp_path), "the first start"


def test_a_rank_killed_while_it_saves_is_a_failure_though_the_user_interrupted(ranks):
    ranks.interrupt(signal.SIGINT, None)
    failure = ranks._explain([1, -signal.SIGKILL], [lost(0)])
    assert failure is not None and "rank 1 was killed by SIGKILL" in failure.message
    assert ranks._explain([130, 130], []) is None


def test_a_finished_run_is_not_started_again(tmp_path, monkeypatch, capsys):
    starts = []

    def run(ranks, restarts):
        starts.append(restarts)
        return RankFailure(rank=0, message="the run is finished", code=0)

    monkeypatch.setattr(Ranks, "run", run)
    assert launch_ranks(2, [], tmp_path, max_restarts=3) == 0
    assert starts == [0]
