"""Starts the members of a population on this machine, restarts those that fail, and ends them.

Each member is a `paceline train` in a process of its own, with its own run folder, log, cores and GPUs. Members need
nothing from this process: if it is killed, the kernel asks them to stop, and they save a checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from paceline.distributed.launch import end_with_parent, kill_tree
from paceline.errors import UsageError
from paceline.signals import INTERRUPTED, signals_handled_by

POLL_SECONDS = 0.2
RESTART_SECONDS = 1.0
"""A failed member is started again after this time, in which its simulators end."""
STOP_SECONDS = 30.0
"""If this command fails, members have this time to save a checkpoint and end."""
SEED_DISTANCE = 100_000
"""Seeds of neighbouring members differ by this. A run derives the seeds of its ranks and simulators from its own."""

Thing = TypeVar("Thing")
Status = Literal["training", "finished", "failed", "stopped"]


@dataclass(frozen=True, kw_only=True)
class MemberPlan:
    """How one member is started."""

    name: str
    folder: Path
    log: Path
    new: list[str]
    """The command that starts it."""
    resumed: list[str]
    """The command that continues it, if it has a checkpoint."""
    cores: list[int]
    gpus: list[str] | None
    """Values of CUDA_VISIBLE_DEVICES; None: the variable is not changed."""

    @property
    def command(self) -> list[str]:
        return self.resumed if (self.folder / "checkpoints" / "latest").exists() else self.new

    def last_line(self) -> str:
        """The last line of its log that is not empty."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "it has written nothing")
        return "it has no log"


class MemberProcess:
    """A member, its process, and how often it was restarted."""

    def __init__(self, plan: MemberPlan, max_restarts: int) -> None:
        self.plan, self._max_restarts = plan, max_restarts
        self.restarts = 0
        self.status: Status = "training"
        self.code = 0
        """The exit code of a member that has ended."""
        self._process: subprocess.Popen | None = None
        self._start_at = 0.0
        """When to start the process, if there is none."""
        self._signals = 0
        """Signals that were passed on to the process."""

    def watch(self, signals: int) -> None:
        """Start the process, look whether it has ended, and pass on the signals that this command has received."""
        if self._process is None:
            if signals and self.status == "training":
                self.status = "stopped"
            elif self.status == "training" and time.monotonic() >= self._start_at:
                self._start()
            return
        code = self._process.poll()
        if code is not None:
            self._end(code, stopping=signals > 0)
            return
        while self._signals < signals:
            self._signals += 1
            self._process.send_signal(signal.SIGINT) if self._signals < 3 else self.kill()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> bool:
        """Let the process save a checkpoint and end. Returns whether it is running. It gets one signal: a second one
        would end it without a checkpoint."""
        if self._process is not None and self.is_running and self._signals == 0:
            self._signals = 1
            self._process.send_signal(signal.SIGINT)
        return self.is_running

    def kill(self) -> None:
        if self._process is not None:
            kill_tree(self._process)

    def _end(self, code: int, *, stopping: bool) -> None:
        """The process has ended by itself, or was killed. It is started again if that may help."""
        self._process, self.code = None, code if code >= 0 else 1
        is_wrong = code == UsageError.exit_code and self.restarts == 0
        if code == 0:
            self.status = "finished"
        elif stopping:
            self.status = "stopped"
        elif is_wrong or self.restarts == self._max_restarts:
            self.status = "failed"
        else:
            self.restarts += 1
            self._start_at = time.monotonic() + RESTART_SECONDS

    def _start(self) -> None:
        plan, environment = self.plan, dict(os.environ)
        if plan.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpus)

        def prepare() -> None:
            end_with_parent()
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, plan.cores)

        with plan.log.open("ab") as log:
            self._process = subprocess.Popen(
                plan.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # signals are passed on; the terminal must not send them again
                preexec_fn=prepare,
            )
        self._signals = 0


class PopulationProcesses:
    """All members of this machine.

    The first Ctrl-C or SIGTERM is passed on: members save a checkpoint and exit. The second is passed on too: members
    exit without a checkpoint, but ignore it within one second of the first. The third kills them.
    """

    def __init__(self, plans: Sequence[MemberPlan], max_restarts: int) -> None:
        self.members = [MemberProcess(plan, max_restarts) for plan in plans]
        self._signals = 0

    def run(self, show: Callable[[], None]) -> int:
        """Start all members and wait until all have ended. Calls `show` again and again. Returns the exit code."""
        with signals_handled_by(self._count), ended_at_the_end(self.members, lambda: self._signals):
            while any(member.status == "training" for member in self.members):
                for member in self.members:
                    member.watch(self._signals)
                show()
                time.sleep(POLL_SECONDS)
        failed = [member.code for member in self.members if member.status == "failed"]
        return max(failed) if failed else INTERRUPTED if self._signals else 0

    def _count(self, number: int, frame: object) -> None:
        self._signals += 1


@contextlib.contextmanager
def ended_at_the_end(members: Iterable[MemberProcess], signals: Callable[[], int]) -> Iterator[None]:
    """End all `members` that run when the context ends, also after an exception. They may save a checkpoint first,
    unless this command gets another one of its `signals` meanwhile."""
    try:
        yield
    finally:
        running = [member for member in members if member.stop()]
        deadline, before = time.monotonic() + STOP_SECONDS, signals()
        while time.monotonic() < deadline and signals() == before and any(member.is_running for member in running):
            time.sleep(POLL_SECONDS)
        for member in running:
            member.kill()


def shares(members: int, things: Sequence[Thing]) -> list[list[Thing]]:
    """Cores or GPUs of each member: an equal share, or one in turn if there are more members than things."""
    if members >= len(things):
        return [[things[member % len(things)]] for member in range(members)]
    bounds = [member * len(things) // members for member in range(members + 1)]
    return [list(things[first:end]) for first, end in itertools.pairwise(bounds)]
