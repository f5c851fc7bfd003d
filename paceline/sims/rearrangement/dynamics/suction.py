"""The suction cup: it takes what its tip touches. An object is welded to the hand; a handle is tied to the tip.

What is held is numbered as in `State.held`.
"""

from __future__ import annotations

import mujoco
import numpy as np

from paceline.sims.rearrangement.dynamics.model import HOUSE_JOINTS, object_name
from paceline.sims.rearrangement.dynamics.robot import (
    HAND_BODY,
    HIT_BY_HAND,
    HIT_BY_HELD,
    HIT_BY_OBJECT,
    MOVING,
    OBJECT,
)
from paceline.sims.rearrangement.dynamics.robot import HELD as HELD_TYPE
from paceline.sims.rearrangement.physics.grip import HANDLE_MARGIN, MARGIN
from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.robot.arm import HAND

TIP = np.array([HAND, 0.0, 0.0])
"""The tip of the cup in the frame of the hand."""


class Suction:
    """The cup of one robot. It changes `model`, which no other simulation may share."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, num_objects: int, handles: np.ndarray) -> None:
        """`handles` [J, 3] are those of closed doors and drawers, in the world."""
        self.held = NOTHING
        self._model, self._data, self._num_objects = model, data, num_objects
        self._hand, self._hand_geom = model.body(HAND_BODY).id, model.geom(HAND_BODY).id
        self._objects = np.array([model.body(object_name(number)).id for number in range(num_objects)])
        self._geoms = np.array([model.geom(object_name(number)).id for number in range(num_objects)])
        self._joints = np.array([model.body(name).id for name in HOUSE_JOINTS])
        self._handles = handles - model.body_pos[self._joints]
        self._holds, self._pulls = (model.equality(name).id for name in ("holds", "pulls"))

    def tip(self) -> np.ndarray:
        return self._data.xpos[self._hand] + self._data.xmat[self._hand].reshape(3, 3) @ TIP

    def handles(self) -> np.ndarray:
        """[J, 3]: where they are."""
        turns = self._data.xmat[self._joints].reshape(-1, 3, 3)
        return self._data.xpos[self._joints] + np.einsum("jab,jb->ja", turns, self._handles)

    def close(self, closes: bool) -> tuple[int, int]:
        """Take what the tip touches, or let go. Returns what was taken and what was let go."""
        dropped = self.held if not closes else NOTHING
        if dropped != NOTHING:
            self.let_go()
        taken = self._touched() if closes and self.held == NOTHING else NOTHING
        if taken != NOTHING:
            self.take(taken)
        return taken, dropped

    def take(self, thing: int) -> None:
        """Hold `thing` as it is now."""
        self.held = thing
        if thing < self._num_objects:
            self._weld(self._objects[thing])
            geom = self._geoms[thing]
            self._model.geom_contype[geom], self._model.geom_conaffinity[geom] = HELD_TYPE, HIT_BY_HELD
        else:
            self._tie(thing - self._num_objects)
            self._model.geom_conaffinity[self._hand_geom] = HIT_BY_HAND & ~MOVING

    def let_go(self) -> None:
        self.held = NOTHING
        self._data.eq_active[:] = 0
        self._model.geom_contype[self._geoms] = OBJECT
        self._model.geom_conaffinity[self._geoms] = HIT_BY_OBJECT
        self._model.geom_conaffinity[self._hand_geom] = HIT_BY_HAND

    def get_state(self) -> tuple[int, np.ndarray]:
        """What is held, and how."""
        return self.held, self._model.eq_data.copy()

    def set_state(self, state: tuple[int, np.ndarray]) -> None:
        held, places = state
        self.let_go()
        if held != NOTHING:
            self.take(held)
        self._model.eq_data[:] = places

    def _touched(self) -> int:
        """The nearest object or handle within reach of the tip."""
        tip = self.tip()
        turns = self._data.xmat[self._objects].reshape(-1, 3, 3)
        offsets = np.einsum("oba,ob->oa", turns, tip - self._data.xpos[self._objects])
        outside = np.maximum(np.abs(offsets) - self._model.geom_size[self._geoms], 0.0)
        to_objects = np.linalg.norm(outside, axis=1) - MARGIN
        to_handles = np.linalg.norm(self.handles() - tip, axis=1) - HANDLE_MARGIN - MARGIN
        spare = np.concatenate((to_objects, to_handles))
        nearest = int(spare.argmin())
        return nearest if spare[nearest] <= 0.0 else NOTHING

    def _weld(self, body: int) -> None:
        """Weld a body to the hand, at its present place."""
        data, row = self._data, self._model.eq_data[self._holds]
        back, turned = np.empty(4), np.empty(4)
        mujoco.mju_negQuat(back, data.xquat[self._hand])
        mujoco.mju_mulQuat(turned, back, data.xquat[body])
        row[:3] = 0.0
        row[3:6] = data.xmat[self._hand].reshape(3, 3).T @ (data.xpos[body] - data.xpos[self._hand])
        row[6:10] = turned
        self._model.eq_obj2id[self._holds] = body
        data.eq_active[self._holds] = 1

    def _tie(self, joint: int) -> None:
        """Tie the tip to the place of a door or drawer where it is now. The hand can still turn."""
        body, row = self._joints[joint], self._model.eq_data[self._pulls]
        row[:3] = TIP
        row[3:6] = self._data.xmat[body].reshape(3, 3).T @ (self.tip() - self._data.xpos[body])
        self._model.eq_obj2id[self._pulls] = body
        self._data.eq_active[self._pulls] = 1
