"""EnvPool's states as parcels of rows.

Legend: S slots of the pool, B rows of one EnvPool state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.envs.envpool import EnvPoolTask, config_of
from paceline.errors import Failure, SimulatorError
from paceline.pool.finite_values import all_finite, describe, first_bad
from paceline.pool.parcels import Parcel
from paceline.pool.protocol import PoolSpec
from paceline.pool.seeds import env_seed

State = Sequence[np.ndarray]
"""What EnvPool's `_recv` returns: one array [B, ...] per key of the task's state, in memory that is never reused."""


class RowReader:
    """Reads EnvPool's states, which know two kinds of rows: first observations of an episode, and outcomes of a step.

    `final_obs` ([S, ...] by name) is written at every end of an episode. Rewards and observations that are not finite are
    refused; `seed` is the pool's, and is named then.
    """

    def __init__(self, task: EnvPoolTask, task_spec: Any, spec: PoolSpec, seed: int) -> None:
        keys = list(task_spec._state_keys)
        self._seed = seed
        self._episode = [0] * spec.num_slots
        self.final_obs = {leaf.name: np.zeros((spec.num_slots, *leaf.shape), leaf.dtype) for leaf in spec.obs}
        self._obs = [
            (leaf, [keys.index(key) for key in parts], leaf.offset if np.any(leaf.offset) else None)
            for leaf, parts in zip(spec.obs, _obs_keys(task, spec, keys), strict=True)
        ]
        self._floating = [leaf.name for leaf in spec.obs if leaf.is_floating]
        self._reward, self._done, self._trunc = (keys.index(key) for key in ("reward", "done", "trunc"))
        self._elapsed, self._env_id = keys.index("elapsed_step"), keys.index("info:env_id")
        self._infos = [
            (key.removeprefix("info:"), index)
            for index, (key, (_, shape, *_)) in enumerate(zip(keys, task_spec._state_spec, strict=True))
            if (key == "elapsed_step" or key.startswith("info:"))
            and key not in ("info:env_id", "info:players.env_id")
            and shape in ([], [-1])
        ]
        # Atari alone tells the reward before it was clipped, which is what a return is made of; and whether the game is
        # over, which EnvPool's flags hide when that happens on the last step before the time limit. Its count of steps
        # goes on where a lost life ended the episode, and has to be taken from where the episode began.
        atari = "reward_clip" in config_of(task_spec)
        self._score = keys.index("info:reward") if atari else self._reward
        self._game_over = keys.index("info:terminated") if atari else None
        self._begun = np.zeros(spec.num_slots, np.int32) if atari else None

    def env(self, state: State) -> int:
        """Whose the only row of `state` is."""
        return int(state[self._env_id][0])

    def first(self, state: State, slots: np.ndarray) -> Parcel:
        """The rows with which a stream begins."""
        nothing, never = np.zeros(len(slots), np.float32), np.zeros(len(slots), bool)
        self._begin(state, slots)
        obs = self._observations(state)
        self._check(obs, slots)
        info = {name: state[index] for name, index in self._infos}
        return Parcel(slots, obs, nothing, never, never, never, nothing, nothing, state[self._elapsed], info)

    def ended(self, state: State) -> np.ndarray:
        """Which rows of the outcome of a step ended an episode."""
        return state[self._done].nonzero()[0]

    def step(self, state: State, slots: np.ndarray, ended: np.ndarray) -> Parcel:
        """The outcome of a step. Observations of rows in `ended` are the last of their episodes: see `restart`."""
        reward, score, length = state[self._reward], state[self._score], state[self._elapsed]
        if self._begun is not None:
            length = length - self._begun[slots]
        for values in (reward,) if score is reward else (reward, score):
            if not all_finite(values):
                (row,) = first_bad(values)
                raise self._error(f"the reward is {describe(float(values[row]))}", row, slots, length)
        truncated = state[self._trunc]
        if self._game_over is not None and len(ended):
            truncated = truncated & (state[self._game_over] == 0)
        obs = self._observations(state)
        self._check(obs, slots, length)
        if len(ended):
            for name, array in obs.items():
                self.final_obs[name][slots[ended]] = array[ended]
        info = {name: state[index] for name, index in self._infos}
        done = state[self._done]
        terminated = done ^ truncated  # EnvPool truncates only what it calls done
        return Parcel(slots, obs, reward, done, terminated, truncated, reward, score, length, info)

    def restart(self, parcel: Parcel, ended: np.ndarray, state: State) -> None:
        """Put the first observations of the next episodes into the rows `ended` of `parcel`."""
        slots = parcel.slots[ended]
        self._begin(state, slots)
        for slot in slots.tolist():
            self._episode[slot] += 1
        obs = self._observations(state)
        self._check(obs, slots)
        for name, values in obs.items():
            parcel.obs[name][ended] = values

    def _begin(self, state: State, slots: np.ndarray) -> None:
        if self._begun is not None:
            self._begun[slots] = state[self._elapsed]

    def _observations(self, state: State) -> dict[str, np.ndarray]:
        return {leaf.name: self._observation(state, leaf, parts, offset) for leaf, parts, offset in self._obs}

    def _observation(self, state: State, leaf: Any, parts: list[int], offset: Any) -> np.ndarray:
        value = state[parts[0]]
        if len(parts) > 1:
            value = np.concatenate([state[part].reshape(len(value), -1) for part in parts], axis=1)
        if value.dtype != leaf.dtype:
            value = value.astype(leaf.dtype)
        if value.shape[1:] != leaf.shape:  # a number, which EnvPool gives a dimension of one
            value = value.reshape(-1, *leaf.shape)
        return value if offset is None else value - offset

    def _check(self, obs: dict[str, np.ndarray], slots: np.ndarray, length: np.ndarray | None = None) -> None:
        """Refuse observations that are not finite: those of a step, with its `length`, or the first of an episode."""
        for name in self._floating:
            if not all_finite(obs[name]):
                row, *index = first_bad(obs[name])
                what = describe(float(obs[name][row, *index]), tuple(index))
                raise self._error(f"observation {name!r} is {what}", row, slots, length)

    def _error(self, cause: str, row: int, slots: np.ndarray, length: np.ndarray | None) -> SimulatorError:
        slot = int(slots[row])
        return SimulatorError(
            Failure(
                cause=cause,
                phase="reset" if length is None else "step",
                envs=(slot,),
                slots=(slot,),
                seed=env_seed(self._seed, slot),
                episode=self._episode[slot],
                step=0 if length is None else int(length[row]) - 1,
            )
        )


def _obs_keys(task: EnvPoolTask, spec: PoolSpec, keys: list[str]) -> list[list[str]]:
    """EnvPool's keys of every observation leaf: one, or those that are joined."""
    observed = [key for key in keys if key == "obs" or key.startswith("obs:")]
    by_name = {key.removeprefix("obs:").replace(":", "."): key for key in observed}
    if task.flat:
        return [[by_name[name] for name in task.vectors or by_name]]
    if not isinstance(spec.observation_space, spaces.Dict):
        return [[key] for key in observed]  # a single array is "obs" to us, whatever EnvPool calls it
    return [[by_name[leaf.name]] for leaf in spec.obs]
