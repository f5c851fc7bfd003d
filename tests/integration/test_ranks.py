"""Several ranks by `--ranks`: the addresses they listen on, and the messages when a rank stops or dies."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess

import psutil
import pytest

from paceline.checkpoint import CheckpointFolder
from tests.integration.test_train_command import TINY, alive, command, two_ranks, wait_for


def listening(pids: list[int]) -> set[str]:
    """The addresses that any of the processes listens on."""
    sockets = [socket for pid in pids for socket in psutil.Process(pid).net_connections(kind="inet")]
    return {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}


def test_local_ranks_listen_on_loopback_only(tmp_path):
    with two_ranks(tmp_path) as (run, started):
        addresses = listening([run.pid, *started])
    assert addresses, "the store and gloo"
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_noticed_and_named(tmp_path, victim):
    """Rank 0 serves the store. The other rank waits in an all-reduce."""
    with two_ranks(tmp_path, "--group.heartbeat-seconds", "5") as (run, started):
        os.kill(started[victim], signal.SIGSTOP)
        assert run.wait(timeout=300) == 1
        wait_for(lambda: not alive(started))
    last = (tmp_path / "errors.txt").read_text().splitlines()[-1]
    assert last.startswith(f"paceline: rank {victim} on ") and "has not answered for" in last
    assert last.endswith("there is no checkpoint yet")


def test_ranks_restart_from_the_last_checkpoint(tmp_path):
    """A rank is killed with SIGKILL. The test is slow, because the ranks start twice."""
    options = (*TINY, "--steps", "4096", "--ranks", "2", "--max-restarts", "1", "--checkpoint.seconds", "0.3")
    options = (*options, "--env", "tests.integration.slow:unhurried")  # it does not end before a rank is killed
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    arguments = command("cartpole", *options, "--run-dir", tmp_path)
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as run:
        wait_for(lambda: run.poll() is not None or checkpoints.steps())
        second = next(child for child in psutil.Process(run.pid).children() if child.environ()["RANK"] == "1")
        second.kill()
        _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert "rank 1 was killed by SIGKILL; the last good checkpoint is" in errors
    assert "restarting all ranks (1 of 1 restarts)" in errors and "Traceback" not in errors
    assert checkpoints.load().state["step"] >= 4096
