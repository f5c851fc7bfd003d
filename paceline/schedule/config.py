"""Settings of single systems. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.checks import require_at_least
from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class VERConfig:
    """The collection of ver."""

    variable: bool = True
    """Collect each step from an environment that is ready. Otherwise every environment gives exactly T steps to a
    rollout (the paper's NoVER)."""
    importance_weights: bool = True
    """Give less weight to rows of environments with more steps than the mean, so that fast environments do not dominate
    the update."""
    overlap: bool = False
    """Learn from a rollout while the next is collected. The weights that collect are then one update older."""


@dataclass(frozen=True, kw_only=True)
class APPOConfig:
    """The concurrent collection and learning of appo."""

    batch: int | None = None
    """Steps per update, rounded to whole trajectories of T steps. None: T steps of each environment."""
    waiting: int = 0
    """Batches that may wait for the learner, in addition to the batch that it learns from, before collection pauses. If
    the learner is slower than collection, each waiting batch adds one update of policy lag. It adds speed only if the
    times of learning or collection vary."""
    concurrent: bool | None = None
    """Collect and learn at the same time. None: yes, except for one rank with a small policy over EnvPool. There the
    Python interpreter lets only one of the two threads work, and taking turns is faster."""
    max_lag: int = 100
    """Rows that are more than this many updates old are dropped."""

    def __post_init__(self) -> None:
        require_at_least(self, "appo", 1, "batch")
        require_at_least(self, "appo", 0, "waiting")
        if self.max_lag < self.waiting + 2:
            raise UsageError(
                f"appo.max_lag must be at least appo.waiting + 2, which is {self.waiting + 2}, got {self.max_lag}: all "
                "rows are that old if the learner is slower than collection"
            )
