"""One environment stepped by the pool's contract: same-step autoreset, checked values, slot-indexed memory.

`serial` pools and the workers of `process` pools run this same code, which is why they give the same streams.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from paceline.errors import Failure, UsageError
from paceline.pool.finite_values import FLOAT32_MAX, describe
from paceline.pool.protocol import Episode
from paceline.pool.spaces import ActionReader, BadValue, ObservationWriter
from paceline.pool.table import SlotTable

NOTHING: Sequence[Episode] = ()


class Stepper(Protocol):
    """One environment and its slots."""

    @property
    def slots(self) -> tuple[int, ...]: ...

    def reset(self, seed: int | None, episode: int = 0) -> None:
        """Start episode number `episode`; its first observations are in the table afterwards."""
        ...

    def step(self) -> Sequence[Episode]:
        """One step with the actions in the table, and the next episode's start where this one ended."""
        ...

    def failure(self, error: Exception) -> Failure:
        """`error`, which `reset` or `step` raised, in the user's terms."""
        ...

    def state(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...

    def close(self) -> None: ...


def agents_of(env: Any) -> int:
    """How many slots an environment has: its possible agents, or one."""
    return len(env.possible_agents) if hasattr(env, "possible_agents") else 1


def spaces_of(env: Any) -> tuple[spaces.Space, spaces.Space]:
    """The observation and action space that every slot of an environment has."""
    if not hasattr(env, "possible_agents"):
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), spaces.Space):
                raise UsageError(f"{env!r} has no {name} that is a Gymnasium space")
        return env.observation_space, env.action_space
    first, *others = env.possible_agents
    pair = env.observation_space(first), env.action_space(first)
    for agent in others:
        if (env.observation_space(agent), env.action_space(agent)) != pair:
            raise UsageError(
                f"agents {first!r} and {agent!r} of {env} have different spaces; "
                "make them equal with SuperSuit's pad_observations_v0 and pad_action_space_v0"
            )
    return pair


def make_stepper(env: Any, index: int, table: SlotTable) -> Stepper:
    """The stepper for environment number `index` of a pool."""
    return ParallelStepper(env, index, table) if hasattr(env, "possible_agents") else GymStepper(env, index, table)


class GymStepper:
    """A Gymnasium environment: one slot."""

    def __init__(self, env: Any, index: int, table: SlotTable) -> None:
        self._env, self._index, self._slot, self._table = env, index, index, table
        self.slots = (index,)
        self._write_obs = ObservationWriter(env.observation_space, table.obs).write
        self._write_final_obs = ObservationWriter(env.observation_space, table.final_obs).write
        self._read_action = ActionReader(env.action_space, table.actions).read
        self._reward, self._terminated, self._truncated, self._steps = map(
            table.cells, ("reward", "terminated", "truncated", "step")
        )
        self._seed: int | None = None
        self._phase = "reset"
        self._episode = self._step = 0
        self._return = 0.0

    def reset(self, seed: int | None, episode: int = 0) -> None:
        if seed is not None:
            self._seed = seed
        self._episode = episode
        table, slot = self._table, self._slot
        self._begin(seed)
        table.reward[slot] = 0.0
        table.terminated[slot] = table.truncated[slot] = False
        table.active[slot] = True

    def step(self) -> Sequence[Episode]:
        self._phase = "step"
        slot = self._slot
        observation, reward, terminated, truncated, info = self._env.step(self._read_action(slot))
        reward = float(reward)
        if not -FLOAT32_MAX <= reward <= FLOAT32_MAX:  # here and not in a function: this is half of its cost
            raise _bad_reward(reward)
        if terminated or truncated:
            return self._end(observation, reward, bool(terminated), info)
        self._write_obs(observation, slot)
        self._return += reward
        self._step += 1
        self._reward[slot] = reward
        self._terminated[slot] = self._truncated[slot] = False
        self._steps[slot] = self._step
        return NOTHING

    def _end(self, observation: Any, reward: float, terminated: bool, info: Mapping[str, Any]) -> list[Episode]:
        """The step that ended an episode, and the start of the next."""
        slot = self._slot
        self._write_final_obs(observation, slot)
        self._reward[slot] = reward
        self._terminated[slot] = terminated
        self._truncated[slot] = not terminated
        finished = Episode(slot, self._return + reward, self._step + 1, scalars(info))
        self._episode += 1
        self._begin(None)
        return [finished]

    def _begin(self, seed: int | None) -> None:
        self._phase = "reset"
        self._step, self._return = 0, 0.0
        observation, _ = self._env.reset(seed=seed)
        self._write_obs(observation, self._slot)
        self._table.episode[self._slot] = self._episode
        self._table.step[self._slot] = 0

    def failure(self, error: Exception) -> Failure:
        return _failure(error, self._phase, self._index, self.slots, self._seed, self._episode, self._step)

    def state(self) -> bytes:
        return pickle.dumps((env_state(self._env), self._seed, self._episode, self._step, self._return))

    def restore(self, state: bytes) -> None:
        inner, self._seed, self._episode, self._step, self._return = pickle.loads(state)
        restore_env(self._env, inner)

    def close(self) -> None:
        self._env.close()


class ParallelStepper:
    """A PettingZoo parallel environment: one slot for each of `possible_agents`, in that order.

    An agent that is out of the game leaves its slot inactive until the environment restarts, which it does as soon as
    nobody is left. `truncated` and `terminated` belong to the agent, not to the environment.
    """

    def __init__(self, env: Any, index: int, table: SlotTable) -> None:
        self._env, self._index, self._table = env, index, table
        agents = list(env.possible_agents)
        self.slots = tuple(range(index * len(agents), (index + 1) * len(agents)))
        self._slot_of = dict(zip(agents, self.slots, strict=True))
        observation_space, action_space = spaces_of(env)
        self._obs = ObservationWriter(observation_space, table.obs)
        self._final_obs = ObservationWriter(observation_space, table.final_obs)
        self._action = ActionReader(action_space, table.actions)
        self._seed: int | None = None
        self._phase = "reset"
        self._episode = self._step = 0
        self._returns = dict.fromkeys(self.slots, 0.0)
        self._lengths = dict.fromkeys(self.slots, 0)

    def reset(self, seed: int | None, episode: int = 0) -> None:
        if seed is not None:
            self._seed = seed
        self._episode = episode
        self._clear_transition()
        self._begin(seed)

    def step(self) -> list[Episode]:
        self._phase = "step"
        playing = list(self._env.agents)
        self._clear_transition()
        actions = {agent: self._action.read(self._slot_of[agent]) for agent in playing}
        observations, rewards, terminations, truncations, infos = self._env.step(actions)
        finished = []
        for agent in playing:
            slot = self._slot_of[agent]
            reward = float(rewards[agent])
            if not -FLOAT32_MAX <= reward <= FLOAT32_MAX:
                raise self._named(agent, _bad_reward(reward))
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
            # Inactive slots keep showing the last observation of their agent: valid data, and never experience.
            self._write(self._final_obs, observations, agent)
            self._write(self._obs, observations, agent)
            finished.append(Episode(slot, self._returns[slot], self._lengths[slot], scalars(infos.get(agent, {}))))
        self._admit(observations)
        self._step += 1
        self._table.step[list(self.slots)] = self._step
        if not self._env.agents:
            self._episode += 1
            self._begin(None)
        return finished

    def _admit(self, observations: Mapping[Any, Any]) -> None:
        """Agents that joined during this step have their first observation; their slots come alive."""
        for agent in self._env.agents:
            slot = self._slot_of[agent]
            if not self._table.active[slot]:
                self._write(self._obs, observations, agent)
                self._table.active[slot] = True
                self._returns[slot], self._lengths[slot] = 0.0, 0

    def _write(self, writer: ObservationWriter, observations: Mapping[Any, Any], agent: Any) -> None:
        try:
            writer.write(observations[agent], self._slot_of[agent])
        except BadValue as error:
            raise self._named(agent, error) from None

    def _named(self, agent: Any, error: BadValue) -> BadValue:
        """`error` with the agent that it concerns: a failure names all slots of its environment."""
        return BadValue(f"agent {agent!r} (slot {self._slot_of[agent]}): {error}")

    def _clear_transition(self) -> None:
        slots = slice(self.slots[0], self.slots[-1] + 1)
        self._table.reward[slots] = 0.0
        self._table.terminated[slots] = False
        self._table.truncated[slots] = False

    def _begin(self, seed: int | None) -> None:
        self._phase = "reset"
        self._step = 0
        observations, _ = self._env.reset(seed=seed)
        for agent, slot in self._slot_of.items():
            playing = agent in observations
            self._table.active[slot] = playing
            if playing:
                self._write(self._obs, observations, agent)
            self._returns[slot], self._lengths[slot] = 0.0, 0
            self._table.episode[slot] = self._episode
            self._table.step[slot] = 0

    def failure(self, error: Exception) -> Failure:
        return _failure(error, self._phase, self._index, self.slots, self._seed, self._episode, self._step)

    def state(self) -> bytes:
        inner = env_state(self._env)
        return pickle.dumps((inner, self._seed, self._episode, self._step, self._returns, self._lengths))

    def restore(self, state: bytes) -> None:
        inner, self._seed, self._episode, self._step, self._returns, self._lengths = pickle.loads(state)
        restore_env(self._env, inner)

    def close(self) -> None:
        self._env.close()


def _bad_reward(reward: float) -> BadValue:
    return BadValue(f"the reward is {describe(reward, ())}")


def _failure(
    error: Exception, phase: str, env: int, slots: tuple[int, ...], seed: int | None, episode: int, step: int
) -> Failure:
    text = "" if isinstance(error, BadValue) else "".join(traceback.format_exception(error))
    cause = str(error) if isinstance(error, BadValue) else f"{type(error).__name__}: {error}"
    return Failure(
        cause=cause, phase=phase, envs=(env,), slots=slots, seed=seed, episode=episode, step=step, traceback=text
    )


def scalars(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an `info`, which is all that is kept of an episode's last one."""
    return {
        str(key): float(value)
        for key, value in info.items()
        if isinstance(value, bool | int | float | np.number | np.bool_)
        or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf")
    }


def env_state(env: Any) -> bytes:
    """Everything an environment needs to continue exactly.

    An environment may say it itself (`get_state() -> object` with `set_state(object)`). Otherwise the attributes of
    every layer of wrappers are taken as they are: pickling the object would be wrong, since Gymnasium's `EzPickle`
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
    """Put `env`, freshly made by the same factory, where `state` was taken."""
    layers = pickle.loads(state)
    for layer, (kind, value) in zip(_layers(env), layers, strict=True):
        if kind == "state":
            layer.set_state(value)
        else:
            vars(layer).update(value)


def _layers(env: Any) -> list[Any]:
    layers = [env]
    while layers[-1] is not env.unwrapped and hasattr(layers[-1], "env"):
        layers.append(layers[-1].env)
    return layers
