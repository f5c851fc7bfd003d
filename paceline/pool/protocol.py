"""The boundary between simulators and everything else: `recv() -> StepBatch`, `send(actions, slots)`.

Legend: S slots of a pool, B rows of a batch (B <= S).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.pool.kinds import AgentKind
from paceline.pool.spaces import Leaf, leaves

Array = Any
"""A torch tensor from a pool whose spec says `on_device`, a NumPy array from any other."""


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """The shape of a pool and of its streams. All slots of a kind are alike."""

    observation_space: spaces.Space
    action_space: spaces.Space
    num_envs: int
    agents_per_env: int = 1
    """Slots per environment. Environment e owns slots [e * agents_per_env, (e + 1) * agents_per_env)."""
    agents: tuple[str, ...] = ()
    """Names of an environment's agents, in the order of its slots. Empty where there is one agent."""
    kinds: tuple[AgentKind, ...] = ()
    """Agents with equal spaces are one kind. Where there are several, `observation_space` and `action_space` are
    dictionaries with one entry per kind, and a slot uses the entries of its own kind. There is at least one."""
    turn_based: bool = False
    """Agents take turns: a slot stays in flight until its agent's next turn, or the end of its episode."""
    frameskip: int = 1
    """Simulator frames per step, for counting `fps`."""
    num_groups: int = 1
    """Number of contiguous groups of whole environments, for double buffering."""
    envs_per_worker: int = 1
    """Environments that one worker steps one after the other."""
    in_step: bool = False
    """Slots of a group that were sent together come back together, so waiting for a part of them is pointless."""
    on_device: bool = False
    """The arrays of a batch are torch tensors on the simulators' device."""
    truncation_gap: int = 1
    """Fewest steps between two truncations of one slot, as far as the pool knows."""
    numbers_games: bool = False
    """Whether batches have the number of the game that each environment plays."""
    reward_weights: tuple[tuple[str, float], ...] = ()
    """Names and defaults of the weights of reward shaping that can be tuned (`Pool.set_reward_weights`)."""
    measures: tuple[str, ...] = ()
    """Numbers in the `info` of every finished episode. A run reports their means."""
    obs: tuple[Leaf, ...] = field(init=False)
    actions: tuple[Leaf, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs", leaves(self.observation_space, "obs"))
        object.__setattr__(self, "actions", leaves(self.action_space, "action"))
        if not self.kinds:
            only = AgentKind("", self.observation_space, self.action_space, tuple(range(self.agents_per_env)))
            object.__setattr__(self, "kinds", (only,))

    def of_kind(self, kind: AgentKind) -> PoolSpec:
        """What a policy of `kind` sees: its own spaces, and only its own agents.

        Rows of a batch keep the slot numbers of the whole pool.
        """
        return replace(
            self,
            observation_space=kind.observation_space,
            action_space=kind.action_space,
            agents_per_env=len(kind.agents),
            agents=tuple(self.agents[agent] for agent in kind.agents) if self.agents else (),
            kinds=(),
        )

    def kind_slots(self, kind: AgentKind) -> np.ndarray:
        """The slots of `kind`, ascending."""
        return (np.arange(self.num_envs)[:, None] * self.agents_per_env + np.array(kind.agents)).ravel()

    @property
    def num_slots(self) -> int:
        return self.num_envs * self.agents_per_env

    def group_envs(self, group: int) -> range:
        """The environments of one group. Group sizes differ by at most one."""
        return range(self.num_envs * group // self.num_groups, self.num_envs * (group + 1) // self.num_groups)

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
    match: int = 0
    """Where the pool numbers games: the number of the environment's game, the same for all its agents. Elsewhere: how
    many episodes of the slot have ended before."""
    policy: int = 0
    """The policy that acted."""


@dataclass(slots=True)
class StepBatch:
    """The results of the last actions of B slots, and the observations for the next actions.

    Same-step autoreset: where an episode ended, `obs` is the first observation of the next episode and `final_obs` the
    last observation of the old one. The first batch of a slot has reward 0 and no end.

    The arrays may be views into the pool's memory. They are valid until the next `recv`, and each row only until its
    slot is sent. Copy what must live longer.
    """

    slots: Array
    """[B] int64, ascending, without duplicates."""
    obs: dict[str, Array]
    """[B, ...] for every observation leaf."""
    reward: Array
    """[B] float32."""
    terminated: Array
    """[B] bool: the task ended the episode. Do not bootstrap."""
    truncated: Array
    """[B] bool: a limit ended the episode. Bootstrap V(`final_obs`). Never set together with `terminated`."""
    final_obs: dict[str, Array]
    """[S, ...], indexed by SLOT, not by row. Only entries of slots whose episode just ended are valid."""
    active: Array
    """[B] bool: the slot needs an action. A slot whose agent has left the game is inactive until its environment
    restarts; where agents take turns, until its next turn. The pool ignores the actions of inactive slots, and their
    transitions are not experience."""
    lost: Array
    """[B] bool: the pool replaced the simulator. The step in flight and the rest of its episode do not exist. `obs` is
    the first observation of a new episode, and the row has no reward and no end."""
    step_seconds: Array
    """[B] float32: simulation time of the step, including a reset."""
    episode: Array | None = None
    """[B] int32: the number of the game that the slot's environment plays now. Only if the pool numbers games."""

    def __len__(self) -> int:
        return len(self.slots)

    def ended(self) -> Array:
        return self.terminated | self.truncated


@runtime_checkable
class Pool(Protocol):
    """Simulators behind slots. The caller sends every received slot before it receives the slot again."""

    spec: PoolSpec
    can_restore: bool
    """Whether the pool supports `restore`."""

    def recv(
        self,
        min_slots: int | None = 1,
        max_slots: int | None = None,
        timeout: float | None = None,
        group: int | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        """Wait for `min_slots` finished slots and return up to `max_slots` ready slots, oldest first.

        `min_slots=None` is lock-step: all slots, or all slots of `group`. `first` [S] gives priorities: slots with
        lower numbers come first. `serial` and `process` pools follow it; other pools ignore it.

        After `timeout` seconds `recv` returns the slots that are ready, possibly none. Without `timeout` it waits as
        long as necessary. Dead and hung simulators still end the wait with a `SimulatorError`, or the pool replaces
        them (`StepBatch.lost`).

        Where agents take turns, `recv` does not wait for agents whose turn it is not: once no simulator is working, it
        returns what is ready, possibly nothing. The first batch of an environment has all of its slots. Later a slot
        comes back when its agent has to act, or when its episode has ended.
        """
        ...

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        """Start the next step of `slots`. `actions` is one array [B, ...], or one array per action leaf by name.

        An environment with several agents steps once all of its slots that were received are sent.
        """
        ...

    @property
    def num_in_flight(self) -> int:
        """Slots that the caller does not hold. Where agents take turns, without those that wait for a slot of their
        environment that the caller holds."""
        ...

    def wake(self) -> None:
        """End the current `recv` with an empty batch, or the next `recv` that would wait. Ready slots stay ready.

        Any thread or signal handler may call it at any time. A `serial` pool stops between two environments, and the
        next `recv` continues there. A `tensor` pool never waits. EnvPool's fastest tasks first finish the current step.
        """
        ...

    def reset(self, seed: int) -> None:
        """Abandon all episodes and restart all environments from `seed`. The caller holds no slots afterwards."""
        ...

    def take_episodes(self) -> list[Episode]:
        """Episodes that finished in batches received since the last call. Device pools synchronise only here."""
        ...

    @property
    def restarts(self) -> int:
        """How many simulators the pool has replaced."""
        return 0

    def set_reward_weights(self, slots: Array, weights: Array) -> None:
        """Weights [B, K] of reward shaping of `slots`, in the order of `spec.reward_weights`, for any slots.

        An environment reads them before its next step or reset. One that is stepping now may read some of them one step
        before the others. `reset` and `restore` keep them, and `state` has them.
        """
        raise UsageError("this pool's environments have no reward weights; serial and process pools support them")

    def state(self, timeout: float | None = None) -> bytes:
        """The exact state of every environment whose slots are all held by the caller, or wait for their turn.

        Environments are left out, with a warning, if they are in flight, cannot be saved, or do not answer within
        `timeout` seconds (default: `pool.start_timeout_seconds`). If a worker dies meanwhile, the pool replaces it, or
        the next `recv` raises. `UsageError` if no environment of this kind can be saved.
        """
        ...

    def restore(self, state: bytes) -> np.ndarray:
        """Continue from `state`. The next `recv` returns the held observations as a first batch, without rewards. Slots
        that waited for their turn still do: they come back with all that their agents got since their last turn.

        Returns the slots [int64] that `state` lacks, or has in a form that this program cannot load. They start new
        episodes with new seeds, in that first batch too. `UsageError` if none can be loaded.
        """
        ...

    def close(self) -> None:
        """End all simulators. May be called twice."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
