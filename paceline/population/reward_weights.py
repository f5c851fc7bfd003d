"""`PolicyRewardWeights`: weights of reward shaping, of every policy its own. Environments read them.

Legend: B slots, K weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.collect.policy_assignment import PolicyAssignment
from paceline.pool.protocol import Pool


class PolicyRewardWeights:
    """The weights of every policy. The learner thread may change them; the thread that collects passes them on."""

    def __init__(self, pool: Pool, assignment: PolicyAssignment, policies: int) -> None:
        """Policies from number `policies` on do not learn: they have the defaults."""
        self.names: Sequence[str] = [name for name, _ in pool.spec.reward_weights]
        self._pool, self._assignment = pool, assignment
        self._values = np.tile([default for _, default in pool.spec.reward_weights], (policies + 1, 1))
        """[policies + 1, K]: the last row has the defaults."""
        self._changed = True

    def of(self, policy: int) -> dict[str, float]:
        return dict(zip(self.names, self._values[policy].tolist(), strict=True))

    def set(self, policy: int, name: str, value: float) -> None:
        self._values[policy, self.names.index(name)] = value
        self._changed = True

    def refresh(self) -> None:
        """Pass changed weights on to all slots."""
        if self._changed:
            self._changed = False
            self.assign(np.arange(self._pool.spec.num_slots))

    def assign(self, slots: np.ndarray) -> None:
        """Other policies act in `slots` from now on."""
        rows = np.minimum(self._assignment.policies[slots], len(self._values) - 1)
        self._pool.set_reward_weights(slots, self._values[rows])

    def state_dict(self) -> list[dict[str, float]]:
        return [self.of(policy) for policy in range(len(self._values) - 1)]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        for policy, values in enumerate(state):
            for name, value in values.items():
                if name in self.names:
                    self.set(policy, name, value)
