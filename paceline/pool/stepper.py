"""One environment stepped by the pool's contract: same-step autoreset, checked values, slot-indexed memory.

`serial` pools and the workers of `process` pools run this code, so both produce the same streams.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from paceline.errors import SimulatorFailure, UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.finite_values import FLOAT32_MAX, describe
from paceline.pool.protocol import Episode, PoolSpec
from paceline.pool.spaces import ActionReader, BadValue, ObservationWriter
from paceline.pool.table import SlotTable

NO_EPISODES: Sequence[Episode] = ()


class EnvShape(NamedTuple):
    """The spaces of every slot of an environment, and the number of its slots."""

    observation_space: spaces.Space
    action_space: spaces.Space
    num_agents: int


def env_shape(env: Any) -> EnvShape:
    if not hasattr(env, "possible_agents"):
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), spaces.Space):
                raise UsageError(f"{env!r} has no {name} that is a Gymnasium space")
        return EnvShape(env.observation_space, env.action_space, 1)
    first, *others = env.possible_agents
    pair = env.observation_space(first), env.action_space(first)
    for agent in others:
        if (env.observation_space(agent), env.action_space(agent)) != pair:
            raise UsageError(
                f"agents {first!r} and {agent!r} of {env} have different spaces; "
                "make them equal with SuperSuit's pad_observations_v0 and pad_action_space_v0"
            )
    return EnvShape(*pair, len(env.possible_agents))


def make_spec(shapes: Mapping[int, EnvShape], config: PoolConfig, frameskip: int, num_workers: int) -> PoolSpec:
    """The spec of a pool. `shapes` are those of one or more of its environments, which must be equal."""
    (first, shape), *others = shapes.items()
    for env, other in others:
        if other != shape:
            raise UsageError(
                f"environments of one pool must have equal spaces: environment {first} has {shape[:2]}, "
                f"environment {env} has {other[:2]}"
            )
    return PoolSpec(
        observation_space=shape.observation_space,
        action_space=shape.action_space,
        num_envs=config.num_envs,
        agents_per_env=shape.num_agents,
        frameskip=frameskip,
        num_groups=config.groups,
        envs_per_worker=config.num_envs // num_workers,
    )


class GymStepper:
    """A Gymnasium environment: one slot."""

    def __init__(self, made: Any, env: int, table: SlotTable) -> None:
        self._made, self._slot, self._table = made, env, table
        self.env, self.slots = env, (env,)
        self.phase = "reset"  # the last operation: "reset" or "step"
        self.seed: int | None = None
        self.episode = self.steps = 0
        self._return = 0.0
        self._write_obs = ObservationWriter(made.observation_space, table.obs).write
        self._write_final_obs = ObservationWriter(made.observation_space, table.final_obs).write
        self._read_action = ActionReader(made.action_space, table.actions).read
        self._reward, self._terminated, self._truncated, self._step_cells = map(
            table.cells, ("reward", "terminated", "truncated", "step")
        )

    def reset(self, seed: int | None, episode: int = 0) -> None:
        """Start episode number `episode` and write its first observation to the table."""
        if seed is not None:
            self.seed = seed
        self.episode = episode
        table, slot = self._table, self._slot
        self._begin(seed)
        table.reward[slot] = 0.0
        table.terminated[slot] = table.truncated[slot] = False
        table.active[slot] = True

    def step(self) -> Sequence[Episode]:
        """Step with the action in the table. Where the episode ends, also start the next one."""
        self.phase = "step"
        slot = self._slot
        observation, reward, terminated, truncated, info = self._made.step(self._read_action(slot))
        reward = float(reward)
        if not -FLOAT32_MAX <= reward <= FLOAT32_MAX:  # not in a function, whose call would double the cost
            raise _bad_reward(reward)
        if terminated or truncated:
            return self._end(observation, reward, bool(terminated), info)
        self._write_obs(observation, slot)
        self._return += reward
        self.steps += 1
        self._reward[slot] = reward
        self._terminated[slot] = self._truncated[slot] = False
        self._step_cells[slot] = self.steps
        return NO_EPISODES

    def _end(self, observation: Any, reward: float, terminated: bool, info: Mapping[str, Any]) -> list[Episode]:
        """Finish the episode and start the next one."""
        slot = self._slot
        self._write_final_obs(observation, slot)
        self._reward[slot] = reward
        self._terminated[slot] = terminated
        self._truncated[slot] = not terminated
        finished = Episode(slot, self._return + reward, self.steps + 1, scalars(info))
        self.episode += 1
        self._begin(None)
        return [finished]

    def _begin(self, seed: int | None) -> None:
        self.phase = "reset"
        self.steps, self._return = 0, 0.0
        observation, _ = self._made.reset(seed=seed)
        self._write_obs(observation, self._slot)
        self._table.episode[self._slot] = self.episode
        self._table.step[self._slot] = 0

    def state(self) -> bytes:
        return pickle.dumps((env_state(self._made), self.seed, self.episode, self.steps, self._return))

    def restore(self, state: bytes) -> None:
        inner, self.seed, self.episode, self.steps, self._return = pickle.loads(state)
        restore_env(self._made, inner)

    def close(self) -> None:
        self._made.close()


class ParallelStepper:
    """A PettingZoo parallel environment: one slot for each of `possible_agents`, in that order.

    The slot of an agent that has left the game is inactive until the environment restarts. It restarts when no agent is
    left. `truncated` and `terminated` belong to the agent, not to the environment.
    """

    def __init__(self, made: Any, env: int, table: SlotTable) -> None:
        self._made, self._table = made, table
        observation_space, action_space, num_agents = env_shape(made)
        self.env, self.slots = env, tuple(range(env * num_agents, (env + 1) * num_agents))
        self.phase = "reset"
        self.seed: int | None = None
        self.episode = self.steps = 0
        self._slot_of = dict(zip(made.possible_agents, self.slots, strict=True))
        self._obs = ObservationWriter(observation_space, table.obs)
        self._final_obs = ObservationWriter(observation_space, table.final_obs)
        self._action = ActionReader(action_space, table.actions)
        self._returns = dict.fromkeys(self.slots, 0.0)
        self._lengths = dict.fromkeys(self.slots, 0)

    def reset(self, seed: int | None, episode: int = 0) -> None:
        if seed is not None:
            self.seed = seed
        self.episode = episode
        self._clear_transition()
        self._begin(seed)

    def step(self) -> list[Episode]:
        self.phase = "step"
        playing = list(self._made.agents)
        self._clear_transition()
        actions = {agent: self._action.read(self._slot_of[agent]) for agent in playing}
        observations, rewards, terminations, truncations, infos = self._made.step(actions)
        finished = []
        for agent in playing:
            slot = self._slot_of[agent]
            reward = float(rewards[agent])
            if not -FLOAT32_MAX <= reward <= FLOAT32_MAX:
                raise self._with_agent(agent, _bad_reward(reward))
            self._table.reward[slot] = reward
            self._returns[slot] += reward
            self._lengths[slot] += 1
            terminated = bool(terminations[agent])
            if not terminated and not truncations[agent]:
                self._write(self._obs, observations, agent)
                continue
            self._table.terminated[slot] = terminated
            self._table.truncated[slot] = not terminated
            self._table.active[slot] = False
            # An inactive slot keeps the last observation of its agent: valid data that is never experience.
            self._write(self._final_obs, observations, agent)
            self._write(self._obs, observations, agent)
            finished.append(Episode(slot, self._returns[slot], self._lengths[slot], scalars(infos.get(agent, {}))))
        self._activate_new_agents(observations)
        self.steps += 1
        self._table.step[list(self.slots)] = self.steps
        if not self._made.agents:
            self.episode += 1
            self._begin(None)
        return finished

    def _activate_new_agents(self, observations: Mapping[Any, Any]) -> None:
        for agent in self._made.agents:
            slot = self._slot_of[agent]
            if not self._table.active[slot]:
                self._write(self._obs, observations, agent)
                self._table.active[slot] = True
                self._returns[slot], self._lengths[slot] = 0.0, 0

    def _write(self, writer: ObservationWriter, observations: Mapping[Any, Any], agent: Any) -> None:
        try:
            writer.write(observations[agent], self._slot_of[agent])
        except BadValue as error:
            raise self._with_agent(agent, error) from None

    def _with_agent(self, agent: Any, error: BadValue) -> BadValue:
        """`error` with the name of the agent. A `SimulatorFailure` only names all slots of the environment."""
        return BadValue(f"agent {agent!r} (slot {self._slot_of[agent]}): {error}")

    def _clear_transition(self) -> None:
        slots = slice(self.slots[0], self.slots[-1] + 1)
        self._table.reward[slots] = 0.0
        self._table.terminated[slots] = self._table.truncated[slots] = False

    def _begin(self, seed: int | None) -> None:
        self.phase = "reset"
        self.steps = 0
        observations, _ = self._made.reset(seed=seed)
        for agent, slot in self._slot_of.items():
            playing = agent in observations
            self._table.active[slot] = playing
            if playing:
                self._write(self._obs, observations, agent)
            self._returns[slot], self._lengths[slot] = 0.0, 0
            self._table.episode[slot] = self.episode
            self._table.step[slot] = 0

    def state(self) -> bytes:
        inner = env_state(self._made)
        return pickle.dumps((inner, self.seed, self.episode, self.steps, self._returns, self._lengths))

    def restore(self, state: bytes) -> None:
        inner, self.seed, self.episode, self.steps, self._returns, self._lengths = pickle.loads(state)
        restore_env(self._made, inner)

    def close(self) -> None:
        self._made.close()


Stepper = GymStepper | ParallelStepper
"""One environment and its slots."""


def make_stepper(made: Any, env: int, table: SlotTable) -> Stepper:
    """The stepper of the environment object `made`, number `env` of its pool."""
    return ParallelStepper(made, env, table) if hasattr(made, "possible_agents") else GymStepper(made, env, table)


def failure_of(stepper: Stepper, error: Exception) -> SimulatorFailure:
    """The description of `error`, which `reset` or `step` raised."""
    bad_value = isinstance(error, BadValue)
    return SimulatorFailure(
        cause=str(error) if bad_value else f"{type(error).__name__}: {error}",
        phase=stepper.phase,
        envs=(stepper.env,),
        slots=stepper.slots,
        seed=stepper.seed,
        episode=stepper.episode,
        step=stepper.steps,
        traceback="" if bad_value else "".join(traceback.format_exception(error)),
    )


def _bad_reward(reward: float) -> BadValue:
    return BadValue(f"the reward is {describe(reward)}")


def scalars(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in an `info`."""
    return {
        str(key): float(value)
        for key, value in info.items()
        if isinstance(value, bool | int | float | np.number | np.bool_)
        or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf")
    }


def env_state(env: Any) -> bytes:
    """The exact state of an environment.

    An environment may provide it (`get_state() -> object` with `set_state(object)`). Otherwise the state is the
    attributes of every layer of wrappers. Pickling the environment would be wrong, because Gymnasium's `EzPickle`
    environments (all of MuJoCo's and Box2D's) come back freshly made.
    """
    layers = []
    for layer in _layers(env):
        if layer is env.unwrapped and hasattr(layer, "get_state") and hasattr(layer, "set_state"):
            layers.append(("state", layer.get_state()))
        else:
            layers.append(("attributes", {key: value for key, value in vars(layer).items() if key not in _NOT_STATE}))
    try:
        return pickle.dumps(layers)
    except Exception as error:
        raise UsageError(
            f"the state of {env} cannot be saved ({type(error).__name__}: {error}); "
            "give the environment get_state() and set_state(state)"
        ) from error


_NOT_STATE = ("env", "par_env", "spec", "_cached_spec", "mujoco_renderer", "viewer", "screen", "clock", "surf")


def restore_env(env: Any, state: bytes) -> None:
    """Put `env`, freshly made by the same factory, into `state`."""
    for layer, (kind, value) in zip(_layers(env), pickle.loads(state), strict=True):
        if kind == "state":
            layer.set_state(value)
        else:
            vars(layer).update(value)


def _layers(env: Any) -> list[Any]:
    layers = [env]
    while layers[-1] is not env.unwrapped and hasattr(layers[-1], "env"):
        layers.append(layers[-1].env)
    return layers
