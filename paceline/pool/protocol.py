"""The one boundary between simulators and everything else: `recv() -> StepBatch`, `send(actions, slots)`.

Legend: S slots of a pool, B rows of a batch (B <= S).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces

from paceline.pool.spaces import Leaf, leaves

Array = Any
"""A NumPy array from pools whose simulators run on the host, a torch tensor from a `tensor` pool."""


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """What a pool's streams look like; the same for every slot."""

    observation_space: spaces.Space
    action_space: spaces.Space
    num_envs: int
    agents_per_env: int = 1
    """Slots per environment; environment e owns slots [e * agents_per_env, (e + 1) * agents_per_env)."""
    frameskip: int = 1
    """Simulator frames per step, for counting `fps`."""
    num_groups: int = 1
    """The slots are cut into this many contiguous groups of whole environments, for double buffering."""
    envs_per_worker: int = 1
    """Environments that are stepped one after the other: while one waits for its action, its worker has others."""
    in_step: bool = False
    """Those of a group that were sent together come back together: there is no waiting for a part of them."""
    truncation_gap: int = 1
    """No slot is truncated twice within so many of its steps, as far as the pool knows."""
    on_device: bool = False
    """Whether the arrays of batches and actions are tensors on the policy's device. Otherwise they are NumPy arrays on the host."""
    measures: tuple[str, ...] = ()
    """Numbers that every finished episode has in its `info`, and that a run reports the means of."""
    obs: tuple[Leaf, ...] = field(init=False)
    actions: tuple[Leaf, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs", leaves(self.observation_space, "obs"))
        object.__setattr__(self, "actions", leaves(self.action_space, "action"))

    @property
    def num_slots(self) -> int:
        return self.num_envs * self.agents_per_env

    def group_envs(self, group: int) -> range:
        """The environments of one group; group sizes differ by at most one."""
        bounds = [self.num_envs * g // self.num_groups for g in (group, group + 1)]
        return range(bounds[0], bounds[1])

    def group_slots(self, group: int) -> range:
        envs = self.group_envs(group)
        return range(envs.start * self.agents_per_env, envs.stop * self.agents_per_env)


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode of one slot."""

    slot: int
    episode_return: float
    length: int
    """Agent steps."""
    info: Mapping[str, float] = field(default_factory=dict)
    """The scalars of the episode's last `info`."""


@dataclass(slots=True)
class StepBatch:
    """What has come of the last actions of B slots, and the observations that ask for the next ones.

    Same-step autoreset: where an episode ended, `obs` is the first observation of the next episode, and the last one
    of the old is in `final_obs`. The first batch a slot appears in has reward 0 and no end.

    The arrays may be views into the pool's memory: they hold until the next `recv`, and each row only until its slot
    is sent. Copy what must live longer.
    """

    slots: Array
    """[B] int64, ascending, no slot twice."""
    obs: dict[str, Array]
    """[B, ...] for every observation leaf."""
    reward: Array
    """[B] float32."""
    terminated: Array
    """[B] bool: the episode ended for good; nothing is to be bootstrapped."""
    truncated: Array
    """[B] bool: the episode was cut; V(`final_obs`) is to be bootstrapped. Never set together with `terminated`."""
    final_obs: dict[str, Array]
    """[S, ...]: indexed by SLOT, not by row; only entries of slots whose episode just ended mean anything."""
    active: Array
    """[B] bool: `obs` asks for a decision. A slot whose agent is out of the game is inactive until its environment
    restarts: its action is ignored, and the transition that begins there is not experience."""
    lost: Array
    """[B] bool: the simulator was replaced. The step in flight and the rest of its episode do not exist; `obs` is the
    first observation of a new episode, and no reward or end belongs to this row."""
    step_seconds: Array
    """[B] float32: simulation time of this step, a reset included."""

    def __len__(self) -> int:
        return len(self.slots)

    def ended(self) -> Array:
        return self.terminated | self.truncated


@runtime_checkable
class Pool(Protocol):
    """Simulators behind slots. Every received slot has to be sent before it is received again."""

    spec: PoolSpec

    def recv(
        self,
        min_slots: int | None = 1,
        max_slots: int | None = None,
        timeout: float | None = None,
        group: int | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        """Wait for `min_slots` finished slots and return up to `max_slots` of those ready, oldest first.

        With `first` [S], those with lower numbers there come first; `serial` and `process` pools go by it, others have no choice.

        `min_slots=None` is lock-step: all slots (of `group`, if one is given). After `timeout` seconds whatever is
        ready is returned, an empty batch included; without one the wait is unbounded, but dead and hung simulators
        are noticed all the same and end it (`SimulatorError`) or are replaced (`StepBatch.lost`).
        """
        ...

    @property
    def num_in_flight(self) -> int:
        """Slots that were sent, or have just begun, and were not received since."""
        ...

    def wake(self) -> None:
        """From any thread or signal handler, at any time: a `recv` that waits returns an empty batch, and what is ready stays so. If
        none waits, the next `recv` that would have to wait returns one. `serial` pools step in `recv`: they stop between two
        environments, and the next `recv` goes on from there. `tensor` pools never wait. EnvPool's fastest simulators are waited for
        to the end of a step."""
        ...

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        """Begin the next step of `slots`. `actions` is one array [B, ...], or one per action leaf by name.

        An environment of several agents steps once all of its slots were sent.
        """
        ...

    def reset(self, seed: int) -> None:
        """Abandon every running episode and start all environments anew from `seed`; what was held need not be sent."""
        ...

    def take_episodes(self) -> list[Episode]:
        """The episodes finished in batches received since the last call. Device pools synchronise here and only here."""
        ...

    can_restore: bool
    """Whether `restore` works, whatever `state` says."""

    @property
    def restarts(self) -> int:
        """How many times a simulator was replaced."""
        ...

    def state(self, timeout: float | None = None) -> bytes:
        """Everything needed to continue exactly, of every environment whose slots are all held by the caller.

        Environments are left out, with a warning, if they are in flight, cannot be saved, or do not answer within `timeout` seconds
        (`pool.start_timeout_seconds` if None), because their worker is busy, hung or dead. Nothing is raised for a worker that dies
        meanwhile: it is replaced, or the next `recv` raises. `UsageError` if no environment of this kind can be saved.
        """
        ...

    def restore(self, state: bytes) -> np.ndarray:
        """Continue from `state`: the next `recv` delivers the observations that were held when it was taken, as a first
        batch, without the rewards and ends that came with them then.

        Returns the slots [int64] that `state` lacks. They start new episodes, under seeds that they did not have before, and
        are in that first batch too.
        """
        ...

    def close(self) -> None:
        """End all simulators. May be called twice."""
        ...

    def __enter__(self) -> Pool: ...

    def __exit__(self, *_: object) -> None: ...


def named_actions(actions: Array | Mapping[str, Array], leaves: Sequence[Leaf]) -> Mapping[str, Array]:
    """Actions by leaf name, whichever way the caller wrote them."""
    if not isinstance(actions, np.ndarray) and isinstance(actions, Mapping):
        if set(actions) != {leaf.name for leaf in leaves}:
            raise ValueError(f"actions named {sorted(actions)}; this pool needs {sorted(leaf.name for leaf in leaves)}")
        return actions
    if len(leaves) != 1:
        raise ValueError(f"this pool needs a mapping with one array for each of {[leaf.name for leaf in leaves]}")
    return {leaves[0].name: actions}


def as_slots(slots: Array) -> np.ndarray:
    """Slots as an int64 array."""
    array = np.asarray(slots)
    if array.dtype == np.int64:
        return array
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"slots must be integers, got {array.dtype}")
    return array.astype(np.int64)
