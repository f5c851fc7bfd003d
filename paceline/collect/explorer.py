"""`Explorer`: acts for the slots of a pool with noise, and makes transitions of what comes of it.

Legend: N slots of the pool, B rows of a batch, A numbers of an action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.experience.nstep import NStep, Transitions
from paceline.experience.return_range import ReturnRange
from paceline.learner.config import D4PGConfig
from paceline.nets.deterministic import DeterministicPolicy
from paceline.pool.protocol import Episode, PoolSpec, StepBatch


class Explorer:
    """Owns what waits to become transitions, and the noise. The policy is the caller's, who may change its weights between
    two calls."""

    def __init__(
        self, policy: DeterministicPolicy, spec: PoolSpec, config: D4PGConfig, device: torch.device, seed: int
    ) -> None:
        self._policy, self._device, self._noise = policy, device, config.noise
        slots = spec.num_slots
        self._nstep = NStep(config.steps, slots, config.discount)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._exploring = exploring_slots(spec, config.evaluation_envs)
        """[N] bool: slots that act with noise, and are learned from."""
        self._pending = np.zeros(slots, bool)
        """[N]: decided, and to be learned from."""
        self.collected = 0
        """Steps of exploring slots so far."""
        self.returns = ReturnRange(slots, config.discount)

    @torch.no_grad()
    def act(self, batch: StepBatch) -> dict[str, Any]:
        """Actions for a batch as its pool takes them; remembered until `complete`."""
        obs = {name: self._tensor(values) for name, values in batch.obs.items()}
        slots, active = _host(batch.slots), _host(batch.active)
        actions = self._policy(obs)
        noise = torch.randn(actions.shape, generator=self._generator, device=actions.device)
        exploring = self._exploring[slots]
        scale = torch.from_numpy(np.where(exploring, np.float32(self._noise), np.float32(0.0))).to(actions.device)
        actions = (actions + scale[:, None] * noise).clamp(-1.0, 1.0)
        learned = active & exploring
        self._pending[slots] = learned
        if learned.any():
            rows = {name: _host(values)[learned] for name, values in batch.obs.items()}
            self._nstep.decide(slots[learned], rows, actions.cpu().numpy()[learned])
        taken = self._policy.env_actions(actions)
        return {self._policy.name: taken if isinstance(batch.reward, Tensor) else taken.cpu().numpy()}

    def complete(self, batch: StepBatch) -> Transitions | None:
        """The transitions that what came of the last actions of a batch's slots completes; None for none."""
        slots = _host(batch.slots)
        mine = self._pending[slots]
        if not mine.any():
            return None
        chosen = slots[mine]
        self._pending[chosen] = False
        reward, terminated, truncated, lost = (
            _host(values)[mine] for values in (batch.reward, batch.terminated, batch.truncated, batch.lost)
        )
        next_obs = {name: _host(values)[mine] for name, values in batch.obs.items()}
        ended = terminated | truncated
        if ended.any():
            for name, values in batch.final_obs.items():
                next_obs[name][ended] = _host(values[chosen[ended]])
        self.returns.observe(chosen, reward, ended, lost)
        self.collected += int((~lost).sum())
        return self._nstep.complete(chosen, reward, terminated, truncated, lost, next_obs)

    def divide(self, episodes: list[Episode]) -> tuple[list[Episode], list[Episode]]:
        """Episodes of exploring slots, and those without noise."""
        return (
            [episode for episode in episodes if self._exploring[episode.slot]],
            [episode for episode in episodes if not self._exploring[episode.slot]],
        )

    def state_dict(self) -> dict[str, Any]:
        return {"nstep": self._nstep.state_dict(), "generator": self._generator.get_state()}

    def load_generator(self, state: dict[str, Any]) -> None:
        """Go on with the noise of a saved one, if it was made on such a device as this."""
        if len(state["generator"]) == len(self._generator.get_state()):
            self._generator.set_state(state["generator"])

    def load_waiting(self, state: dict[str, Any], anew: np.ndarray) -> None:
        """Restore the n-step windows, but for slots that start `anew`, with a new episode."""
        self._nstep.load_state_dict(state["nstep"])
        self._nstep.drop(anew)

    def _tensor(self, values: Any) -> Tensor:
        return values if isinstance(values, Tensor) else torch.from_numpy(values).to(self._device)


def exploring_slots(spec: PoolSpec, evaluation_envs: int) -> np.ndarray:
    """[N] bool: all but those of the last environments, of which at most a quarter evaluates."""
    spared = min(evaluation_envs, spec.num_envs // 4)
    exploring = np.ones(spec.num_slots, bool)
    exploring[(spec.num_envs - spared) * spec.agents_per_env :] = False
    return exploring


def as_rows(found: Transitions) -> dict[str, np.ndarray]:
    """Columns as a replay takes them."""
    rows = {"action": found.action, "reward": found.reward, "discount": found.discount}
    for kind, values in (("obs", found.obs), ("next_obs", found.next_obs)):
        rows |= {f"{kind}/{name}": column for name, column in values.items()}
    return rows


def _host(values: Any) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
