"""A scripted controller of the hand, as proof that a task can be solved."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mujoco")

from paceline.sims.control.hand.hand import INCREMENT, Hand

FINGERS = ("index_flex", "middle_flex", "ring_flex", "little_flex")
WRIST = {"wrist_rotate": 1.57, "wrist_flex": -0.15}
CUPPED = WRIST | {"thumb_oppose": 1.2, "thumb_flex": 0.2} | dict.fromkeys(FINGERS, 0.55)
THUMB = {"thumb_oppose": 1.5, "thumb_flex": 0.6, "thumb_middle": 0.5, "thumb_tip": 0.5}
CLOSED = WRIST | THUMB | dict.fromkeys(FINGERS, 1.4)
CLOSE_BELOW = 0.05


class Catcher:
    """Cups the hand, keeps it below the cylinder, and closes it when the cylinder has come near."""

    def __init__(self, hand: Hand) -> None:
        self._hand, self._is_closing = hand, False

    def act(self, data) -> np.ndarray:
        hand, (x, y, height) = self._hand, self._hand.position(data)
        self._is_closing = self._is_closing or height - hand.grasp_point(data)[2] < CLOSE_BELOW
        # With the palm up, the wrist's tilt turns the hand about the vertical.
        towards = {"wrist_tilt": -np.arctan2(y, max(x, 0.03))}
        aim = np.zeros(hand.model.nu)
        for name, value in ((CLOSED if self._is_closing else CUPPED) | towards).items():
            aim[hand.model.actuator(name).id] = value
        return np.clip((aim - data.ctrl) / (INCREMENT * (hand.high - hand.low)), -1.0, 1.0)
