"""The three tasks of D4PG's appendix E. A cylinder is caught, picked up and oriented, or rotated in the palm.

The paper gives the rewards, the observations and the lengths of episodes. Sizes, masses and starts are ours.
"""

from __future__ import annotations

import math

import mujoco
import numpy as np
from gymnasium import spaces

from paceline.sims.control.hand.hand import PALM_DOWN, PALM_UP, Hand, angle, axis, random_quaternion
from paceline.sims.control.mujoco_env import MuJoCoTask, StepOutcome
from paceline.sims.control.soft_indicator import soft_indicator

FRAMES = 5
"""Of 4 ms each: 50 actions per second."""
CM, DEGREE = 0.01, math.pi / 180
HELD = 5 * CM
"""A cylinder is held if its height differs from that of the hand by less than this."""


class Catch:
    """Catch a falling cylinder with the palm up, and hold it. The table must not be touched."""

    frames, max_episode_steps, camera = FRAMES, 500, "front"
    measure_names = ("held",)

    def __init__(self) -> None:
        self.hand = Hand(radius=2.2 * CM, half_length=4 * CM, mass=0.06, has_target=False)
        self.model, self.observation_space = self.hand.model, _box(70)

    def begin(self, data: mujoco.MjData, random: np.random.Generator) -> None:
        start_pose(self.hand, data, random, PALM_UP, spread=0.6)
        above = random.uniform([-3 * CM, -3 * CM, 12 * CM], [3 * CM, 3 * CM, 30 * CM])
        self.hand.place(data, self.hand.grasp_point(data) + above, random_quaternion(random))

    def act(self, data: mujoco.MjData, action: np.ndarray, random: np.random.Generator) -> None:
        self.hand.move(data, action)

    def observe(self, data: mujoco.MjData) -> np.ndarray:
        return _vector(self.hand.observe(data))

    def judge(self, data: mujoco.MjData) -> StepOutcome:
        if self.hand.touches_table(data) or self.hand.is_lost(data):
            return StepOutcome(0.0, True, {"held": 0.0})
        error = self.hand.grasp_point(data)[2] - self.hand.position(data)[2]
        return StepOutcome(soft_indicator(error, 0.0, 5 * CM), False, {"held": float(abs(error) < HELD)})

    def get_state(self) -> None:
        return None

    def set_state(self, state: None) -> None: ...


class PickUpAndOrient:
    """Pick a cylinder up from the table, and bring it to a place and an orientation."""

    frames, max_episode_steps, camera = FRAMES, 500, "front"
    measure_names = ("distance", "tilt")

    def __init__(self) -> None:
        self.hand = Hand(radius=2 * CM, half_length=4 * CM, mass=0.06, has_target=True)
        self.model, self.observation_space = self.hand.model, _box(77)

    def begin(self, data: mujoco.MjData, random: np.random.Generator) -> None:
        position, quaternion = self._reachable(data, random)
        mujoco.mj_resetData(self.model, data)
        self.hand.place_target(data, position, quaternion)
        start_pose(self.hand, data, random, PALM_DOWN)
        x, y, turn = random.uniform([6 * CM, -2 * CM, -math.pi / 4], [11 * CM, 2 * CM, math.pi / 4])
        self.hand.place(data, np.array([x, y, self.hand.radius]), _lying(math.pi + turn))

    def _reachable(self, data: mujoco.MjData, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A pose of the cylinder across the palm, in a random pose of the wrist."""
        self.hand.pose(data, wrist_rotate=random.uniform(PALM_DOWN, 0.0), wrist_flex=random.uniform(-0.3, 0.3))
        mujoco.mj_forward(self.model, data)
        along, across, back = self.hand.palm_frame(data).T
        # The cylinder's own z lies across the palm.
        frame, quaternion = np.stack([back, along, across], axis=1), np.empty(4)
        mujoco.mju_mat2Quat(quaternion, frame.ravel())
        return self.hand.grasp_point(data).copy(), quaternion

    def act(self, data: mujoco.MjData, action: np.ndarray, random: np.random.Generator) -> None:
        self.hand.move(data, action)

    def observe(self, data: mujoco.MjData) -> np.ndarray:
        return _vector([*self.hand.observe(data), data.mocap_pos[0], data.mocap_quat[0]])

    def judge(self, data: mujoco.MjData) -> StepOutcome:
        distance = float(np.linalg.norm(self.hand.position(data) - data.mocap_pos[0]))
        tilt = angle(axis(self.hand.quaternion(data), 2), axis(data.mocap_quat[0], 2))
        measures = {"distance": distance, "tilt": tilt}
        if self.hand.is_lost(data):
            return StepOutcome(0.0, True, measures)
        near, oriented = soft_indicator(distance, 1 * CM, 5 * CM), soft_indicator(tilt, 5 * DEGREE, 10 * DEGREE)
        return StepOutcome(0.5 * near * (1.0 + oriented), False, measures)

    def get_state(self) -> None:
        return None

    def set_state(self, state: None) -> None: ...


class RotateInHand:
    """Turn a broad cylinder that lies in the palm, after a target angle that wanders."""

    frames, max_episode_steps, camera = FRAMES, 1000, "front"
    measure_names = ("error",)
    DRIFT, NOISE = 0.01, 0.025 * DEGREE
    """Of the Ornstein-Uhlenbeck process that moves the target's angle in each step."""

    def __init__(self) -> None:
        self.hand = Hand(radius=3.5 * CM, half_length=2 * CM, mass=0.08, has_target=True)
        self.model, self.observation_space = self.hand.model, _box(72)
        self._angle, self._speed = 0.0, 0.0

    def begin(self, data: mujoco.MjData, random: np.random.Generator) -> None:
        start_pose(self.hand, data, random, PALM_UP)
        start = self.hand.grasp_point(data) + random.uniform(-0.5 * CM, 0.5 * CM, 3)
        self.hand.place(data, start, _upright(random.uniform(-math.pi, math.pi)))
        self._angle, self._speed = random.uniform(-math.pi, math.pi), 0.0
        self._show_target(data)

    def act(self, data: mujoco.MjData, action: np.ndarray, random: np.random.Generator) -> None:
        self.hand.move(data, action)
        self._speed += self.NOISE * random.normal() - self.DRIFT * self._speed
        self._angle += self._speed
        self._show_target(data)

    def _show_target(self, data: mujoco.MjData) -> None:
        above = np.array([0.0, 0.0, 10 * CM])
        self.hand.place_target(data, self.hand.grasp_point(data) + above, _upright(self._angle))

    def observe(self, data: mujoco.MjData) -> np.ndarray:
        return _vector([*self.hand.observe(data), np.array([math.sin(self._angle), math.cos(self._angle)])])

    def judge(self, data: mujoco.MjData) -> StepOutcome:
        quaternion, target = self.hand.quaternion(data), _upright(self._angle)
        error = angle(axis(quaternion, 1)[:2], axis(target, 1)[:2])
        if self.hand.touches_table(data) or self.hand.is_lost(data):
            return StepOutcome(0.0, True, {"error": error})
        tilt = angle(axis(quaternion, 2), axis(target, 2))
        turned = soft_indicator(error, 5 * DEGREE, 40 * DEGREE)
        return StepOutcome(turned * soft_indicator(tilt, 45 * DEGREE, 45 * DEGREE), False, {"error": error})

    def get_state(self) -> tuple[float, float]:
        return self._angle, self._speed

    def set_state(self, state: tuple[float, float]) -> None:
        self._angle, self._speed = state


TASKS: dict[str, type[MuJoCoTask]] = {
    "catch": Catch,
    "pick_up_and_orient": PickUpAndOrient,
    "rotate_in_hand": RotateInHand,
}


def start_pose(
    hand: Hand, data: mujoco.MjData, random: np.random.Generator, rotation: float, spread: float = 0.1
) -> None:
    """A random pose with open fingers. The wrist's rotation differs by up to `spread`."""
    flex = dict(zip(("index_flex", "middle_flex", "ring_flex", "little_flex"), random.uniform(0, 0.3, 4), strict=True))
    hand.pose(
        data, wrist_rotate=rotation + random.uniform(-spread, spread), thumb_oppose=random.uniform(0, 0.4), **flex
    )
    mujoco.mj_forward(hand.model, data)


def _upright(turn: float) -> np.ndarray:
    return np.array([math.cos(turn / 2), 0.0, 0.0, math.sin(turn / 2)])


def _lying(turn: float) -> np.ndarray:
    """The cylinder's axis is horizontal."""
    rotated, tilted = np.empty(4), np.array([math.cos(math.pi / 4), math.sin(math.pi / 4), 0.0, 0.0])
    mujoco.mju_mulQuat(rotated, _upright(turn), tilted)
    return rotated


def _vector(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.float32)


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)
