"""Shared by the benchmarks with several ranks: starting the ranks, and a run that counts rounds."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from paceline.assembly import Services, ppo_parts
from paceline.collect.policy_assignment import Finished
from paceline.config import Config
from paceline.distributed.ownership import Ownership
from paceline.distributed.runtime import Group
from paceline.pool import Pool
from paceline.pool.protocol import StepBatch
from paceline.stop import Stop
from paceline.telemetry.clock import Clock
from paceline.telemetry.phases import Phases


def launch(module: str, size: int, settings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Run `module` on `size` ranks of this machine. Yields the first rank's result of each setting."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(port), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    missing, other = len(settings), []
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(size):
            output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(settings)],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            stack.callback(process.kill)
            ranks.append(process)
        for line in ranks[0].stdout or ():
            if line.startswith("RESULT "):
                missing -= 1
                yield json.loads(line.removeprefix("RESULT "))
            else:
                other.append(line)
        for process in ranks:
            process.wait()
    if missing:
        raise RuntimeError(f"{size} ranks failed:\n{''.join(other)}")


class Rounds:
    """Stands in for a run: ends after at least `rounds` iterations and `seconds`. The first iteration never counts."""

    def __init__(self, config: Config, group: Group, pool: Pool, rounds: int, seconds: float = 0.0) -> None:
        self.config, self.group, self.pool = config, group, pool
        self._rounds, self._seconds = rounds, seconds
        torch.manual_seed(1)
        self.clock, self.stop, self.phases = Clock(), Stop(group), Phases()
        self.threads = torch.get_num_threads()
        self.ownership = Ownership.of(group, 1, spread=False)
        services = Services(group=group, ownership=self.ownership, stop=self.stop, clock=self.clock, phases=self.phases)
        self.learners, self.sampler, _ = ppo_parts(config, services, pool, Path())  # one policy writes no files
        self.progress = 0.0
        self.save: Callable[[], None] = lambda: None
        self.keep_state: Callable[[], None] = lambda: None
        """There are no checkpoints."""
        self.marks: list[float] = []
        self.steps: list[int] = []

    def finished(self) -> bool:
        if len(self.marks) < self._rounds:
            return False
        enough = self.group.is_first and self.marks[-1] - self.marks[0] >= self._seconds
        return self.group.any(enough)

    def report(self, steps: int, losses: dict[str, float], finished: Finished) -> None:
        self.marks.append(time.perf_counter())
        self.steps.append(steps)

    checkpoint_due = checkpoint_is_late = False

    def receive_all(self) -> StepBatch:
        return self.pool.recv(min_slots=None)

    def begin_iteration(self) -> bool:
        return not self.finished()

    def rollout_is_complete(self) -> None:
        """There are no callbacks."""

    def rates(self, counted: int | None = None) -> tuple[float, float]:
        """Steps per second of all ranks, as the mean over the last `counted` rounds and of the best round. By default
        all rounds but the first count."""
        counted = counted or len(self.steps) - 1
        steps = self.group.sum_(torch.tensor(self.steps[-counted:], dtype=torch.float64))
        marks = torch.tensor(self.marks[-counted - 1 :], dtype=torch.float64)
        return float(steps.sum() / (marks[-1] - marks[0])), float((steps / marks.diff()).max())
