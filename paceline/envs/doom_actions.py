"""Doom's buttons as action spaces: which buttons exclude each other, and which buttons an action presses.

A head is one independent choice: a table [choices, buttons] with one row per choice. The pressed buttons are the sum of
the chosen rows over all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

EXCLUSIVE = [
    {"MOVE_FORWARD", "MOVE_BACKWARD"},
    {"MOVE_LEFT", "MOVE_RIGHT"},
    {"MOVE_UP", "MOVE_DOWN"},
    {"TURN_LEFT", "TURN_RIGHT"},
    {"LOOK_UP", "LOOK_DOWN"},
    {"SELECT_NEXT_WEAPON", "SELECT_PREV_WEAPON"},
    {f"SELECT_WEAPON{number}" for number in range(10)},
]
"""Groups of buttons that exclude each other. Each group is one head."""

DELTAS = np.linspace(-12.5, 12.5, 21)
"""The values of a DELTA button, in degrees or map units per frame. Zero is one of them."""


def multi_discrete_heads(buttons: Sequence[str], deltas: np.ndarray = DELTAS) -> list[np.ndarray]:
    """One head per group of exclusive buttons and per other button, in the order of their first button.

    Choice 0 presses nothing and choice k presses the k-th button of the group. The choices of a DELTA button are its
    values in ascending order.
    """
    heads: list[np.ndarray] = []
    done: set[str] = set()
    for button in buttons:
        if button in done:
            continue
        if button.endswith("_DELTA"):
            heads.append(np.stack([_row(buttons, button, value) for value in deltas]))
            continue
        group = next((group for group in EXCLUSIVE if button in group), {button})
        members = [member for member in buttons if member in group]
        heads.append(np.stack([_row(buttons), *(_row(buttons, member) for member in members)]))
        done.update(members)
    return heads


def discrete_head(buttons: Sequence[str], deltas: np.ndarray = DELTAS) -> np.ndarray:
    """Choice 0 presses nothing, every other choice presses one button. A DELTA button has one choice per direction."""
    rows = [_row(buttons)]
    for button in buttons:
        if button.endswith("_DELTA"):
            rows += [_row(buttons, button, deltas[0]), _row(buttons, button, deltas[-1])]
        else:
            rows.append(_row(buttons, button))
    return np.stack(rows)


def _row(buttons: Sequence[str], pressed: str | None = None, value: float = 1.0) -> np.ndarray:
    return np.array([value if button == pressed else 0.0 for button in buttons])


class Discrete:
    """One button at a time, or none."""

    def __init__(self, buttons: Sequence[str], deltas: np.ndarray = DELTAS) -> None:
        self._rows = discrete_head(buttons, deltas).tolist()
        self.space = spaces.Discrete(len(self._rows))

    def press(self, action: Any) -> list[float]:
        return self._rows[action]


class MultiDiscrete:
    """Independent heads."""

    def __init__(self, buttons: Sequence[str], deltas: np.ndarray = DELTAS) -> None:
        heads = multi_discrete_heads(buttons, deltas)
        self._table = np.concatenate(heads)
        self._starts = np.cumsum([0, *(len(head) for head in heads[:-1])])
        self.space = spaces.MultiDiscrete([len(head) for head in heads])

    def press(self, action: Any) -> list[float]:
        return self._table[self._starts + action].sum(axis=0).tolist()


KINDS: dict[str, Any] = {"discrete": Discrete, "multi_discrete": MultiDiscrete}
