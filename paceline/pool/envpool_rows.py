"""EnvPool's states as rows of a slot table.

Legend: B rows of one EnvPool state.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.envs.envpool import config_of
from paceline.errors import Failure, SimulatorError
from paceline.pool.protocol import Episode, PoolSpec
from paceline.pool.table import SlotTable

State = Sequence[np.ndarray]
"""What EnvPool's `_recv` returns: one array [B, ...] per key of the task's state, in a fixed order."""

Rows = slice | np.ndarray
"""Where the rows of a state belong in the table, ascending."""

_NOT_INFO = ("info:env_id", "info:players.env_id")


class RowWriter:
    """Writes EnvPool's states into `table` and keeps what the episodes of its slots add up to.

    EnvPool knows two kinds of rows, the outcome of a step and the first observation of an episode; the caller says
    which it has. A slot's rows may be written by one thread at a time.
    """

    def __init__(self, task_spec: Any, spec: PoolSpec, table: SlotTable) -> None:
        keys = list(task_spec._state_keys)
        config = config_of(task_spec)
        self._table = table
        self._obs = [
            (leaf.name, keys.index(key), leaf.shape, leaf.offset if np.any(leaf.offset) else None)
            for leaf, key in zip(spec.obs, _obs_keys(spec, keys), strict=True)
        ]
        self._reward, self._done, self._trunc = (keys.index(key) for key in ("reward", "done", "trunc"))
        self.env_id = keys.index("info:env_id")
        """Which of a state's arrays says whose the rows are."""
        # Atari alone has these two: the reward before it was clipped, which is what a return is made of, and whether
        # the game is over, which EnvPool's flags hide when that happens on the last step before the time limit.
        atari = "reward_clip" in config
        self._score = keys.index("info:reward") if atari and "info:reward" in keys else self._reward
        self._game_over = keys.index("info:terminated") if atari and "info:terminated" in keys else None
        self._infos = [(key.removeprefix("info:"), index) for index, key in enumerate(keys) if _is_info(key)]
        self._returns = np.zeros(spec.num_slots)
        self.finished: dict[int, Episode] = {}
        """The episode that ended with the slot's last step."""

    def first(self, state: State, rows: Rows) -> None:
        """First observations. The rest of each row stays: it tells of the step that ended the last episode."""
        for name, index, shape, offset in self._obs:
            value = state[index]
            if value.shape[1:] != shape:  # a number, which EnvPool gives a dimension of one
                value = value.reshape(-1, *shape)
            self._table.obs[name][rows] = value if offset is None else value - offset

    def ended(self, state: State) -> np.ndarray:
        """Which rows of the outcome of a step ended an episode."""
        return state[self._done].nonzero()[0]

    def step(self, state: State, rows: Rows, ended: np.ndarray) -> None:
        """Outcomes of a step. Where an episode ended, the observation is kept as the final one, and the first one of
        the next episode is still to be written."""
        table, reward, score = self._table, state[self._reward], state[self._score]
        # One sum instead of a look at every value: it is finite unless a value is not, or unless values near the
        # largest float are added, which the closer look sorts out.
        if not isfinite(reward.sum()) or (score is not reward and not isfinite(score.sum())):
            self._refuse_rewards(reward, rows)
            self._refuse_rewards(score, rows)
        self.first(state, rows)
        table.reward[rows] = reward
        table.step[rows] += 1
        self._returns[rows] += score
        if not len(ended):
            table.terminated[rows] = False
            table.truncated[rows] = False
            return
        truncated = state[self._trunc]
        if self._game_over is not None:
            truncated = truncated & (state[self._game_over] == 0)
        table.truncated[rows] = truncated
        table.terminated[rows] = state[self._done] & ~truncated
        self._finish(state, ended, ended + rows.start if isinstance(rows, slice) else rows[ended])

    def _finish(self, state: State, ended: np.ndarray, slots: np.ndarray) -> None:
        table = self._table
        for name, final in table.final_obs.items():
            final[slots] = table.obs[name][slots]
        infos = [(name, state[index][ended].tolist()) for name, index in self._infos if state[index].ndim == 1]
        returns, lengths = self._returns[slots].tolist(), table.step[slots].tolist()
        for i, slot in enumerate(slots.tolist()):
            self.finished[slot] = Episode(slot, returns[i], lengths[i], {name: values[i] for name, values in infos})
        self._returns[slots] = 0.0
        table.step[slots] = 0
        table.episode[slots] += 1

    def _refuse_rewards(self, values: np.ndarray, rows: Rows) -> None:
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            slot = int(_slots(rows)[bad[0]])
            raise SimulatorError(
                Failure(
                    cause=f"the reward is {values[bad[0]]}",
                    phase="step",
                    envs=(slot,),
                    slots=(slot,),
                    episode=int(self._table.episode[slot]),
                    step=int(self._table.step[slot]),
                )
            )


def _slots(rows: Rows) -> np.ndarray:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _is_info(key: str) -> bool:
    return key == "elapsed_step" or (key.startswith("info:") and key not in _NOT_INFO)


def _obs_keys(spec: PoolSpec, keys: list[str]) -> list[str]:
    """EnvPool's key of every observation leaf."""
    observed = [key for key in keys if key == "obs" or key.startswith("obs:")]
    if not isinstance(spec.observation_space, spaces.Dict):
        return observed  # a single array is "obs" to us, whatever EnvPool calls it
    by_name = {key.removeprefix("obs:").replace(":", "."): key for key in observed}
    return [by_name[leaf.name] for leaf in spec.obs]
