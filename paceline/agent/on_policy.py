"""The agent of the PPO systems: an actor-critic that decides, targets of what was collected, and a learner."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.accel.config import ComputeConfig
from paceline.accel.kernels import choose_cpu_kernels, choose_precision, keep_in_precision, one_thread, require_compiler
from paceline.agent.sizes import require_rows, rollout_bytes
from paceline.collect.actor import Actor
from paceline.config import Config
from paceline.distributed.reduce import synchronize
from paceline.distributed.runtime import Group
from paceline.experience.rollout import Rollout
from paceline.free_memory import require_memory
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.pool import Pool
from paceline.pool.protocol import StepBatch
from paceline.pool.tensor import TensorPool
from paceline.stop import Stop
from paceline.telemetry.clock import Clock
from paceline.telemetry.phases import Phases


class OnPolicy:
    """An `Agent`. Where one thread learns while another decides, the latter has weights of its own."""

    def __init__(self, config: Config, group: Group, pool: Pool, clock: Clock, stop: Stop, phases: Phases) -> None:
        self._config, self._group = config, group
        require_rows(config, pool.spec)
        with one_thread():
            self.policy = ActorCritic(pool.spec, config.policy).to(group.device)
        synchronize(self.policy, group)
        beside = learns_beside(config, pool)
        self.threads_alone: int | None = None
        """On a CPU: PyTorch's threads of one of two who compute, while the other waits for it."""
        if group.device.type == "cpu":
            ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", group.size))
            self.threads_alone = choose_cpu_kernels(self.policy, config.threads, ranks_here, beside=beside)
        self.policy.precision = choose_precision(self.policy, config.compute.precision, group.device)
        self.policy.core.layer_by_layer = config.compute.layer_by_layer
        acting = copy.deepcopy(self.policy) if beside else self.policy
        if beside and group.device.type == "cpu":
            keep_in_precision(acting)
        if config.compute.compile:
            if group.device.type == "cpu":
                require_compiler()
            for policy in {self.policy, acting}:
                policy.compile_encoders()
        ppo = config.resolved_ppo
        acting_compute, learning_compute = _computes(config, beside)
        self._generator = torch.Generator().manual_seed(config.seed + group.rank)
        self.learner = PPOLearner(
            self.policy,
            group,
            ppo,
            config.optimizer,
            self._generator,
            learning_compute,
            num_slots=pool.spec.num_slots,
            stop=stop,
            phases=phases,
            on_nonfinite=config.on_nonfinite,
        )
        # After the learner: it may hold on to where the weights are.
        # What is replayed at the same time must not share where random numbers go on.
        own = group.device.type == "cuda" and beside
        self._numbers = [_generator(group.device)] if own else []
        """Random numbers of decisions, where the learner draws on the device at the same time; none elsewhere."""
        self.actor = Actor(acting, pool.spec, group.device, acting_compute, clock, (*self._numbers, None)[0])
        self.pick_up = self.learner.publication.reader(acting).pick_up if beside else lambda: None
        self.targets = self.learner.targets
        self._rollout: Rollout | None = None
        self._restored_rollout: dict[str, Any] | None = None
        require_memory(
            rollout_bytes(config, pool.spec, self.policy.core.state_size),
            group.device,
            "a rollout",
            "fewer --pool.num-envs or --rollout-steps",
        )

    def learning_rate(self, progress: float) -> float:
        return self.learner.learning_rate(progress)

    def learn(self, rollout: Rollout, progress: float) -> dict[str, float]:
        """One update of the policy and of its normalisers, by all ranks together."""
        return self.learner.learn(rollout, progress)

    def publish(self) -> None:
        """Where another thread decides: let it have what was learned."""
        self.learner.publish()

    def keep(self, rollout: Rollout) -> None:
        """Save what `rollout` has so far with every checkpoint, and take over what one had that was restored."""
        self._rollout = rollout
        state, self._restored_rollout = self._restored_rollout, None
        if state is not None and rollout.fits(state):
            rollout.load_state_dict(state)

    def observe(self, batch: StepBatch) -> None:
        self.actor.observe(batch)

    def state(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def rank_state(self, *, stopped: bool = False) -> dict[str, Any]:
        return {
            "generator": self._generator.get_state(),
            "numbers": [generator.get_state() for generator in self._numbers],
            "actor": {name: tensor.cpu() for name, tensor in self.actor.state_dict().items()},
            "targets": {name: tensor.cpu() for name, tensor in self.targets.state_dict().items()},
            "rollout": self._rollout.state_dict() if self._rollout is not None and not stopped else None,
        }

    def checkpointed(self, rank_state: dict[str, Any]) -> None:
        """A checkpoint has everything."""

    def load(self, weights: dict[str, Tensor], state: dict[str, Any], rank_state: dict[str, Any], *, own: bool) -> None:
        self.policy.load_state_dict(weights)
        self.publish()
        self.pick_up()
        self.learner.load_state_dict(state)
        self.targets.load_state_dict(rank_state["targets"])
        if own:
            self._generator.set_state(rank_state["generator"])
            # There may be fewer or more who decide than there were.
            for generator, saved in zip(self._numbers, rank_state.get("numbers", []), strict=False):
                generator.set_state(saved)

    def close(self) -> None:
        """Nothing to close."""

    def restore_episodes(self, rank_state: dict[str, Any], anew: np.ndarray) -> None:
        self.actor.load_state_dict(rank_state["actor"])
        self.targets.continue_episodes(rank_state["targets"])
        if len(anew) == 0:
            self._restored_rollout = rank_state["rollout"]
            return
        slots = torch.from_numpy(anew).to(self._group.device)
        self.actor.start_anew(slots)
        self.targets.start_anew(slots)


def _generator(device: torch.device) -> torch.Generator:
    """Random numbers of its own on a device, which follow from the host's."""
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))


def learns_beside(config: Config, pool: Pool) -> bool:
    """Whether one thread learns while another decides, and needs weights of its own for that."""
    if isinstance(pool, TensorPool):
        return False
    return config.system == "appo" or (config.system == "ver" and config.ver.overlap)


def _computes(config: Config, beside: bool) -> tuple[ComputeConfig, ComputeConfig]:
    """How decisions and updates are computed: whether they can be recorded on a GPU."""
    # Where learning overlaps with VER's next rollout every lesson is a frozen one, whose memory lies elsewhere.
    frozen = beside and config.system == "ver"
    # While a thread records, another may not draw random numbers on the device, unless it is recorded too: auxiliary losses do, and the
    # entropy of squashed actions.
    draws = config.ppo.auxiliary.kind != "none" or config.policy.head.squash
    recorded = config.compute.cuda_graphs and not (beside and draws)
    learning = recorded and not frozen
    acting, updates = (dataclasses.replace(config.compute, cuda_graphs=graphs) for graphs in (recorded, learning))
    return acting, updates
