"""`HouseDynamics`: one house with a robot in it, in motion. From a `State` of the tensors to MuJoCo, and back.

Legend: J joints of the house, O objects.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import mujoco
import numpy as np
import torch

from paceline.sims.rearrangement.dynamics.model import HOUSE_JOINTS, episode_model, object_name
from paceline.sims.rearrangement.dynamics.robot import ARM_JOINTS, BASE_JOINTS
from paceline.sims.rearrangement.dynamics.suction import Suction
from paceline.sims.rearrangement.physics.world import NOTHING, State
from paceline.sims.rearrangement.robot.arm import LIMITS

SUBSTEPS = 4
"""MuJoCo's time steps in a decision of 1/30 s."""
PUSHED = 15.0
"""A contact with more than this force is a collision, in N. An object that lies in the hand and on a table has less."""
_LOW, _HIGH = np.array(LIMITS).T
_INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
_DIVERGED = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)


class HouseMotion(NamedTuple):
    """What a decision has led to."""

    taken: int
    """What the cup took; see `NOTHING`."""
    dropped: int
    collided: bool
    """Whether the robot, or what it holds, pushes against something."""
    travelled: float
    """The way of the base in metres."""
    diverged: bool
    """Whether MuJoCo has met a number that is not finite, or too large."""


class HouseDynamics:
    """House number `house` of a bank, in its episode number `episode`."""

    def __init__(self, bank: Any, house: int, episode: int, resolution: int) -> None:
        kinds = bank.object_kinds[house, episode].numpy()
        self.model = model = episode_model(bank, house, kinds, resolution)
        self.data = mujoco.MjData(model)
        self._num_objects = len(kinds)
        objects = [model.joint(object_name(number)).qposadr[0] for number in range(len(kinds))]
        self._object_places = np.add.outer(objects, np.arange(7))
        self._base, self._arm, self._house = (
            np.array([model.joint(name).qposadr[0] for name in names])
            for names in (BASE_JOINTS, ARM_JOINTS, HOUSE_JOINTS)
        )
        self._base_speeds = np.array([model.joint(name).dofadr[0] for name in BASE_JOINTS])
        robot = model.body_rootid == model.body("base").id
        self._is_robot = robot[model.geom_bodyid]
        self._object_geoms = [model.geom(object_name(number)).id for number in range(len(kinds))]
        self.suction = Suction(model, self.data, len(kinds), bank.handles[house].double().numpy())

    def place(self, state: State) -> None:
        """Put everything where `state`, of one robot with an empty hand, has it, at rest."""
        mujoco.mj_resetData(self.model, self.data)
        self.suction.let_go()
        qpos = self.data.qpos
        qpos[self._base], qpos[self._arm], qpos[self._house] = state.pose[0], state.angles[0], state.values[0]
        x, y, z, yaw = state.objects[0].double().numpy().T
        none = np.zeros_like(x)
        qpos[self._object_places] = np.stack((x, y, z, np.cos(yaw / 2), none, none, np.sin(yaw / 2)), 1)
        mujoco.mj_forward(self.model, self.data)

    def advance(self, turns: np.ndarray, forward: float, left: float, closes: bool) -> HouseMotion:
        """Carry out a decision: `turns` [7] of the arm and the motion of the base; then the cup takes or lets go."""
        qpos, ctrl = self.data.qpos, self.data.ctrl
        start = qpos[self._base].copy()
        heading, arm = start[2] + left, np.clip(qpos[self._arm] + turns, _LOW, _HIGH)
        for number in range(SUBSTEPS):
            rate = 1.0 / ((SUBSTEPS - number) * self.model.opt.timestep)  # so that it arrives at the end
            speed = forward / (SUBSTEPS * self.model.opt.timestep)
            ahead = qpos[self._base[2]]
            ctrl[:3] = speed * math.cos(ahead), speed * math.sin(ahead), (heading - ahead) * rate
            ctrl[3:] = (arm - qpos[self._arm]) * rate
            mujoco.mj_step(self.model, self.data)
        # MuJoCo's step ends with contacts and places of the moment before it.
        mujoco.mj_forward(self.model, self.data)
        collided = self._pushes()
        taken, dropped = self.suction.close(closes)
        travelled = float(np.linalg.norm(qpos[self._base[:2]] - start[:2]))
        diverged = any(self.data.warning[kind].number for kind in _DIVERGED)
        return HouseMotion(taken, dropped, collided, travelled, diverged)

    def state(self, like: State) -> State:
        """Where everything is, as a state of one robot. Objects have their yaw alone."""
        qpos = self.data.qpos
        w, x, y, z = qpos[self._object_places[:, 3:]].T
        yaw = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
        objects = np.concatenate((qpos[self._object_places[:, :3]], yaw[:, None]), 1)
        return like._replace(
            pose=_row(qpos[self._base]),
            angles=_row(qpos[self._arm]),
            values=_row(qpos[self._house]),
            objects=_row(objects),
            held=torch.tensor([self.suction.held]),
        )

    def get_state(self) -> dict[str, Any]:
        physics = np.empty(mujoco.mj_stateSize(self.model, _INTEGRATION))
        mujoco.mj_getState(self.model, self.data, physics, _INTEGRATION)
        return {"physics": physics, "suction": self.suction.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_setState(self.model, self.data, state["physics"], _INTEGRATION)
        self.suction.set_state(state["suction"])
        mujoco.mj_forward(self.model, self.data)

    def _pushes(self) -> bool:
        """Whether the robot, or the object in its hand, meets something else with more than a light touch."""
        contacts = self.data.contact
        if not len(contacts.geom):
            return False
        ours = self._is_robot.copy()
        if NOTHING < self.suction.held < self._num_objects:
            ours[self._object_geoms[self.suction.held]] = True
        force = np.empty(6)
        for number in np.flatnonzero(ours[contacts.geom].any(1)):
            mujoco.mj_contactForce(self.model, self.data, number, force)
            if force[0] > PUSHED:
                return True
        return False


def _row(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).float()[None]
