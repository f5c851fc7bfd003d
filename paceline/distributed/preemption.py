"""DD-PPO's preemption of stragglers (Wijmans et al., 2020, section 3 and figure 9).

Ranks that have finished their rollout count themselves; a rank that is still collecting ends early once enough are
done. Every iteration has a counter of its own: nothing is ever reset, so nothing can be read while it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.distributed.runtime import Group
from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class PreemptionConfig:
    """When stragglers end their rollout early."""

    threshold: float = 0.6
    """Preempt once more than this share of the ranks is done; 1 never preempts."""
    minimum: float = 0.25
    """No rollout ends before this share of its steps, so that every environment contributes."""

    def __post_init__(self) -> None:
        for name in ("threshold", "minimum"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"preemption.{name} must be between 0 and 1, got {getattr(self, name)}")


class Preemption:
    """One rank's part in it: `should_stop` after every step, `finished` once at the end of every rollout."""

    def __init__(self, config: PreemptionConfig, group: Group, steps: int) -> None:
        self._group, self._steps = group, steps
        self._needed = config.threshold * group.size
        self._least = config.minimum * steps
        self._iteration = 0

    def should_stop(self, step: int) -> bool:
        """Whether a rank that has collected `step` steps is to end its rollout now."""
        store = self._group.store
        if store is None or step < self._least or step >= self._steps or self._needed >= self._group.size:
            return False
        return store.add(self._key(self._iteration), 0) > self._needed

    def finished(self) -> None:
        """This rank's rollout has ended, early or not."""
        store = self._group.store
        if store is not None:
            store.add(self._key(self._iteration), 1)
            # Everybody is past the iteration before last: its update needed all ranks.
            if self._group.is_first and self._iteration >= 2:
                store.delete_key(self._key(self._iteration - 2))
        self._iteration += 1

    @staticmethod
    def _key(iteration: int) -> str:
        return f"rollouts_done/{iteration}"
