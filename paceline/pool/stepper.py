"""One environment stepped by the pool's contract: same-step autoreset, checked values, slot-indexed memory.

`serial` pools and the workers of `process` pools run this code, so both produce the same streams.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import SimulatorFailure
from paceline.pool.agent_steppers import ParallelStepper, TurnStepper
from paceline.pool.env_state import env_state, restore_env
from paceline.pool.finite_values import FLOAT32_MAX
from paceline.pool.protocol import Episode
from paceline.pool.shapes import is_multi_agent, is_turn_based
from paceline.pool.spaces import ActionReader, BadValue, ObservationWriter
from paceline.pool.step_values import bad_reward, scalars, single_reward
from paceline.pool.table import SlotTable

NO_EPISODES: Sequence[Episode] = ()


class GymStepper:
    """A Gymnasium environment: one slot."""

    def __init__(self, made: Any, env: int, table: SlotTable) -> None:
        self._made, self._slot, self._table = made, env, table
        self.env, self.slots = env, (env,)
        self.phase = "reset"  # the last operation: "reset" or "step"
        self.seed: int | None = None
        self.episode = self.steps = 0
        self._return = 0.0
        self._weights = table.weights_for(made, env)
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
        if self._weights is not None:
            self._weights.apply()
        stepped = self._made.step(self._read_action(slot))
        try:
            observation, reward, terminated, truncated, info = stepped
        except (TypeError, ValueError):
            raise wrong_result("step", stepped, STEP) from None
        try:
            reward = float(reward)
        except (TypeError, ValueError):
            reward = single_reward(reward)
        if not -FLOAT32_MAX <= reward <= FLOAT32_MAX:  # not in a function, whose call would double the cost
            raise bad_reward(reward)
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
        finished = Episode(slot, self._return + reward, self.steps + 1, scalars(info), self.episode)
        self.episode += 1
        self._begin(None)
        return [finished]

    def _begin(self, seed: int | None) -> None:
        self.phase = "reset"
        self.steps, self._return = 0, 0.0
        if self._weights is not None:
            self._weights.apply()
        begun = self._made.reset(seed=seed)
        # An observation of two parts, without an info, must not be taken for both.
        if not isinstance(begun, tuple) or len(begun) != 2:
            raise wrong_result("reset", begun, RESET)
        if not isinstance(begun[1], Mapping):
            raise BadValue(
                f"the second value of reset is a {type(begun[1]).__name__}; Gymnasium's returns {RESET}, and info is a "
                "dictionary"
            )
        observation = begun[0]
        self._write_obs(observation, self._slot)
        self._table.episode[self._slot] = self.episode
        self._table.step[self._slot] = 0

    def state(self) -> bytes:
        return pickle.dumps((env_state(self._made), self.seed, self.episode, self.steps, self._return))

    def restore(self, state: bytes) -> None:
        inner, self.seed, self.episode, self.steps, self._return = pickle.loads(state)
        restore_env(self._made, inner)
        if self._weights is not None:
            self._weights.forget()

    def close(self) -> None:
        self._made.close()


def wrong_result(method: str, result: Any, wanted: str) -> BadValue:
    """The error for a method that does not return what Gymnasium wants."""
    count = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
    return BadValue(
        f"{method} returned {count}; Gymnasium's returns {wanted}. An environment of the old Gym returns fewer values: "
        "wrap it, for example with the package shimmy"
    )


STEP = "(observation, reward, terminated, truncated, info)"
RESET = "(observation, info)"

Stepper = GymStepper | ParallelStepper | TurnStepper
"""One environment and its slots."""


def make_stepper(made: Any, env: int, table: SlotTable) -> Stepper:
    """The stepper of the environment object `made`, number `env` of its pool."""
    if is_turn_based(made):
        return TurnStepper(made, env, table)
    return ParallelStepper(made, env, table) if is_multi_agent(made) else GymStepper(made, env, table)


def failure_of(stepper: Stepper, error: BaseException) -> SimulatorFailure:
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
