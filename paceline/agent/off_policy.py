"""The agent of D4PG: a deterministic policy that acts with noise, a replay of what came of it, and a learner.

Legend: B rows of a batch, A numbers of an action.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.config import Config
from paceline.distributed.reduce import synchronize
from paceline.distributed.runtime import Group
from paceline.distributed.weights import Publication
from paceline.experience.archive import Archive
from paceline.experience.limiter import Limiter
from paceline.experience.nstep import NStep, Transitions
from paceline.experience.replay import Replay
from paceline.experience.return_range import ReturnRange
from paceline.learner.d4pg import D4PGLearner
from paceline.policy.deterministic import ActionCritic, DeterministicPolicy
from paceline.policy.kernels import choose_cpu_kernels
from paceline.pool import Pool
from paceline.pool.config import available_core_ids
from paceline.pool.protocol import Episode, PoolSpec, StepBatch
from paceline.pool.tensor import TensorPool
from paceline.telemetry.clock import Clock

log = logging.getLogger(__name__)

EVALUATION_WINDOW = 10
"""Episodes without noise whose returns are averaged."""


class OffPolicy:
    """An `Agent`. `act`, `complete` and `pick_up` are for the thread that collects, `learn` for the one that learns; both may
    be the same."""

    def __init__(self, config: Config, group: Group, pool: Pool, clock: Clock, folder: Path) -> None:
        self._config, self._group, self._clock = config, group, clock
        slots = pool.spec.num_slots
        self.beside = config.d4pg.beside and not config.deterministic and not isinstance(pool, TensorPool)
        """Whether one thread learns while another collects."""
        self.policy = DeterministicPolicy(pool.spec, config.control).to(group.device)
        self.critic = ActionCritic(pool.spec, config.control).to(group.device)
        for module in (self.policy, self.critic):
            synchronize(module, group)
        if group.device.type == "cpu":
            # Updates take most of the time, and whoever collects mostly waits for them: they get all cores.
            ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", group.size))
            threads = config.threads or max(1, len(available_core_ids()) // ranks_here)
            choose_cpu_kernels(self.policy, threads, ranks_here)
        self.learner = D4PGLearner(self.policy, self.critic, group, config.d4pg)
        self._acting = copy.deepcopy(self.policy).requires_grad_(False)
        self._publication = Publication(self.policy, self._acting)
        self.replay = Replay(config.replay, group.device)
        self._replay_lock = threading.Lock()
        self._archive = Archive(self.replay, folder / "replay" / f"rank_{group.rank}", config.checkpoint.keep)
        self.limiter = Limiter(config.limiter, config.d4pg.batch, slots * config.d4pg.steps)
        self._nstep = NStep(config.d4pg.steps, slots, config.d4pg.discount)
        self._generator = torch.Generator(group.device).manual_seed(config.seed + group.rank)
        self._exploring = torch.from_numpy(exploring_slots(pool.spec, config.d4pg.evaluation_envs))
        """[N] bool: slots that act with noise, and are learned from."""
        self._pending = np.zeros(slots, bool)
        """[N]: decided, and to be learned from."""
        self.collected = 0
        """Steps of exploring slots so far."""
        self._evaluated: deque[float] = deque(maxlen=EVALUATION_WINDOW)
        self._range = ReturnRange(slots, config.d4pg.discount)
        self._warned = config.control.value.kind != "categorical"

    def learning_rate(self, progress: float) -> float:
        return self._config.d4pg.actor_rate

    @torch.no_grad()
    def act(self, batch: StepBatch) -> dict[str, Any]:
        """Actions for a batch as its pool takes them; remembered until `complete`."""
        obs = {name: self._tensor(values) for name, values in batch.obs.items()}
        slots, active = _host(batch.slots), _host(batch.active)
        actions = self._acting(obs)
        noise = torch.randn(actions.shape, generator=self._generator, device=actions.device)
        exploring = self._exploring[torch.from_numpy(slots)]
        scale = torch.where(exploring, self._config.d4pg.noise, 0.0).to(actions.device)
        actions = (actions + scale[:, None] * noise).clamp(-1.0, 1.0)
        learned = active & exploring.numpy()
        self._pending[slots] = learned
        if learned.any():
            rows = {name: _host(values)[learned] for name, values in batch.obs.items()}
            self._nstep.decide(slots[learned], rows, actions.cpu().numpy()[learned])
        taken = self._acting.env_actions(actions)
        return {self.policy.name: taken if isinstance(batch.reward, Tensor) else taken.cpu().numpy()}

    def complete(self, batch: StepBatch) -> None:
        """What came of the last actions of a batch's slots goes into the replay."""
        slots = _host(batch.slots)
        mine = self._pending[slots]
        if not mine.any():
            return
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
        self._range.observe(chosen, reward, ended, lost)
        self._warn_of_bounds()
        self._insert(self._nstep.complete(chosen, reward, terminated, truncated, lost, next_obs))
        self.collected += int((~lost).sum())

    def _insert(self, found: Transitions) -> None:
        if len(found.reward) == 0:
            return
        rows: dict[str, Any] = {"action": found.action, "reward": found.reward, "discount": found.discount}
        for kind, values in (("obs", found.obs), ("next_obs", found.next_obs)):
            rows |= {f"{kind}/{name}": column for name, column in values.items()}
        with self._replay_lock:
            self.replay.add(rows)
        self._archive.note()
        self.limiter.insert(len(found.reward))

    def _warn_of_bounds(self) -> None:
        """Once, if the critic cannot speak of returns that were seen."""
        value = self._config.control.value
        if self._warned or not self._range.exceeds(value.low, value.high):
            return
        self._warned = True
        log.warning(
            "discounted returns between %.4g and %.4g were seen, but the critic's atoms are between %.4g and %.4g: what is "
            "beyond is cut off. --control.value.low and --control.value.high set them",
            self._range.low,
            self._range.high,
            value.low,
            value.high,
        )

    def take_evaluated(self, episodes: list[Episode]) -> list[Episode]:
        """Those of the exploring slots; the returns of the others are noted."""
        exploring = self._exploring.tolist()
        self._evaluated.extend(episode.episode_return for episode in episodes if not exploring[episode.slot])
        return [episode for episode in episodes if exploring[episode.slot]]

    def evaluation(self) -> dict[str, float]:
        """The mean return of the latest episodes without noise, once there are any."""
        return {"evaluation_return": sum(self._evaluated) / len(self._evaluated)} if self._evaluated else {}

    def learn(self) -> dict[str, Tensor]:
        """One update, by all ranks together; metrics are on the device."""
        config = self._config.d4pg
        with self._replay_lock:
            drawn = self.replay.draw(config.batch)
        self.limiter.draw(config.batch)
        losses, errors = self.learner.update(drawn)
        with self._replay_lock:
            self.replay.set_priorities(drawn, errors)
        if self.learner.updates % config.actors_period == 0:
            self._publication.publish()
        return losses

    def pick_up(self) -> None:
        """Act with what was published last, from now on."""
        self._publication.pick_up()

    def state(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def rank_state(self) -> dict[str, Any]:
        return {
            "replay": self._archive.state(),
            "limiter": self.limiter.state_dict(),
            "nstep": self._nstep.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load(self, weights: dict[str, Tensor], state: dict[str, Any], rank_state: dict[str, Any], *, own: bool) -> None:
        self.policy.load_state_dict(weights)
        self._publication.publish()
        self._publication.pick_up()
        self.learner.load_state_dict(state)
        if own:
            self._archive.load(rank_state["replay"])
            self.limiter.load_state_dict(rank_state["limiter"])
            self._generator.set_state(rank_state["generator"])

    def close(self) -> None:
        self._archive.close()

    def go_on(self, rank_state: dict[str, Any]) -> None:
        self._nstep.load_state_dict(rank_state["nstep"])

    def _tensor(self, values: Any) -> Tensor:
        return values if isinstance(values, Tensor) else torch.from_numpy(values).to(self._group.device)


def exploring_slots(spec: PoolSpec, evaluation_envs: int) -> np.ndarray:
    """[N] bool: all but those of the last environments, of which at most a quarter evaluates."""
    spared = min(evaluation_envs, spec.num_envs // 4)
    exploring = np.ones(spec.num_slots, bool)
    exploring[(spec.num_envs - spared) * spec.agents_per_env :] = False
    return exploring


def _host(values: Any) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
