"""EnvPool's states as rows, and the queue of finished rows between EnvPool and the caller.

Usually the caller takes exactly the rows that arrived together, and then nothing is copied.

Legend: S slots of the pool, B rows of one EnvPool state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.envs.envpool import EnvPoolTask, config_of
from paceline.errors import SimulatorError, SimulatorFailure
from paceline.pool.arguments import chosen_groups, slots_to_wait_for
from paceline.pool.finite_values import all_finite, describe, first_bad
from paceline.pool.protocol import PoolSpec
from paceline.pool.seeds import env_seed

State = Sequence[np.ndarray]
"""The result of EnvPool's `_recv`: one array [B, ...] per key of the task's state. Their memory is not reused."""


@dataclass(slots=True)
class FinishedRows:
    """Rows that finished together. All arrays are [B, ...]; dictionaries hold such arrays by name."""

    slots: np.ndarray
    """int64, ascending."""
    obs: dict[str, np.ndarray]
    reward: np.ndarray
    done: np.ndarray
    """Terminated or truncated."""
    terminated: np.ndarray
    truncated: np.ndarray
    step_seconds: np.ndarray
    score: np.ndarray
    """What the row adds to the return of its episode."""
    length: np.ndarray
    """Steps of the row's episode, including this one."""
    info: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.slots)

    def rows(self, which: slice | np.ndarray) -> FinishedRows:
        return _combine([self], lambda arrays: arrays[0][which])

    @classmethod
    def merge(cls, parts: Sequence[FinishedRows]) -> FinishedRows:
        """All rows of `parts`, by ascending slot."""
        if len(parts) == 1:
            return parts[0]
        merged = _combine(parts, np.concatenate)
        return merged.rows(np.argsort(merged.slots))


def _combine(parts: Sequence[FinishedRows], combine: Callable[[list[np.ndarray]], np.ndarray]) -> FinishedRows:
    """Rows whose every array is `combine` of the arrays of `parts`."""
    columns: list[Any] = []
    for field in fields(FinishedRows):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], dict):
            columns.append({name: combine([value[name] for value in values]) for name in values[0]})
        else:
            columns.append(combine(values))
    return FinishedRows(*columns)


class ReadyQueue:
    """Finished rows of every group, oldest first, and the number of rows still in flight."""

    def __init__(self, group_sizes: Sequence[int]) -> None:
        self._sizes = list(group_sizes)
        self._rows: list[deque[FinishedRows]] = [deque() for _ in self._sizes]
        self._ready = [0] * len(self._sizes)
        self._in_flight = list(self._sizes)

    def wanted(self, min_slots: int | None, max_slots: int | None, group: int | None) -> int:
        """How many slots a `recv` with these arguments waits for. Raises for bad arguments."""
        size = coming = 0
        for g in chosen_groups(group, len(self._sizes)):
            size += self._sizes[g]
            coming += self._ready[g] + self._in_flight[g]
        return slots_to_wait_for(min_slots, max_slots, size, size - coming)

    def num_ready(self, group: int | None) -> int:
        return sum(self._ready) if group is None else self._ready[group]

    def expect(self, group: int, count: int) -> bool:
        """Expect `count` more rows of `group`. Returns whether no other rows of it are in flight."""
        self._in_flight[group] += count
        return self._in_flight[group] == count

    def put(self, group: int, rows: FinishedRows) -> None:
        self._rows[group].append(rows)
        self._ready[group] += len(rows)
        self._in_flight[group] -= len(rows)

    def take(self, max_slots: int | None, group: int | None) -> list[FinishedRows]:
        """Up to `max_slots` ready rows, the oldest of each group first."""
        left = sum(self._sizes) if max_slots is None else max_slots
        taken: list[FinishedRows] = []
        for g in chosen_groups(group, len(self._sizes)):
            queue = self._rows[g]
            while queue and left:
                rows = queue.popleft()
                if len(rows) > left:
                    queue.appendleft(rows.rows(slice(left, None)))
                    rows = rows.rows(slice(0, left))
                taken.append(rows)
                left -= len(rows)
                self._ready[g] -= len(rows)
        return taken


class RowReader:
    """Reads EnvPool's states. Their rows are first observations of an episode, or outcomes of a step.

    `final_obs` ([S, ...] by name) is written at every end of an episode. Rewards and observations that are not finite
    are errors, which name the seed that follows from the pool's `seed`.
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
        # Only Atari provides the unclipped reward, for the return, and whether the game is over. EnvPool's flags hide
        # the latter if it happens on the last step before the time limit. Atari's step count continues after a lost
        # life, so the count at the start of the episode is subtracted.
        atari = "reward_clip" in config_of(task_spec)
        self._score = keys.index("info:reward") if atari else self._reward
        self._game_over = keys.index("info:terminated") if atari else None
        self._begun = np.zeros(spec.num_slots, np.int32) if atari else None

    def env(self, state: State) -> int:
        """The environment of the only row of `state`."""
        return int(state[self._env_id][0])

    def first(self, state: State, slots: np.ndarray) -> FinishedRows:
        """The first rows of `slots`."""
        zeros, never = np.zeros(len(slots), np.float32), np.zeros(len(slots), bool)
        obs = self._first_obs(state, slots)
        info = {name: state[index] for name, index in self._infos}
        return FinishedRows(slots, obs, zeros, never, never, never, zeros, zeros, state[self._elapsed], info)

    def ended(self, state: State) -> np.ndarray:
        """The rows that ended an episode."""
        return state[self._done].nonzero()[0]

    def step(self, state: State, slots: np.ndarray, ended: np.ndarray) -> FinishedRows:
        """The outcome of a step. Rows in `ended` still have the last observation of their episode: see `restart`."""
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
        return FinishedRows(slots, obs, reward, done, terminated, truncated, reward, score, length, info)

    def restart(self, rows: FinishedRows, ended: np.ndarray, state: State) -> None:
        """Write the first observations of the next episodes, in `state`, to the rows `ended` of `rows`."""
        slots = rows.slots[ended]
        for slot in slots.tolist():
            self._episode[slot] += 1
        for name, values in self._first_obs(state, slots).items():
            rows.obs[name][ended] = values

    def _first_obs(self, state: State, slots: np.ndarray) -> dict[str, np.ndarray]:
        if self._begun is not None:
            self._begun[slots] = state[self._elapsed]
        obs = self._observations(state)
        self._check(obs, slots)
        return obs

    def _observations(self, state: State) -> dict[str, np.ndarray]:
        return {leaf.name: self._observation(state, leaf, parts, offset) for leaf, parts, offset in self._obs}

    def _observation(self, state: State, leaf: Any, parts: list[int], offset: Any) -> np.ndarray:
        value = state[parts[0]]
        if len(parts) > 1:
            value = np.concatenate([state[part].reshape(len(value), -1) for part in parts], axis=1)
        if value.dtype != leaf.dtype:
            value = value.astype(leaf.dtype)
        if value.shape[1:] != leaf.shape:  # EnvPool gives a scalar a dimension of one
            value = value.reshape(-1, *leaf.shape)
        return value if offset is None else value - offset

    def _check(self, obs: dict[str, np.ndarray], slots: np.ndarray, length: np.ndarray | None = None) -> None:
        """Raise for observations that are not finite. Without `length` they are the first of an episode."""
        for name in self._floating:
            if not all_finite(obs[name]):
                row, *index = first_bad(obs[name])
                what = describe(float(obs[name][row, *index]), tuple(index))
                raise self._error(f"observation {name!r} is {what}", row, slots, length)

    def _error(self, cause: str, row: int, slots: np.ndarray, length: np.ndarray | None) -> SimulatorError:
        slot = int(slots[row])
        failure = SimulatorFailure(
            cause=cause,
            phase="reset" if length is None else "step",
            envs=(slot,),
            slots=(slot,),
            seed=env_seed(self._seed, slot),
            episode=self._episode[slot],
            step=0 if length is None else int(length[row]) - 1,
        )
        return SimulatorError(failure)


def _obs_keys(task: EnvPoolTask, spec: PoolSpec, keys: list[str]) -> list[list[str]]:
    """EnvPool's keys for each observation leaf: one key, or several to concatenate."""
    observed = [key for key in keys if key == "obs" or key.startswith("obs:")]
    by_name = {key.removeprefix("obs:").replace(":", "."): key for key in observed}
    if task.flat:
        return [[by_name[name] for name in task.vectors or by_name]]
    if not isinstance(spec.observation_space, spaces.Dict):
        return [[key] for key in observed]  # a single array is named "obs" here, whatever EnvPool calls it
    return [[by_name[leaf.name]] for leaf in spec.obs]
