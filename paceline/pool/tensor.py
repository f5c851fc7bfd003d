"""Batched simulators whose state is torch tensors: observations are made on the policy's device, and nothing is copied.

A simulator steps all of its environments at once, so the unit of this pool is the group: one simulator per group, and
groups are received and sent whole. `send` queues a step on the device, and its results can be received at once. Neither
`recv` nor `send` waits for the device.

So the pool cannot look at values there. It checks only shape and dtype of actions, and `step_seconds` is zero. It notes
rewards and floating-point observations that are not finite on the device, and the next `take_episodes` raises a
`SimulatorError` that names slot, seed of the group, episode, step and observation. Part of a batched simulator cannot
be replaced, so this ends the run whatever `on_error` says.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.accel.cuda_graph import CudaGraph
from paceline.errors import UsageError
from paceline.pool.arguments import as_slots, chosen_groups, named_actions, slots_to_wait_for
from paceline.pool.closing import close_all
from paceline.pool.protocol import Array, Episode, Pool, PoolSpec, StepBatch
from paceline.pool.saved_pool import report_unsaved
from paceline.pool.seeds import env_seed
from paceline.pool.spaces import Leaf
from paceline.pool.tensor_episodes import EpisodeRing, GroupEpisodes

EPISODES_PER_SLOT = 64
"""Finished episodes per slot that are kept between two calls of `take_episodes`."""


@dataclass(slots=True)
class TensorStep:
    """The results of one step of N slots, after same-step autoreset. All tensors are [N, ...], on the simulator's
    device, and valid until the next step."""

    obs: dict[str, Tensor]
    reward: Tensor
    """float32."""
    terminated: Tensor
    """bool."""
    truncated: Tensor
    """bool; never set together with `terminated`."""
    final_obs: dict[str, Tensor]
    """The observation before any reset. Where an episode ended, its last one."""


class TensorSimulator(Protocol):
    """Environments with N slots as tensors on one device. N is the number of environments times `agents_per_env`.
    Observations and actions, [N, ...] each, have the names of `spaces.leaves`. With a single action leaf, `step` gets
    its tensor alone. Only `state_dict` may wait for the device.

    Rewards and floating-point observations are finite as float32: every first observation, every observation of a step,
    and `final_obs` where an episode ended. Anything else ends the run at the next `take_episodes`.

    Optional attributes:

    - `agents_per_env`: slots per environment, 1 by default. Environment e owns slots [e * agents_per_env,
      (e + 1) * agents_per_env). All agents of an environment act at every step.
    - `agents`: the names of an environment's agents, in the order of its slots.
    - `measure_names`: after every step the mapping `last_measures` has a tensor [N] for each of these names. Where the
      step ended an episode, the values belong to that episode.
    - `truncation_gap`: the time limit, if only a time limit truncates episodes. A rollout then keeps fewer final
      observations.
    - `active`: a tensor [N] bool, made anew by every step and reset: the observations that need a decision, or None for
      all. Where it is False, the next step only resets the environment. That step has no reward and no end, and counts
      nowhere.
    - `check()`: raises for what went wrong since the last call. It may wait for the device.
    - `close()`: ends the simulator. It may be called twice.
    - `recordable = True`: the state stays in the same memory, and the simulator draws no random numbers from a
      generator of its own. On a GPU its steps are recorded as a CUDA graph, and the next step overwrites the result of
      `step`.
    """

    num_envs: int
    device: torch.device
    observation_space: spaces.Space
    action_space: spaces.Space
    frameskip: int

    def reset(self, seed: int) -> dict[str, Tensor]:
        """Restart all environments. `seed` determines everything random from here on."""
        ...

    def step(self, actions: Any) -> TensorStep:
        """Step all environments without writing to `actions`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, including random generators."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TensorPool(Pool):
    """A `Pool` over tensor simulators, one per group. Group sizes must be those of `PoolSpec.group_envs`."""

    can_restore = True

    def __init__(self, simulators: Sequence[TensorSimulator], seed: int = 0, *, record: bool = True) -> None:
        self._simulators = list(simulators)
        first = self._simulators[0]
        agents_per_env, agents = getattr(first, "agents_per_env", 1), tuple(getattr(first, "agents", ()))
        if agents and len(agents) != agents_per_env:
            raise UsageError(f"the simulator names {len(agents)} agents, but its agents_per_env is {agents_per_env}")
        self.spec = PoolSpec(
            observation_space=first.observation_space,
            action_space=first.action_space,
            num_envs=sum(simulator.num_envs for simulator in simulators),
            agents_per_env=agents_per_env,
            agents=agents,
            frameskip=first.frameskip,
            num_groups=len(simulators),
            on_device=True,
            truncation_gap=getattr(first, "truncation_gap", 1),
            measures=tuple(getattr(first, "measure_names", ())),
        )
        self._device, self._groups = first.device, range(len(simulators))
        self._ranges = [self.spec.group_slots(group) for group in self._groups]
        self._sizes = [len(slots) for slots in self._ranges]
        if self._sizes != [simulator.num_envs * agents_per_env for simulator in simulators]:
            raise UsageError(f"simulators of {[s.num_envs for s in simulators]} environments are no even groups")
        self._slots_of: dict[tuple[int, ...], Tensor] = {}  # by groups
        num_slots = self.spec.num_slots
        self._ring = EpisodeRing(EPISODES_PER_SLOT * num_slots, self._device, self.spec.measures)
        floating = [leaf.name for leaf in self.spec.obs if leaf.is_floating and 0 not in leaf.shape]
        self._episodes = [
            GroupEpisodes(self._slots((group,)), self._ring, floating, agents_per_env) for group in self._groups
        ]
        self._final_obs = self._zeros(self.spec.obs, num_slots) if len(simulators) > 1 else {}
        self._advance = [self._advance_of(group, record) for group in self._groups]
        self._always = torch.ones(num_slots, dtype=torch.bool, device=self._device)
        self._never = torch.zeros(num_slots, dtype=torch.bool, device=self._device)
        self._zero = torch.zeros(num_slots, device=self._device)
        self._seed = seed
        self._incarnation = [0] * len(simulators)  # restarts of each group under the seed
        self.reset(seed)

    def recv(
        self,
        min_slots: int | None = 1,
        max_slots: int | None = None,
        timeout: float | None = None,
        group: int | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        """See `Pool.recv`. Groups are indivisible: as many whole groups as fit into `max_slots`, and at least one."""
        among = chosen_groups(group, len(self._ranges))
        size, ready = sum(self._sizes[g] for g in among), [g for g in self._ready if g in among]
        slots_to_wait_for(min_slots, max_slots, size, size - sum(self._sizes[g] for g in ready))
        taken: list[int] = []
        count = 0
        for g in ready:
            count += self._sizes[g]
            if taken and max_slots is not None and count > max_slots:
                break
            taken.append(g)
            self._ready.remove(g)
        return self._batch(tuple(sorted(taken)))

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        """See `Pool.send`. `slots` is the tensor of a batch, or the same numbers on the host. Whole groups only."""
        groups = self._groups_of(slots)
        not_held = [slot for group in groups if group in self._steps for slot in self._ranges[group]]
        if not_held:
            raise ValueError(f"slots {not_held} were not received since they were last sent")
        named = named_actions(actions, self.spec.actions)
        checked = {leaf.name: self._checked(named[leaf.name], leaf, groups) for leaf in self.spec.actions}
        begin = 0
        for group in groups:
            end = begin + self._sizes[group]
            self._steps[group] = self._advance[group]({name: values[begin:end] for name, values in checked.items()})
            self._ready.append(group)
            begin = end

    @property
    def num_in_flight(self) -> int:
        return sum(self._sizes[group] for group in self._steps)

    def wake(self) -> None:
        """Does nothing, because `recv` never waits."""

    def reset(self, seed: int) -> None:
        self._seed, self._incarnation = seed, [0] * len(self._simulators)
        starts = [self._start(group) for group in self._groups]
        self._ring.take()
        self._begin(starts)

    def take_episodes(self) -> list[Episode]:
        """Reads the device. Raises if a reward or an observation since the last call was not finite."""
        for episodes, simulator in zip(self._episodes, self._simulators, strict=True):
            episodes.check()
            if hasattr(simulator, "check"):
                simulator.check()
        return self._ring.take()

    def state(self, timeout: float | None = None) -> bytes:
        """See `Pool.state`. Waits for the device, whatever `timeout` says."""
        held = [group for group in self._groups if group not in self._steps]
        envs = [env for group in held for env in self.spec.group_envs(group)]
        report_unsaved(self.spec.num_slots, self.spec.agents_per_env, envs, {})
        saved = {
            "sizes": self._sizes,
            "seed": self._seed,
            "incarnation": self._incarnation,
            "simulators": {group: self._simulators[group].state_dict() for group in held},
            "episodes": {group: self._episodes[group].state_dict() for group in held},
            "ring": self._ring.state_dict(),
            "obs": {group: self._held_obs[group] for group in held},
        }
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        return buffer.getvalue()

    def restore(self, state: bytes) -> np.ndarray:
        try:
            saved = torch.load(io.BytesIO(state), map_location=self._device, weights_only=True)
        except pickle.UnpicklingError as error:
            raise UsageError(f"the saved simulators cannot be loaded: {str(error).splitlines()[0]}") from error
        obs = saved["obs"]
        # States from before groups could be missing have all groups, and no sizes.
        sizes = saved.get("sizes") or [len(next(iter(obs[group].values()))) for group in sorted(obs)]
        if len(sizes) != len(self._simulators):
            raise UsageError(f"the saved pool had {len(sizes)} groups; this has {len(self._simulators)}")
        if sizes != self._sizes:
            raise UsageError(f"the saved pool had {sum(sizes)} slots; this has {self.spec.num_slots}")
        self._seed, self._incarnation = saved.get("seed", self._seed), saved.get("incarnation", self._incarnation)
        for group in obs:
            self._simulators[group].load_state_dict(saved["simulators"][group])
            self._episodes[group].load_state_dict(saved["episodes"][group])
        missing = [group for group in self._groups if group not in obs]
        for group in missing:
            self._incarnation[group] += 1
            obs[group] = self._start(group)
        self._ring.load_state_dict(saved["ring"])
        self._begin([obs[group] for group in self._groups])
        return np.array([slot for group in missing for slot in self._ranges[group]], np.int64)

    def close(self) -> None:
        """Tensors are freed with the pool. A simulator may have more to close."""
        close_all(self._simulators)

    def _start(self, group: int) -> dict[str, Tensor]:
        seed = env_seed(self._seed, group, self._incarnation[group])
        start = self._simulators[group].reset(seed)
        self._episodes[group].begin(start, seed)
        return start

    def _begin(self, starts: list[dict[str, Tensor]]) -> None:
        """Make `starts`, the observations of every group, ready as a first batch."""
        self._steps: dict[int, TensorStep] = {}  # by group; the caller holds a group that is not here
        self._held_obs: dict[int, dict[str, Tensor]] = {}
        self._ready = list(self._groups)
        for group, obs in enumerate(starts):
            never, zero = self._never[: self._sizes[group]], self._zero[: self._sizes[group]]
            self._steps[group] = TensorStep(obs, zero, never, never, obs)

    def _advance_of(self, group: int, record: bool) -> Callable[[dict[str, Tensor]], TensorStep]:
        """The function that steps a group."""
        simulator, episodes = self._simulators[group], self._episodes[group]

        def advance(actions: dict[str, Tensor]) -> TensorStep:
            counted = getattr(simulator, "active", None)
            step = simulator.step(next(iter(actions.values())) if len(actions) == 1 else actions)
            measures = getattr(simulator, "last_measures", {})
            measured = [measures[name] for name in self.spec.measures]
            episodes.add(step.reward, step.terminated | step.truncated, step.obs, step.final_obs, measured, counted)
            return step

        recordable = record and self._device.type == "cuda" and getattr(simulator, "recordable", False)
        return RecordedStep(advance) if recordable else advance

    def _batch(self, groups: tuple[int, ...]) -> StepBatch:
        steps = [self._steps.pop(group) for group in groups]
        self._held_obs.update((group, step.obs) for group, step in zip(groups, steps, strict=True))
        slots = self._slots(groups)
        count = len(slots)
        if not steps:
            obs, final_obs = self._zeros(self.spec.obs, 0), self._final_obs
        elif len(self._ranges) == 1:
            obs, final_obs = steps[0].obs, steps[0].final_obs
        else:
            obs = {leaf.name: _join([step.obs[leaf.name] for step in steps]) for leaf in self.spec.obs}
            final_obs = self._final_obs
            for group, step in zip(groups, steps, strict=True):
                where = slice(self._ranges[group].start, self._ranges[group].stop)
                for name, values in step.final_obs.items():
                    final_obs[name][where] = values
        return StepBatch(
            slots=slots,
            obs=obs,
            reward=_join([step.reward for step in steps]) if steps else self._zero[:0],
            terminated=_join([step.terminated for step in steps]) if steps else self._never[:0],
            truncated=_join([step.truncated for step in steps]) if steps else self._never[:0],
            final_obs=final_obs,
            active=self._active(groups),
            lost=self._never[:count],
            step_seconds=self._zero[:count],
        )

    def _active(self, groups: tuple[int, ...]) -> Tensor:
        parts = [getattr(self._simulators[group], "active", None) for group in groups]
        if all(part is None for part in parts):
            return self._always[: sum(self._sizes[group] for group in groups)]
        sizes = [self._sizes[group] for group in groups]
        return _join([self._always[:n] if part is None else part for part, n in zip(parts, sizes, strict=True)])

    def _slots(self, groups: tuple[int, ...]) -> Tensor:
        """The slots of `groups`, always as the same tensor on the device."""
        if groups not in self._slots_of:
            # Made on the device, because a copy from the host would wait for it.
            parts = [torch.arange(self._ranges[g].start, self._ranges[g].stop, device=self._device) for g in groups]
            self._slots_of[groups] = torch.cat([torch.arange(0, device=self._device), *parts])
        return self._slots_of[groups]

    def _groups_of(self, slots: Array) -> tuple[int, ...]:
        for groups, known in self._slots_of.items():
            if slots is known:
                return groups
        if isinstance(slots, Tensor) and slots.device.type != "cpu":
            raise ValueError("slots on a device must be the tensor of a batch, because reading others would be a wait")
        numbers = as_slots(slots).tolist()
        groups = tuple(group for group, own in enumerate(self._ranges) if own.start in numbers)
        if numbers != [slot for group in groups for slot in self._ranges[group]]:
            raise ValueError(f"this pool steps whole groups in ascending order {self._ranges}, got slots {numbers}")
        return groups

    def _checked(self, actions: Array, leaf: Leaf, groups: tuple[int, ...]) -> Tensor:
        values = torch.as_tensor(actions, device=self._device)
        expected = (len(self._slots(groups)), *leaf.shape)
        if tuple(values.shape) != expected:
            raise ValueError(f"actions {leaf.name!r} have shape {tuple(values.shape)}; these slots need {expected}")
        if not isinstance(leaf.space, spaces.Box) and (values.is_floating_point() or values.is_complex()):
            raise ValueError(f"actions {leaf.name!r} have dtype {values.dtype}; {leaf.space} needs integers")
        return values

    def _zeros(self, leaves: Sequence[Leaf], count: int) -> dict[str, Tensor]:
        return {
            leaf.name: torch.from_numpy(np.zeros((count, *leaf.shape), leaf.dtype)).to(self._device) for leaf in leaves
        }


class RecordedStep:
    """The steps of a group, recorded once and replayed."""

    def __init__(self, advance: Callable[[dict[str, Tensor]], TensorStep]) -> None:
        self._actions: dict[str, Tensor] = {}
        self._graph = CudaGraph(lambda: advance(self._actions))

    def __call__(self, actions: dict[str, Tensor]) -> TensorStep:
        if not self._actions:
            self._actions = {name: values.clone() for name, values in actions.items()}
        for name, values in actions.items():
            self._actions[name].copy_(values)
        return self._graph.run()


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
