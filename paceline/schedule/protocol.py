"""What a training loop needs of its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.collect.policy_assignment import Finished
from paceline.distributed.ownership import Ownership
from paceline.distributed.runtime import Group
from paceline.learner.protocol import Learner
from paceline.pool.protocol import Pool, StepBatch
from paceline.stop import Stop
from paceline.telemetry.clock import Clock
from paceline.telemetry.phases import Phases


class TrainingRun(Protocol):
    """Progress, reports and checkpoints of one rank. All ranks call its methods together."""

    pool: Pool
    group: Group
    ownership: Ownership
    clock: Clock
    stop: Stop
    phases: Phases
    threads: int
    checkpoint_due: bool
    save: Callable[[], None]
    keep_state: Callable[[], None]

    @property
    def learners(self) -> Sequence[Learner]:
        """By policy. Those of policies that only other ranks train have weights, and never learn."""
        ...

    @property
    def checkpoint_is_late(self) -> bool: ...

    @property
    def progress(self) -> float: ...

    def finished(self) -> bool: ...

    def receive_all(self) -> StepBatch: ...

    def begin_iteration(self) -> bool: ...

    def rollout_is_complete(self) -> None: ...

    def report(self, steps: int, losses: dict[str, float], finished: Finished) -> None: ...
