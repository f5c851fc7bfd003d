"""The planner of the hand: its simulation is the environment's, and its values contain the tasks' rewards."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("mujoco")

from benchmarks.hand_goals import GOALS, rotation_matrices, simulated
from benchmarks.hand_planner import plan_episode
from benchmarks.hand_planning import LEVELS, SamplingPlanner, action_towards
from paceline.sims.control.hand.env import HandEnv
from paceline.sims.control.hand.hand import INCREMENT


def make(task: str, **changes) -> tuple[HandEnv, SamplingPlanner]:
    env = HandEnv(task)
    env.reset(seed=3)
    return env, SamplingPlanner(env, env.task.hand, dataclasses.replace(GOALS[task], **changes), seed=0)


@pytest.mark.parametrize("task", GOALS)
def test_what_is_planned_is_what_happens(task):
    env, planner = make(task, horizon=8, sequences=4)
    hand = env.task.hand
    samples = planner._sequences(planner._samples())
    positions, sensors = planner._simulate(samples)
    for step in range(8):
        action = (samples[3, step] - env.data.ctrl) / (INCREMENT * (hand.high - hand.low))
        assert np.abs(action).max() <= 1.0 + 1e-9
        env.step(action)
        np.testing.assert_allclose(env.data.qpos, positions[3, step], atol=1e-4)
        np.testing.assert_allclose(hand.grasp_point(env.data), sensors[3, step, :3], atol=2e-3)


def test_values_rise_with_the_reward():
    """Two sequences that differ in the cylinder's pose only: the one with the larger reward has the larger value."""
    env, _ = make("pick_up_and_orient")
    position, sensors = np.tile(env.data.qpos, (2, 1, 1)), np.zeros((2, 1, 18))
    position[1, 0, 22:25], position[1, 0, 25:29] = env.data.mocap_pos[0], env.data.mocap_quat[0]
    low, high = GOALS["pick_up_and_orient"].values(env, simulated(position, sensors))[:, 0]
    assert high > low + 1.0

    env, _ = make("rotate_in_hand")
    angle = env.task.get_state()[0]
    position = np.tile(env.data.qpos, (2, 1, 1))
    for row, turn in enumerate((angle + 2.0, angle)):
        position[row, 0, 25:29] = [np.cos(turn / 2), 0, 0, np.sin(turn / 2)]
    sensors[..., :3] = position[0, 0, 22:25]
    low, high = GOALS["rotate_in_hand"].values(env, simulated(position, sensors))[:, 0]
    assert high == pytest.approx(2.0, abs=1e-6) and low < high - 1.0


def test_rotation_matrices_are_mujocos():
    env, _ = make("pick_up_and_orient")
    found = rotation_matrices(env.data.body("object").xquat[None])
    np.testing.assert_allclose(found[0], env.data.body("object").xmat.reshape(3, 3), atol=1e-12)


def test_an_action_reaches_a_target_that_is_near():
    hand = make("rotate_in_hand")[0].task.hand
    now = 0.5 * (hand.low + hand.high)
    target = np.full(13, 130, np.uint8)
    change = action_towards(hand, now, target) * INCREMENT * (hand.high - hand.low)
    np.testing.assert_allclose(now + change, hand.low + 130 / LEVELS * (hand.high - hand.low))
    assert (action_towards(hand, now, np.full(13, 255, np.uint8)) == 1.0).all()


def test_an_episode_is_planned():
    found = plan_episode("rotate_in_hand", seed=0, steps=3)
    assert found.targets.shape == (3, 13) and found.targets.dtype == np.uint8 and found.rewards.shape == (3,)
