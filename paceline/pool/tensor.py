"""Batched simulators whose state is torch tensors: observations are born where the policy is, and nothing is copied.

A simulator steps all of its environments in one go, so the unit of this pool is the group: one simulator each, and
groups are received and sent whole. A step is queued on the device by `send`; what has come of it can be received at
once, and is computed when it is computed. Neither `recv` nor `send` waits for the device. It follows that values
cannot be looked at there: actions are checked for shape and dtype only, and `step_seconds` is zero. Rewards and
floating-point observations that are not finite are noted on the device, and the next `take_episodes` raises a
`SimulatorError` that names slot, seed of the group, episode, step and observation. A simulator of many environments cannot
be replaced, so this ends the run whatever `on_error` says.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.accel.cuda_graph import CudaGraph
from paceline.envs.registry import Factory
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import Array, Episode, PoolSpec, StepBatch, as_slots, named_actions
from paceline.pool.saved_pool import report_unsaved
from paceline.pool.seeds import env_seed
from paceline.pool.spaces import Leaf
from paceline.pool.tensor_episodes import EpisodeRing, GroupEpisodes

EPISODES_PER_SLOT = 64
"""How many finished episodes are kept per slot between two calls of `take_episodes`."""


@dataclass(slots=True)
class TensorStep:
    """What has come of one step of N environments, same-step autoreset included. All tensors are [N, ...], on the
    simulator's device, and hold until the next step."""

    obs: dict[str, Tensor]
    reward: Tensor
    """float32."""
    terminated: Tensor
    """bool."""
    truncated: Tensor
    """bool; never set together with `terminated`."""
    final_obs: dict[str, Tensor]
    """The observation before any reset; where an episode ended, its last one."""


class TensorSimulator(Protocol):
    """N environments as tensors on one device. Observations and actions are named as `spaces.leaves` names them; where
    there is one action leaf, `step` gets its tensor alone. Nothing but `state_dict` may wait for the device.

    Rewards and floating-point observations are finite as float32: every first observation, every observation of a step,
    and those of `final_obs` where an episode ended. Anything else ends the run at the next `take_episodes`.

    Some attributes are optional. A simulator with `measure_names` has, after every step, a tensor [N] for each of
    them in the mapping `last_measures`: they are an episode's where that step ended it. A simulator that cuts episodes by a time limit alone says so by `truncation_gap`, the
    limit: the fewer final observations have to be kept for a rollout. One whose state stays in the same memory, and
    which draws random numbers from no generator of its own, says `recordable = True`: on a GPU its steps are recorded
    as a CUDA graph, and what `step` returns is then overwritten by the next step."""

    num_envs: int
    device: torch.device
    observation_space: spaces.Space
    action_space: spaces.Space
    frameskip: int

    def reset(self, seed: int) -> dict[str, Tensor]:
        """Start all environments anew; everything random from here on is determined by `seed`."""
        ...

    def step(self, actions: Any) -> TensorStep:
        """`actions` are the caller's, and not to be written to."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, random generators included."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def make_tensor_pool(factory: Factory, config: PoolConfig, seed: int, device: str) -> TensorPool:
    """One simulator per group of `config`, on `device`."""
    bounds = [config.num_envs * group // config.groups for group in range(config.groups + 1)]
    make: Any = factory.make  # of this family: n environments on a device
    return TensorPool([make(end - begin, device) for begin, end in pairwise(bounds)], seed, record=config.cuda_graphs)


class TensorPool:
    """A `Pool` over tensor simulators, one per group; group sizes must be those of `PoolSpec.group_envs`."""

    can_restore = True

    def __init__(self, simulators: Sequence[TensorSimulator], seed: int = 0, *, record: bool = True) -> None:
        self._simulators = list(simulators)
        first = self._simulators[0]
        self.spec = PoolSpec(
            observation_space=first.observation_space,
            action_space=first.action_space,
            num_envs=sum(simulator.num_envs for simulator in simulators),
            frameskip=first.frameskip,
            num_groups=len(simulators),
            truncation_gap=getattr(first, "truncation_gap", 1),
            measures=tuple(getattr(first, "measure_names", ())),
            on_device=True,
        )
        self._device = first.device
        self._ranges = [self.spec.group_slots(group) for group in range(len(simulators))]
        if [len(slots) for slots in self._ranges] != [simulator.num_envs for simulator in simulators]:
            raise UsageError(f"simulators of {[s.num_envs for s in simulators]} environments are no even groups")
        self._slots_of: dict[tuple[int, ...], Tensor] = {}  # by the groups they belong to
        num_slots = self.spec.num_slots
        self._ring = EpisodeRing(EPISODES_PER_SLOT * num_slots, self._device, self.spec.measures)
        floating = [leaf.name for leaf in self.spec.obs if leaf.is_floating and 0 not in leaf.shape]
        self._episodes = [
            GroupEpisodes(self._slots((group,)), self._ring, floating) for group in range(len(simulators))
        ]
        self._final_obs = self._zeros(self.spec.obs, num_slots) if len(simulators) > 1 else {}
        self._recorded = [
            RecordedStep(partial(self._advance, group))
            if record and self._device.type == "cuda" and getattr(simulator, "recordable", False)
            else None
            for group, simulator in enumerate(simulators)
        ]
        self._always = torch.ones(num_slots, dtype=torch.bool, device=self._device)
        self._never = torch.zeros(num_slots, dtype=torch.bool, device=self._device)
        self._nothing = torch.zeros(num_slots, device=self._device)
        self._seed = seed
        self._incarnation = [0] * len(simulators)
        """How many times each group was started anew under the seed."""
        self.reset(seed)

    def recv(
        self,
        min_slots: int | None = 1,
        max_slots: int | None = None,
        timeout: float | None = None,
        group: int | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        """See `Pool.recv`. Groups are indivisible: of `max_slots`, as many whole groups as fit, and at least one."""
        if max_slots is not None and max_slots < 1:
            raise ValueError(f"max_slots is {max_slots}; allowed: 1 or more, or None for all")
        if group is not None and not 0 <= group < len(self._ranges):
            raise ValueError(f"group {group} does not exist; this pool has {len(self._ranges)}")
        among = range(len(self._ranges)) if group is None else [group]
        size, ready = sum(len(self._ranges[g]) for g in among), [g for g in self._ready if g in among]
        num_ready = sum(len(self._ranges[g]) for g in ready)
        want = size if min_slots is None else min_slots
        if not 0 <= want <= size:
            raise ValueError(f"min_slots is {min_slots}; allowed: 0 to {size}, or None for all")
        if want > num_ready:
            raise ValueError(
                f"recv would wait for ever: {want} slots wanted, but the caller holds {size - num_ready} of {size}; "
                "send them first"
            )
        return self._batch(self._take(ready, max_slots))

    @property
    def num_in_flight(self) -> int:
        return sum(len(self._ranges[group]) for group in self._steps)

    def wake(self) -> None:
        """`recv` never waits."""

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        """See `Pool.send`. `slots` is what a batch came with, or the same numbers on the host; whole groups only."""
        groups = self._groups_of(slots)
        held_back = [group for group in groups if group in self._steps]
        if held_back:
            late = [slot for group in held_back for slot in self._ranges[group]]
            raise ValueError(f"slots {late} were not received since they were last sent")
        named = {
            leaf.name: self._checked(named_actions(actions, self.spec.actions)[leaf.name], leaf, groups)
            for leaf in self.spec.actions
        }
        begin = 0
        for group in groups:
            end = begin + len(self._ranges[group])
            self._step(group, {name: values[begin:end] for name, values in named.items()})
            begin = end

    def reset(self, seed: int) -> None:
        self._seed, self._incarnation = seed, [0] * len(self._simulators)
        starts = [self._start(group) for group in range(len(self._simulators))]
        self._ring.take()
        self._begin(starts)

    def _start(self, group: int) -> dict[str, Tensor]:
        seed = env_seed(self._seed, group, self._incarnation[group])
        start = self._simulators[group].reset(seed)
        self._episodes[group].begin(start, seed)
        return start

    def take_episodes(self) -> list[Episode]:
        """Reads the device, and raises what was wrong with a reward or an observation since the last call."""
        for episodes in self._episodes:
            episodes.check()
        return self._ring.take()

    restarts = 0

    def state(self, timeout: float | None = None) -> bytes:
        """See `Pool.state`. The device is waited for, `timeout` or not."""
        held = [group for group in range(len(self._simulators)) if group not in self._steps]
        envs = [env for group in held for env in self.spec.group_envs(group)]
        report_unsaved(self.spec.num_slots, self.spec.agents_per_env, envs, {})
        buffer = io.BytesIO()
        torch.save(
            {
                "sizes": [len(slots) for slots in self._ranges],
                "seed": self._seed,
                "incarnation": self._incarnation,
                "simulators": {group: self._simulators[group].state_dict() for group in held},
                "episodes": {group: self._episodes[group].state_dict() for group in held},
                "ring": self._ring.state_dict(),
                "obs": {group: self._held_obs[group] for group in held},
            },
            buffer,
        )
        return buffer.getvalue()

    def restore(self, state: bytes) -> np.ndarray:
        saved = torch.load(io.BytesIO(state), map_location=self._device, weights_only=True)
        obs = saved["obs"]
        # States from before groups could be missing have all of them, and no sizes.
        sizes = saved.get("sizes") or [len(next(iter(obs[group].values()))) for group in sorted(obs)]
        if len(sizes) != len(self._simulators):
            raise UsageError(f"the saved pool had {len(sizes)} groups; this has {len(self._simulators)}")
        if sizes != [len(slots) for slots in self._ranges]:
            raise UsageError(f"the saved pool had {sum(sizes)} environments; this has {self.spec.num_envs}")
        self._seed, self._incarnation = saved.get("seed", self._seed), saved.get("incarnation", self._incarnation)
        for group in obs:
            self._simulators[group].load_state_dict(saved["simulators"][group])
            self._episodes[group].load_state_dict(saved["episodes"][group])
        anew = [group for group in range(len(sizes)) if group not in obs]
        for group in anew:
            self._incarnation[group] += 1
            obs[group] = self._start(group)
        self._ring.load_state_dict(saved["ring"])
        self._begin([obs[group] for group in range(len(sizes))])
        return np.array([slot for group in anew for slot in self._ranges[group]], np.int64)

    def close(self) -> None:
        """There is nothing to end: tensors go when the pool goes."""

    def __enter__(self) -> TensorPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, starts: list[dict[str, Tensor]]) -> None:
        """Have `starts`, the observations of every group, ready as a first batch."""
        self._steps: dict[int, TensorStep] = {}  # by group; a group that is not here is held by the caller
        self._held_obs: dict[int, dict[str, Tensor]] = {}
        self._ready = list(range(len(starts)))
        for group, obs in enumerate(starts):
            count = len(self._ranges[group])
            never, nothing = self._never[:count], self._nothing[:count]
            self._steps[group] = TensorStep(obs, nothing, never, never, obs)

    def _step(self, group: int, actions: dict[str, Tensor]) -> None:
        recorded = self._recorded[group]
        self._steps[group] = recorded(actions) if recorded is not None else self._advance(group, actions)
        self._ready.append(group)

    def _advance(self, group: int, actions: dict[str, Tensor]) -> TensorStep:
        """One step of a group's simulator, and what it means for its episodes."""
        only = next(iter(actions.values())) if len(self.spec.actions) == 1 else actions
        step = self._simulators[group].step(only)
        measures = getattr(self._simulators[group], "last_measures", {})
        measured = [measures[name] for name in self.spec.measures]
        self._episodes[group].add(step.reward, step.terminated | step.truncated, step.obs, step.final_obs, measured)
        return step

    def _take(self, ready: list[int], max_slots: int | None) -> tuple[int, ...]:
        taken: list[int] = []
        count = 0
        for group in ready:
            count += len(self._ranges[group])
            if taken and max_slots is not None and count > max_slots:
                break
            taken.append(group)
            self._ready.remove(group)
        return tuple(sorted(taken))

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
            reward=_join([step.reward for step in steps]) if steps else self._nothing[:0],
            terminated=_join([step.terminated for step in steps]) if steps else self._never[:0],
            truncated=_join([step.truncated for step in steps]) if steps else self._never[:0],
            final_obs=final_obs,
            active=self._always[:count],
            lost=self._never[:count],
            step_seconds=self._nothing[:count],
        )

    def _slots(self, groups: tuple[int, ...]) -> Tensor:
        """The slots of `groups` as a tensor on the device, the same one every time."""
        if groups not in self._slots_of:
            parts = [torch.arange(self._ranges[g].start, self._ranges[g].stop, device=self._device) for g in groups]
            self._slots_of[groups] = torch.cat([torch.arange(0, device=self._device), *parts])
        return self._slots_of[groups]

    def _groups_of(self, slots: Array) -> tuple[int, ...]:
        for groups, known in self._slots_of.items():
            if slots is known:
                return groups
        if isinstance(slots, Tensor) and slots.device.type != "cpu":
            raise ValueError(
                "slots on a device must be the tensor that a batch came with; others would be a wait to read"
            )
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
    """A group's steps, recorded once and replayed."""

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
