"""`PolicyCopy`: a policy that only other ranks train. It acts here, and has no optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.handover import Handover
from paceline.learner.hyperparameters import ppo_hyperparameters
from paceline.learner.publication import Publication
from paceline.learner.rate_schedule import make_rate_schedule
from paceline.nets.ppo_policy import PPOPolicy


class PolicyCopy:
    """The weights and hyper-parameters of a policy. Its owner sends new weights after each update, and all ranks change
    its hyper-parameters alike.

    It stands in the list of learners in the place of the learner. What only the owner has is not in its state.
    """

    def __init__(self, policy: PPOPolicy, config: PPOConfig, optimizer: OptimizerConfig) -> None:
        self.policy, self.publication = policy, Publication(policy)
        self.hyperparameters = ppo_hyperparameters(config, optimizer)
        self._schedule = make_rate_schedule(optimizer.schedule)

    @property
    def version(self) -> int:
        """The number of updates of the policy. Waits for the device."""
        return int(self.policy.version)

    def learning_rate(self, progress: float) -> float:
        """The owner's learning rate after a share `progress` of the run."""
        rate = self.hyperparameters.section("optimizer").learning_rate
        return rate * self._schedule(min(max(progress, 0.0), 1.0))

    def publish(self) -> None:
        """Let acting copies of the policy have the present weights."""
        self.publication.publish()

    def take_over(self, donor: Handover) -> None:
        """Continue as a copy of the policy whose owner has taken over `donor`."""
        version = self.version + 1
        self.policy.load_state_dict(donor["weights"])
        self.policy.version.fill_(version)
        self.hyperparameters.take_over(donor["agent"]["hyperparameters"])
        self.publish()

    def state_dict(self) -> dict[str, Any]:
        return {"hyperparameters": self.hyperparameters.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the hyper-parameters in the state of the owner."""
        self.hyperparameters.load_state_dict(state.get("hyperparameters", {}))

    def rank_state(self) -> dict[str, Any]:
        return {"generator": None, "targets": {}}

    def load_rank_state(self, state: dict[str, Any], *, own: bool) -> None:
        """Nothing to restore."""

    def restore_episodes(self, state: dict[str, Any], anew: np.ndarray) -> None:
        """Nothing to restore."""
