"""Starts the ranks of this machine and ends them. No rank survives an interrupt, a termination or a kill.

torchrun could start them too. But its store listens on every interface and executes what is written to it, and its last
message names the rank that ended first. Here rank 0 serves a store on the loopback address, and the last message names
the rank that failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from paceline.distributed.failures import (
    FAILURES,
    RESTARTS,
    SOCKET,
    RankFailure,
    describe_last_checkpoint,
    read_failures,
)
from paceline.errors import UsageError
from paceline.signals import INTERRUPTED, signals_handled_by

GRACE_SECONDS = 3.0
"""After a rank has failed, the others have this long to end by themselves."""
POLL_SECONDS = 0.05
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def launch_ranks(count: int, arguments: list[str], folder: Path, *, max_restarts: int = 0) -> int:
    """Run `paceline` with `arguments` on `count` ranks and wait for them. Returns the exit code.

    When a rank fails, all ranks are ended, and restarted up to `max_restarts` times. `folder` is the run folder.

    The first Ctrl-C or SIGTERM is passed on: ranks save a checkpoint and exit. The second is passed on too: ranks exit
    without a checkpoint, but ignore it within one second of the first. The third kills the ranks and their children.
    """
    if max_restarts < 0:
        raise UsageError(f"--max-restarts must be at least 0, got {max_restarts}")
    ranks = Ranks(count, arguments, folder)
    with signals_handled_by(ranks.interrupt):
        for restarts in range(max_restarts + 1):
            failure = ranks.run(restarts)
            if failure is None or failure.code in (0, UsageError.exit_code):  # a restart would not help
                break
            if ranks.interrupted or restarts == max_restarts:
                break
            _print(f"{failure.message}; restarting all ranks ({restarts + 1} of {max_restarts} restarts)")
    if failure is not None:
        _print(failure.message)
        return failure.code
    return exit_code(ranks.interrupted)


class Ranks:
    """The ranks that this process starts."""

    def __init__(self, count: int, arguments: list[str], folder: Path) -> None:
        self._count, self._folder = count, folder
        self._command = [sys.executable, "-m", "paceline", *arguments]
        self._processes: list[subprocess.Popen] = []
        self._signals = 0
        self.interrupted = False
        """Whether a signal ended the ranks."""

    def run(self, restarts: int) -> RankFailure | None:
        """Start all ranks and wait until all have ended. Returns the failure that ended them, if any."""
        with tempfile.TemporaryFile("a+b") as file:
            self._start(restarts, file.fileno())
            codes = self._wait()
            return self._explain(codes, read_failures(file))

    def interrupt(self, number: int, frame: object) -> None:
        """Pass a signal on to the ranks; kill them at the third."""
        self._signals += 1
        self.interrupted = True
        for process in self._processes:
            if self._signals > 2:
                kill_tree(process)
            else:
                process.send_signal(signal.SIGINT)

    def _start(self, restarts: int, failures: int) -> None:
        self._processes.clear()
        # Rank 0 inherits the socket, already bound to the loopback address: no other process can take the port.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            common = os.environ | {
                "WORLD_SIZE": str(self._count),
                "LOCAL_WORLD_SIZE": str(self._count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(listening.getsockname()[1]),
                FAILURES: str(failures),
                RESTARTS: str(restarts),
                "TORCHELASTIC_USE_AGENT_STORE": str(False),  # this command may run under a torchrun of one rank
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                # Below this level PyTorch prints C++ stacks when a connection ends. Our own message says what happened.
                "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
            }
            for rank in range(self._count):
                if self._signals:
                    return
                environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                inherited = [failures]
                if rank == 0:
                    environment[SOCKET] = str(listening.fileno())
                    inherited.append(listening.fileno())
                process = subprocess.Popen(
                    self._command,
                    env=environment,
                    pass_fds=inherited,
                    start_new_session=True,  # `interrupt` passes Ctrl-C on; the terminal must not send it again
                    preexec_fn=end_with_parent,
                )
                self._processes.append(process)

    def _wait(self) -> list[int]:
        """The exit codes of all ranks. If one fails, the others are killed after `GRACE_SECONDS`."""
        deadline = float("inf")
        while None in (codes := [process.poll() for process in self._processes]):
            if deadline == float("inf") and not set(codes) <= {None, 0, INTERRUPTED}:
                deadline = time.monotonic() + GRACE_SECONDS
            if time.monotonic() > deadline:
                for process in self._processes:
                    kill_tree(process)
            time.sleep(POLL_SECONDS)
        return [process.returncode for process in self._processes]

    def _explain(self, codes: list[int], reported: list[RankFailure]) -> RankFailure | None:
        """The failure that ended the ranks, from their exit codes and from what they reported."""
        self.interrupted |= INTERRUPTED in codes
        causes = [failure for failure in reported if not failure.consequence]
        if causes and self._signals < 2:
            return causes[0]
        if self._signals >= 2 or (self._signals and set(codes) <= {0, INTERRUPTED, -signal.SIGINT}):
            return None
        reporters = {failure.rank for failure in reported}
        for rank, code in enumerate(codes):
            if rank not in reporters and code not in (0, INTERRUPTED):
                ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                return RankFailure(
                    rank=rank, message=f"rank {rank} {ended}; {describe_last_checkpoint(self._folder)}", code=1
                )
        return reported[0] if reported else None


def exit_code(interrupted: bool) -> int:
    """The exit code of a command that did not fail."""
    return INTERRUPTED if interrupted else 0


def end_with_parent() -> None:
    """Have the kernel terminate this process when its parent dies, however it dies. Only Linux can do that."""
    with contextlib.suppress(AttributeError):
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def is_restart(folder: Path) -> bool:
    """Whether the launcher restarted its ranks, and they had written a checkpoint to `folder` before."""
    if int(os.environ.get(RESTARTS, "0")) == 0:
        return False
    try:
        written = (folder / "checkpoints" / "latest").stat().st_mtime
        return written > psutil.Process(os.getppid()).create_time()  # an older checkpoint belongs to another run
    except (OSError, psutil.Error):
        return False


def _print(message: str) -> None:
    if sys.stderr is not None:  # it may be closed
        sys.stderr.write(f"paceline: {message}\n")
        sys.stderr.flush()


def kill_tree(process: subprocess.Popen) -> None:
    """Kill a process of ours and all processes that it has started."""
    if process.poll() is not None:
        return
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        for one in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.Error):
                one.kill()
