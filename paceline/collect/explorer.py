"""`Explorer`: acts for the slots of a pool with noise, and turns outcomes into n-step transitions.

Legend: N slots of the pool, B slots of a batch, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline.errors import UsageError
from paceline.experience.nstep import NStep, Transitions
from paceline.experience.return_range import ReturnRange
from paceline.learner.config import D4PGConfig
from paceline.nets.deterministic import DeterministicPolicy
from paceline.pool.protocol import Episode, PoolSpec, StepBatch


class Explorer:
    """Owns incomplete transitions and the noise. The caller owns the policy and changes its weights between calls."""

    def __init__(
        self,
        policy: DeterministicPolicy,
        spec: PoolSpec,
        settings: Callable[[], D4PGConfig],
        device: torch.device,
        seed: int,
        *,
        evaluation_envs: int,
    ) -> None:
        """`settings` returns the current noise and discount. The last `evaluation_envs` environments have no noise."""
        self._policy, self._device, self._settings, self._on_device = policy, device, settings, spec.on_device
        self._turn_based = spec.turn_based
        slots, config = spec.num_slots, settings()
        self._nstep = NStep(config.steps, slots, config.discount)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._exploring = exploring_slots(spec, evaluation_envs)
        """[N] bool: slots that act with noise, and are learned from."""
        if config.lowest_noise is not None and config.lowest_noise > config.noise:
            raise UsageError(f"d4pg.lowest_noise must be at most d4pg.noise {config.noise}, got {config.lowest_noise}")
        self._boldness = np.ones(slots, np.float32)
        """[N]: each slot's epsilon, from 0 (the lowest noise) to 1 (the noise)."""
        self._draw_boldness(np.arange(slots))
        self._pending = np.zeros(slots, bool)
        """[N]: slots with a decision in flight that is learned from."""
        self.collected = 0
        """Steps of exploring slots so far."""
        self.returns = ReturnRange(slots, config.discount)

    @torch.no_grad()
    def act(self, batch: StepBatch) -> dict[str, Any]:
        """Actions for a batch, as its pool takes them."""
        settings = self._settings()
        self._nstep.discount = self.returns.discount = settings.discount
        obs = batch.obs
        if not self._on_device:
            obs = {name: torch.from_numpy(values).to(self._device) for name, values in obs.items()}
        slots, active = self._host(batch.slots), self._host(batch.active)
        actions = self._policy(obs)
        noise = torch.randn(actions.shape, generator=self._generator, device=actions.device)
        exploring = self._exploring[slots]
        scale = torch.from_numpy(np.where(exploring, self._noise(slots, settings), np.float32(0.0))).to(actions.device)
        actions = (actions + scale[:, None] * noise).clamp(-1.0, 1.0)
        learned = active & exploring
        self._pending[slots] = learned
        if learned.any():
            rows = {name: self._host(values)[learned] for name, values in batch.obs.items()}
            self._nstep.decide(slots[learned], rows, actions.cpu().numpy()[learned])
        taken = self._policy.env_actions(actions)
        return {self._policy.name: taken if self._on_device else taken.cpu().numpy()}

    def complete(self, batch: StepBatch) -> Transitions | None:
        """The transitions that are complete after the outcomes of a batch's slots; None for none."""
        slots = self._host(batch.slots)
        mine = self._pending[slots]
        if not mine.any():
            return None
        chosen = slots[mine]
        self._pending[chosen] = False
        reward, terminated, truncated, lost = (
            self._host(values)[mine] for values in (batch.reward, batch.terminated, batch.truncated, batch.lost)
        )
        next_obs = {name: self._host(values)[mine] for name, values in batch.obs.items()}
        ended = terminated | truncated
        if ended.any():
            for name, values in batch.final_obs.items():
                next_obs[name][ended] = self._host(values[chosen[ended]])
        self._draw_boldness(chosen[ended | lost])
        self.returns.observe(chosen, reward, ended, lost)
        self.collected += int((~lost).sum())
        return self._nstep.complete(chosen, reward, terminated, truncated, lost, next_obs)

    def _noise(self, slots: np.ndarray, settings: D4PGConfig) -> np.ndarray:
        """[B] float32: epsilon of these slots."""
        lowest = settings.noise if settings.lowest_noise is None else min(settings.lowest_noise, settings.noise)
        return np.float32(lowest) + np.float32(settings.noise - lowest) * self._boldness[slots]

    def _draw_boldness(self, slots: np.ndarray) -> None:
        """Episodes begin in these slots."""
        if self._settings().lowest_noise is None or len(slots) == 0:
            return
        drawn = torch.rand(len(slots), generator=self._generator, device=self._device)
        self._boldness[slots] = drawn.cpu().numpy()

    def split(self, episodes: list[Episode]) -> tuple[list[Episode], list[Episode]]:
        """Episodes with noise, and those without."""
        return (
            [episode for episode in episodes if self._exploring[episode.slot]],
            [episode for episode in episodes if not self._exploring[episode.slot]],
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "nstep": self._nstep.state_dict(),
            "generator": self._generator.get_state(),
            "boldness": torch.from_numpy(self._boldness.copy()),
            "pending": torch.from_numpy(self._pending.copy()),
        }

    def load_generator(self, state: dict[str, Any]) -> None:
        """Continue the noise of a saved explorer, if it ran on the same kind of device."""
        if len(state["generator"]) == len(self._generator.get_state()):
            self._generator.set_state(state["generator"])

    def load_transitions(self, state: dict[str, Any], anew: np.ndarray) -> None:
        """Restore incomplete transitions and the noise of episodes, except those of slots in `anew`, which begin new
        episodes."""
        has_decisions = self._nstep.load_state_dict(state["nstep"])
        self._nstep.drop(anew)
        continued = np.setdiff1d(np.arange(len(self._boldness)), anew)
        if (
            has_decisions and "pending" in state
        ):  # in a turn-based game, decisions of agents whose next turn has not come
            self._pending[continued] = state["pending"].numpy()[continued]
        elif self._turn_based:  # states of earlier versions do not tell which decisions wait
            self._nstep.drop(continued)
        if "boldness" in state and self._settings().lowest_noise is not None:
            self._boldness[continued] = state["boldness"].numpy()[continued]

    def _host(self, values: Any) -> np.ndarray:
        return values.cpu().numpy() if self._on_device else values


def exploring_slots(spec: PoolSpec, evaluation_envs: int) -> np.ndarray:
    """[N] bool: all slots, except those of the last environments, at most a quarter of them, which evaluate."""
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
