"""A planner for the hand: it samples sequences of the actuators' targets, simulates them, and keeps the best.

Legend: S sequences, K knots of a sequence, H steps, A actuators.
"""

from __future__ import annotations

import mujoco
import numpy as np
from mujoco import rollout

from paceline.sims.control.hand.env import HandEnv
from paceline.sims.control.hand.hand import ACTUATORS, INCREMENT, Hand
from paceline.sims.control.hand.tasks import FRAMES

from .hand_goals import Goal, simulated

KNOTS, REPLAN = 4, 4
"""Knots of a sequence, and steps between two plans."""
SPREAD = 0.2
"""Standard deviation of the widest samples, as a share of the actuators' ranges."""
LEVELS = 255
"""Targets are whole numbers of this share of their ranges, so that a plan is stored in bytes."""
WRIST, THUMB, FINGERS = slice(0, 3), slice(3, 7), [8, 9, 10, 12]
TIPS = {"thumb_tip": 0.024, "index_tip": 0.02, "middle_tip": 0.021, "ring_tip": 0.02, "little_tip": 0.018}
"""Bodies of the last bones, and their lengths."""
STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS


class SamplingPlanner:
    """Random search around the last plan, which a new plan replaces if it is better (predictive sampling).

    It knows the simulator and its state. Only the future of a target that moves is unknown to it.
    """

    def __init__(self, env: HandEnv, hand: Hand, goal: Goal, seed: int) -> None:
        """`hand` is that of the environment's task."""
        self._env, self._goal = env, goal
        self._random = np.random.default_rng(seed)
        self._model = _with_sensors(hand)
        self._data, self._rollout = mujoco.MjData(self._model), rollout.Rollout(nthread=0)
        self._low, self._range = hand.low, hand.high - hand.low
        self._times = np.linspace(0, self._goal.horizon - 1, KNOTS)
        self._plan = np.tile(env.data.ctrl, (KNOTS, 1))
        """[K, A]: targets at the knots."""
        self._next: list[np.ndarray] = []

    def next_target(self) -> np.ndarray:
        """[A] uint8: the actuators' targets for the next step, in `LEVELS` of their ranges."""
        if not self._next:
            self._improve()
            targets = self._sequences(self._plan[None])[0, :REPLAN]
            self._next = [np.rint((target - self._low) / self._range * LEVELS).astype(np.uint8) for target in targets]
            self._shift()
        return self._next.pop(0)

    def _improve(self) -> None:
        samples = self._samples()
        targets = self._sequences(samples)
        values = self._goal.values(self._env, simulated(*self._simulate(targets)))
        best = (values.mean(1) + values[:, -self._goal.last :].mean(1)).argmax()
        self._plan = samples[best]

    def _samples(self) -> np.ndarray:
        """[S, K, A]: the last plan, no motion at all, and random changes of the last plan."""
        random, count = self._random, self._goal.sequences
        changes = 0.6 * random.normal(size=(count, KNOTS, ACTUATORS))
        changes[..., FINGERS] += 0.6 * random.normal(size=(count, KNOTS, 1))
        changes += 0.8 * random.normal(size=(count, 1, ACTUATORS))
        changes *= random.choice([0.15, 0.5, 1.0], size=(count, 1, 1)) * (random.random((count, 1, ACTUATORS)) < 0.6)
        samples = self._plan + SPREAD * self._range * changes
        if self._goal.grasps:
            for sample in samples[-(count // 3) :]:
                self._close(sample)
        samples[0], samples[1] = self._plan, self._env.data.ctrl
        return np.clip(samples, self._low, self._low + self._range)

    def _close(self, sample: np.ndarray) -> None:
        """Close the hand, and move the wrist one knot later."""
        random, first = self._random, self._random.integers(2)
        sample[first:, FINGERS] = random.uniform(0.5, 1.5) + 0.15 * random.normal(size=len(FINGERS))
        sample[first:, THUMB] = [random.uniform(0.8, 1.9), *[random.uniform(0.0, 1.2)] * 3]
        sample[first + 1 :, WRIST] += 0.25 * self._range[WRIST] * random.normal(size=3)

    def _sequences(self, knots: np.ndarray) -> np.ndarray:
        """[S, H, A]: targets between knots [S, K, A], as fast as actions can change them."""
        steps = np.arange(self._goal.horizon)
        left = np.minimum(np.searchsorted(self._times, steps, side="right") - 1, KNOTS - 2)
        share = ((steps - self._times[left]) / (self._times[left + 1] - self._times[left]))[:, None]
        wanted = knots[:, left] * (1 - share) + knots[:, left + 1] * share
        targets, now = np.empty_like(wanted), np.tile(self._env.data.ctrl, (len(knots), 1))
        for step in steps:
            now = now + np.clip(wanted[:, step] - now, -INCREMENT * self._range, INCREMENT * self._range)
            targets[:, step] = now
        return targets

    def _simulate(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of all joints, and sensors, after every step of targets [S, H, A]."""
        state = np.empty(mujoco.mj_stateSize(self._model, STATE))
        mujoco.mj_getState(self._env.model, self._env.data, state, STATE)
        states, sensors = self._rollout.rollout(
            self._model, self._data, np.tile(state, (len(targets), 1)), np.repeat(targets, FRAMES, axis=1)
        )
        after = slice(FRAMES - 1, None, FRAMES)
        return states[:, after, 1 : 1 + self._model.nq], sensors[:, after]  # a state begins with the time

    def _shift(self) -> None:
        """The plan, `REPLAN` steps later."""
        times = np.minimum(self._times + REPLAN, self._times[-1])
        self._plan = np.stack([np.interp(times, self._times, knots) for knots in self._plan.T], axis=1)


def action_towards(hand: Hand, now: np.ndarray, target: np.ndarray) -> np.ndarray:
    """[A]: the action that brings the actuators' targets `now` to `target`, in `LEVELS`, as far as one step can."""
    change = hand.low + target / LEVELS * (hand.high - hand.low) - now
    return np.clip(change / (INCREMENT * (hand.high - hand.low)), -1.0, 1.0)


def _with_sensors(hand: Hand) -> mujoco.MjModel:
    """The same model, which also measures where the palm's grasp point and the tips of the fingers are."""
    spec = hand.make_spec()
    for name, length in TIPS.items():
        spec.body(name).add_site(name=name, pos=[length, 0, 0])
    for name in ("grasp", *TIPS):
        spec.add_sensor(
            name=name, type=mujoco.mjtSensor.mjSENS_FRAMEPOS, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=name
        )
    return spec.compile()
