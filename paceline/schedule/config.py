"""Settings of single systems. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class VERConfig:
    """What is VER's own."""

    variable: bool = True
    """Take steps from whoever is ready; without it every stream gives exactly T a rollout (the paper's NoVER)."""
    importance_weights: bool = True
    """Rows of streams that gave more than the mean weigh less, so that fast simulators do not decide what is learned."""
    overlap: bool = False
    """Learn from a rollout while the next one is collected, with weights that are one update older."""


@dataclass(frozen=True, kw_only=True)
class APPOConfig:
    """What is APPO's own."""

    batch: int | None = None
    """Steps of an update, rounded to whole trajectories; by default as many as all slots give in T steps."""
    waiting: int = 0
    """Batches that may wait for the learner, beside the one that it learns from, before collection pauses: each is an update more of lag
    where the learner is the slower, and no more speed unless the times that both take vary."""
    beside: bool | None = None
    """Collect while learning goes on. By default it is so, except for one rank of a small perceptron over EnvPool: both threads are
    then Python's most of the time, of which only one can be at work, and taking turns is faster."""
    max_lag: int = 100
    """Rows that are more updates behind than this are not learned from."""

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("waiting", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"appo.{name} must be at least {least}, got {value}")
        if self.max_lag < self.waiting + 2:
            raise UsageError(
                f"appo.max_lag must be at least appo.waiting + 2, which is {self.waiting + 2}, got {self.max_lag}: where the "
                "learner is the slower, all rows are that old"
            )
