"""The agent of D4PG: a deterministic policy that explores, a replay of what came of it, and a learner."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from paceline.accel.cuda_graph import CudaGraph
from paceline.accel.kernels import choose_cpu_kernels, choose_precision, require_compiler
from paceline.accel.stream_lock import Turns
from paceline.agent.sizes import transition_bytes
from paceline.collect.explorer import Explorer, as_rows
from paceline.config import Config
from paceline.distributed.reduce import synchronize
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.archive import Archive
from paceline.experience.limiter import Limiter
from paceline.experience.replay import Replay
from paceline.experience.return_range import ReturnRange
from paceline.free_memory import require_memory
from paceline.learner.d4pg import D4PGLearner
from paceline.nets.deterministic import ActionCritic, DeterministicPolicy
from paceline.pool import Pool
from paceline.pool.config import available_core_ids
from paceline.pool.protocol import Episode, StepBatch
from paceline.pool.tensor import TensorPool
from paceline.stop import Stop

log = logging.getLogger(__name__)

EVALUATION_WINDOW = 10
"""Episodes without noise whose returns are averaged."""


class OffPolicy:
    """An `Agent`. `act`, `complete`, `insert` and `pick_up` are for the thread that collects, `learn` for the one that learns;
    both may be the same."""

    def __init__(self, config: Config, group: Group, pool: Pool, folder: Path, stop: Stop) -> None:
        self._config = config
        self.beside = config.d4pg.beside and not config.deterministic and not isinstance(pool, TensorPool)
        """Whether one thread learns while another collects."""
        if config.deterministic and config.replay.prioritized and group.device.type == "cuda":
            raise UsageError(
                "deterministic runs on a GPU need --replay.no-prioritized: its sums of priorities are not reproducible"
            )
        least = config.limiter.minimum * group.size
        if config.steps <= least:
            raise UsageError(
                f"steps is {config.steps}, but nothing is learned before limiter.minimum steps are collected on every rank, "
                f"{least} in all"
            )
        self.policy = DeterministicPolicy(pool.spec, config.control).to(group.device)
        self.critic = ActionCritic(pool.spec, config.control).to(group.device)
        precision = choose_precision(self.policy, config.compute.precision, group.device)
        for module in (self.policy, self.critic):
            synchronize(module, group)
            module.torso.precision = precision
        if group.device.type == "cpu":
            # Updates take most of the time, and whoever collects mostly waits for them: they get all cores.
            ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", group.size))
            threads = config.threads or max(1, len(available_core_ids()) // ranks_here)
            choose_cpu_kernels(self.policy, threads, ranks_here, precision)
        self.learner = D4PGLearner(
            self.policy,
            self.critic,
            group,
            config.d4pg,
            compiled=_compiles(config, group),
            stop=stop,
            on_nonfinite=config.on_nonfinite,
        )
        self.acting = copy.deepcopy(self.policy).requires_grad_(False)
        """The weights that explore."""
        self._reader = self.learner.publication.reader(self.acting)
        self.explorer = Explorer(self.acting, pool.spec, config.d4pg, group.device, config.seed + group.rank)
        require_memory(
            config.replay.capacity * transition_bytes(pool.spec),
            group.device,
            "the replay",
            "a smaller --replay.capacity",
        )
        self.replay = Replay(config.replay, group.device)
        self._replay_turns = Turns(group.device)
        self._compiling = threading.Lock()
        """Held while an update is compiled: PyTorch's tracing patches `nn.Module` for all threads."""
        self._archive = Archive(self.replay, folder / "replay" / f"rank_{group.rank}", config.checkpoint.keep)
        at_once = pool.spec.num_slots * config.d4pg.steps + config.remote.actors * config.remote.transitions
        # Ranks meet in the middle of an update, where nothing can be recorded.
        recorded = group.device.type == "cuda" and config.compute.cuda_graphs and group.size == 1
        self._recorded = CudaGraph(self._draw_and_step) if recorded else None
        self.limiter = Limiter(config.limiter, config.d4pg.batch, at_once)
        self.collected = 0
        """Steps that were learned from or will be, so far."""
        self._counted = 0
        """Of them, those that were counted as steps of the run."""
        self._evaluated: deque[float] = deque(maxlen=EVALUATION_WINDOW)
        self._warned = config.control.value.kind != "categorical"

    def learning_rate(self, progress: float) -> float:
        return self.learner.learning_rate(progress)

    def act(self, batch: StepBatch) -> dict[str, Any]:
        """Actions for a batch as its pool takes them, by the weights that were published last."""
        with self._compiling:
            self.pick_up()
            return self.explorer.act(batch)

    def complete(self, batch: StepBatch) -> None:
        """What came of the last actions of a batch's slots goes into the replay."""
        before = self.explorer.collected
        found = self.explorer.complete(batch)
        if found is not None:
            self.insert(as_rows(found), self.explorer.collected - before, self.explorer.returns)

    def observe(self, batch: StepBatch) -> None:
        self.complete(batch)

    def insert(self, rows: dict[str, np.ndarray], steps: int, returns: ReturnRange) -> None:
        """Transitions of so many steps, wherever they were made; `returns` is what was seen there."""
        self.collected += steps
        self._warn_of_bounds(returns)
        count = len(rows["reward"])
        if count == 0:
            return
        with self._replay_turns:
            self.replay.add(rows)
            self._archive.note()
        if self.replay.inserted == count:  # the first ones: now it is known how large they are
            size, capacity = self.replay.bytes, self.replay.capacity
            log.info("replay: %s transitions of %d bytes, %.2f GiB", f"{capacity:,}", size // capacity, size / 2**30)
        self.limiter.insert(count)

    def take_collected(self) -> int:
        """Steps since the last call, for the thread that learns."""
        collected = self.collected
        steps, self._counted = collected - self._counted, collected
        return steps

    def _warn_of_bounds(self, returns: ReturnRange) -> None:
        """Once, if the critic cannot speak of returns that were seen."""
        value = self._config.control.value
        if self._warned or not returns.exceeds(value.low, value.high):
            return
        self._warned = True
        log.warning(
            "discounted returns between %.4g and %.4g were seen, but the critic's atoms are between %.4g and %.4g: what is "
            "beyond is cut off. --control.value.low and --control.value.high set them",
            returns.low,
            returns.high,
            value.low,
            value.high,
        )

    def note_evaluated(self, episodes: list[Episode]) -> None:
        """Episodes without noise."""
        self._evaluated.extend(episode.episode_return for episode in episodes)

    def evaluation(self) -> dict[str, float]:
        """The mean return of the latest episodes without noise, once there are any."""
        returns = list(self._evaluated)  # another thread adds to them
        return {"evaluation_return": sum(returns) / len(returns)} if returns else {}

    def learn(self) -> dict[str, Tensor]:
        """One update, by all ranks together; metrics are on the device, until the next."""
        config = self._config.d4pg
        self.limiter.draw(config.batch)
        self.learner.apply_hyperparameters()
        if self._recorded is not None:
            with self._replay_turns:
                losses = self._recorded.run()
        else:
            with self._replay_turns:
                drawn = self.replay.draw(config.batch)
            with self._compiling if self.learner.compiles_next else contextlib.nullcontext():
                losses, errors = self.learner.step(drawn)
            with self._replay_turns:
                self.replay.set_priorities(drawn, errors)
        self.learner.count()
        return losses

    def _draw_and_step(self) -> dict[str, Tensor]:
        """All that the device does for an update; while nobody else uses the replay."""
        drawn = self.replay.draw(self._config.d4pg.batch)
        losses, errors = self.learner.step(drawn)
        self.replay.set_priorities(drawn, errors)
        return losses

    def pick_up(self) -> int:
        """Act with what was published last, from now on; the how-manieth publication that is."""
        return self._reader.pick_up()

    def state(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def rank_state(self, *, stopped: bool = False) -> dict[str, Any]:
        return {
            "replay": self._archive.state(),
            "limiter": self.limiter.state_dict(),
            "uncounted": self.collected - self._counted,
            "explorer": self.explorer.state_dict(),
        }

    def checkpointed(self, rank_state: dict[str, Any]) -> None:
        self._archive.checkpointed(rank_state["replay"])

    def load(self, weights: dict[str, Tensor], state: dict[str, Any], rank_state: dict[str, Any], *, own: bool) -> None:
        self.policy.load_state_dict(weights)
        self.learner.publish()
        self._reader.pick_up()
        self.learner.load_state_dict(state)
        if own:
            self._archive.load(rank_state["replay"])
            self.limiter.load_state_dict(rank_state["limiter"])
            if len(self.replay) < min(self._config.limiter.minimum, self.replay.capacity):  # not all of it came back
                self.limiter.load_state_dict({"inserted": len(self.replay), "drawn": 0})
            self.collected, self._counted = rank_state["uncounted"], 0
            self.explorer.load_generator(rank_state["explorer"])

    def close(self) -> None:
        self._archive.close()

    def restore_episodes(self, rank_state: dict[str, Any], anew: np.ndarray) -> None:
        self.explorer.load_waiting(rank_state["explorer"], anew)


def _compiles(config: Config, group: Group) -> bool:
    """Whether updates are compiled as a whole: ranks meet in the middle of one, and on a GPU they are recorded."""
    if not config.compute.compile:
        return False
    if group.size > 1 or group.device.type != "cpu":
        log.info("compute.compile changes nothing here: updates of d4pg are compiled on the CPU of a single rank")
        return False
    require_compiler()
    return True
