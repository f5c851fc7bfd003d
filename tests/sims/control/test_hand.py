"""The hand's model, and the observations, rewards and ends of its tasks, against independent formulas."""

from __future__ import annotations

import contextlib
import math

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("mujoco")
pytest.importorskip("scipy")

import mujoco
from scipy.spatial.transform import Rotation

import paceline as pl
import paceline.sims.control
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.pool import PoolConfig, make_pool
from paceline.sims.control.hand.hand import INCREMENT, JOINTS
from paceline.sims.control.hand.tasks import TASKS, Catch, PickUpAndOrient, RotateInHand
from paceline.sims.control.mujoco_env import MuJoCoEnv
from paceline.sims.control.soft_indicator import soft_indicator
from tests.sims.control.scripted_hand import Catcher

SIZES = {"catch": 70, "pick_up_and_orient": 77, "rotate_in_hand": 72}


def after_random_actions(task, seed: int, steps: int) -> MuJoCoEnv:
    env = MuJoCoEnv(task)
    env.reset(seed=seed)
    random = np.random.default_rng(seed)
    for _ in range(steps):
        env.step(random.uniform(-1, 1, 13))
    return env


def rotation(quaternion: np.ndarray):
    """MuJoCo's quaternions begin with the scalar, SciPy's end with it."""
    return Rotation.from_quat(np.roll(quaternion, -1))


def degrees_between(first: np.ndarray, second: np.ndarray) -> float:
    cross, dot = np.linalg.norm(np.cross(first, second)), first @ second
    return math.degrees(math.atan2(cross, dot))


def psi(error: float, tolerance: float, margin: float) -> float:
    """Equation 15 of the paper."""
    if abs(error) <= tolerance:
        return 1.0
    return 1 - np.tanh(np.arctanh(np.sqrt(0.95)) * (abs(error) - tolerance) / margin) ** 2


def test_soft_indicator_is_one_within_the_tolerance_and_a_twentieth_at_the_margin():
    assert soft_indicator(0.02, 0.02, 0.05) == 1.0
    assert soft_indicator(-0.07, 0.02, 0.05) == pytest.approx(0.05)
    falling = [soft_indicator(x, 0.02, 0.05) for x in np.linspace(0.02, 0.5, 30)]
    assert falling == sorted(falling, reverse=True)
    for error in np.random.default_rng(0).uniform(-0.3, 0.3, 100):
        assert soft_indicator(error, 0.01, 0.05) == pytest.approx(psi(error, 0.01, 0.05))


def test_the_hand_has_the_joints_actuators_and_couplings_of_the_paper():
    model = Catch().model
    hinges = [j for j in range(model.njnt) if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE]
    assert len(hinges) == JOINTS == 22 and model.nu == 13 and model.neq == 9
    wrist = [j for j in hinges if model.joint(j).name.startswith("wrist")]
    assert len(wrist) == 3
    driven = set(model.actuator_trnid[:, 0])
    assert driven.isdisjoint(model.eq_obj1id) and len(driven | set(model.eq_obj1id)) == 22


def test_coupled_joints_follow_in_free_motion():
    env = MuJoCoEnv(Catch())
    env.reset(seed=0)
    random, action = np.random.default_rng(0), np.zeros(13)
    for step in range(100):
        if step % 10 == 0:
            action = random.uniform(-0.3, 0.3, 13)
        action[:3] = 0.0
        env.step(action)
    for _ in range(30):  # until the fingers have come to rest
        env.step(np.zeros(13))
    model, data = env.model, env.data
    for equality in range(model.neq):
        follower, leader = model.eq_obj1id[equality], model.eq_obj2id[equality]
        expected = model.eq_data[equality, 1] * data.qpos[leader]
        assert data.qpos[follower] == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("name", TASKS)
def test_gymnasium_accepts_the_tasks(name):
    check_env(MuJoCoEnv(TASKS[name](), render_mode=None), skip_render_check=True)


@pytest.mark.parametrize("name", TASKS)
def test_observations_follow_table_2(name):
    env = after_random_actions(TASKS[name](), seed=4, steps=7)
    seen, data = env.task.observe(env.data), env.data
    assert seen.shape == (SIZES[name],) == env.observation_space.shape
    np.testing.assert_allclose(seen[:22], data.qpos[:22], atol=1e-6)
    np.testing.assert_allclose(seen[22:44], data.qvel[:22], rtol=1e-5)
    np.testing.assert_allclose(seen[44:57], data.ctrl, atol=1e-6)
    body = data.body("object")
    np.testing.assert_allclose(seen[57:60], body.xpos, atol=1e-6)
    np.testing.assert_allclose(seen[60:64], body.xquat, atol=1e-6)
    np.testing.assert_allclose(seen[64:70], data.qvel[22:], rtol=1e-5)
    if name == "pick_up_and_orient":
        np.testing.assert_allclose(seen[70:], [*data.mocap_pos[0], *data.mocap_quat[0]], atol=1e-6)
    if name == "rotate_in_hand":
        angle = env.task.get_state()[0]
        np.testing.assert_allclose(seen[70:], [math.sin(angle), math.cos(angle)], atol=1e-6)


def test_actions_are_increments_of_the_targets_within_their_ranges():
    env = MuJoCoEnv(Catch())
    env.reset(seed=0)
    low, high = env.model.actuator_ctrlrange.T
    before = env.data.ctrl.copy()
    env.step(np.full(13, 0.5))
    np.testing.assert_allclose(env.data.ctrl, np.clip(before + 0.5 * INCREMENT * (high - low), low, high))
    for _ in range(30):
        env.step(np.ones(13))
    np.testing.assert_allclose(env.data.ctrl, high)


def test_reward_of_catch_is_that_of_equation_14():
    task = Catch()
    env = MuJoCoEnv(task)
    for seed in range(5):
        env.reset(seed=seed)
        for _ in range(8):
            _, reward, terminated, _, info = env.step(np.zeros(13))
            error = env.data.site("grasp").xpos[2] - env.data.body("object").xpos[2]
            assert not terminated and reward == pytest.approx(psi(error, 0.0, 0.05))
            assert info["held"] == (abs(error) < 0.05)


def test_reward_of_pick_up_is_that_of_equation_16():
    task, random = PickUpAndOrient(), np.random.default_rng(1)
    env = MuJoCoEnv(task)
    env.reset(seed=0)
    seen = []
    for _ in range(300):
        data = env.data
        offset = random.normal(size=3) * random.choice([0.005, 0.03])
        turn = Rotation.from_rotvec(random.normal(size=3) * random.choice([0.02, 0.2, 2.0]))
        pose = (turn * rotation(data.mocap_quat[0])).as_quat()
        data.qpos[22:25], data.qpos[25:29] = data.mocap_pos[0] + offset, np.roll(pose, 1)
        mujoco.mj_forward(env.model, data)
        axes = [rotation(q).apply([0, 0, 1]) for q in (data.body("object").xquat, data.mocap_quat[0])]
        near = psi(np.linalg.norm(data.body("object").xpos - data.mocap_pos[0]), 0.01, 0.05)
        expected = 0.5 * near * (1 + psi(degrees_between(*axes), 5, 10))
        outcome = task.judge(data)
        assert outcome.reward == pytest.approx(expected, abs=1e-9) and not outcome.terminated
        seen.append(expected)
    assert max(seen) > 0.9 and min(seen) < 0.1


def test_reward_of_rotation_is_that_of_equation_17():
    task, random = RotateInHand(), np.random.default_rng(2)
    env = MuJoCoEnv(task)
    env.reset(seed=0)
    seen = []
    for _ in range(300):
        data, angle = env.data, random.uniform(-math.pi, math.pi)
        task.set_state((angle, 0.0))
        turn = Rotation.from_euler("z", angle + random.normal() * random.choice([0.1, 1.0]))
        tilted = Rotation.from_rotvec([*random.normal(size=2) * random.choice([0.1, 1.0]), 0]) * turn
        data.qpos[22:25], data.qpos[25:29] = [0.0, 0.0, 0.5], np.roll(tilted.as_quat(), 1)
        mujoco.mj_forward(env.model, data)
        y, z = tilted.apply([0, 1, 0]), tilted.apply([0, 0, 1])
        flat = np.array([y[0], y[1], 0.0])
        target = np.array([-math.sin(angle), math.cos(angle), 0.0])
        error, tilt = degrees_between(flat, target), degrees_between(z, np.array([0.0, 0.0, 1.0]))
        outcome = task.judge(data)
        assert outcome.reward == pytest.approx(psi(error, 5, 40) * psi(tilt, 45, 45), abs=1e-9)
        assert outcome.measures["error"] == pytest.approx(math.radians(error), abs=1e-7)
        seen.append(outcome.reward)
    assert max(seen) > 0.9 and min(seen) < 0.1


@pytest.mark.parametrize("task", [Catch, RotateInHand])
def test_a_cylinder_on_the_table_ends_the_episode_without_a_reward(task):
    env = MuJoCoEnv(task())
    env.reset(seed=0)
    env.data.qpos[22:25] = [0.3, 0.2, 0.1]  # beside the hand
    for _ in range(50):
        _, reward, terminated, truncated, _ = env.step(np.zeros(13))
        if terminated:
            break
    assert terminated and not truncated and reward == 0.0


def test_a_cylinder_on_the_table_does_not_end_picking_up():
    env = MuJoCoEnv(PickUpAndOrient())
    env.reset(seed=0)
    for _ in range(20):
        env.step(np.zeros(13))
    assert env.task.hand.touches_table(env.data)
    assert not env.task.judge(env.data).terminated


@pytest.mark.parametrize("name", TASKS)
def test_a_cylinder_that_falls_past_the_table_ends_the_episode_without_a_reward(name):
    env = MuJoCoEnv(TASKS[name]())
    env.reset(seed=0)
    env.data.qpos[22:29] = [2.0, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0]  # upright, beside the table
    heights = []
    for _ in range(50):
        _, reward, terminated, truncated, _ = env.step(np.zeros(13))
        heights.append(env.data.qpos[24])
        if terminated:
            break
    assert terminated and not truncated and reward == 0.0
    assert -0.15 < heights[-1] < -0.05 < heights[-2]


@pytest.mark.parametrize(("name", "limit"), [("catch", 500), ("pick_up_and_orient", 500), ("rotate_in_hand", 1000)])
def test_an_episode_is_truncated_at_its_limit(name, limit):
    env = MuJoCoEnv(TASKS[name]())
    env.reset(seed=0)
    env._steps = limit - 2
    env.data.qpos[22:25] += [0, 0, 0.02]
    assert env.step(np.zeros(13))[2:4] == (False, False)
    assert env.step(np.zeros(13))[2:4] == (False, True)


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_decides_an_episode_and_a_saved_state_continues_with_the_same_bits(name):
    first, second = (after_random_actions(TASKS[name](), seed=9, steps=12) for _ in range(2))
    third = MuJoCoEnv(TASKS[name]())
    third.reset(seed=1)
    third.set_state(first.get_state())
    random = np.random.default_rng(3)
    for _ in range(12):
        action = random.uniform(-1, 1, 13)
        steps = [env.step(action) for env in (first, second, third)]
        for other in steps[1:]:
            np.testing.assert_array_equal(steps[0][0], other[0])
            assert steps[0][1:] == other[1:]


def test_the_target_angle_wanders_as_an_ornstein_uhlenbeck_process():
    task, random = RotateInHand(), np.random.default_rng(0)
    data = mujoco.MjData(task.model)
    mujoco.mj_forward(task.model, data)
    task.set_state((0.0, 0.0))
    speeds = []
    for _ in range(40_000):
        task.act(data, np.zeros(13), random)
        speeds.append(task.get_state()[1])
    late = np.array(speeds[2000:])
    # x' = (1 - 0.01) x + 0.025 n: its variance is 0.025^2 / (1 - 0.99^2).
    assert np.degrees(late.std()) == pytest.approx(0.025 / math.sqrt(1 - 0.99**2), rel=0.15)
    assert np.corrcoef(late[:-50], late[50:])[0, 1] == pytest.approx(0.99**50, abs=0.1)
    assert task.get_state()[0] == pytest.approx(sum(speeds), abs=1e-9)


@pytest.mark.parametrize("name", TASKS)
def test_random_actions_give_finite_numbers(name):
    env, random = MuJoCoEnv(TASKS[name]()), np.random.default_rng(5)
    env.reset(seed=5)
    for _ in range(300):
        seen, reward, terminated, truncated, _ = env.step(random.uniform(-1, 1, 13))
        assert np.isfinite(seen).all() and 0.0 <= reward <= 1.0
        if terminated or truncated:
            env.reset()


def test_a_diverged_simulation_ends_the_episode():
    env = MuJoCoEnv(Catch())
    env.reset(seed=0)
    env.data.qvel[0] = np.nan
    seen, reward, terminated, _, _ = env.step(np.zeros(13))
    assert terminated and reward == 0.0 and np.isfinite(seen).all()
    env.reset()
    assert not env.step(np.zeros(13))[2]


def test_an_action_that_is_not_finite_is_refused():
    env = MuJoCoEnv(Catch())
    env.reset(seed=0)
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.full(13, np.nan))


def test_targets_of_picking_up_are_above_the_table_and_within_reach():
    task = PickUpAndOrient()
    env = MuJoCoEnv(task)
    for seed in range(50):
        env.reset(seed=seed)
        x, y, z = env.data.mocap_pos[0]
        assert z > 0.04 and math.hypot(x, y) < 0.2
        assert env.data.body("object").xpos[2] == pytest.approx(task.hand.radius)


def test_a_cylinder_to_pick_up_lies_below_the_hand_and_at_most_45_degrees_from_across_it():
    """An axis that points the other way would have to be turned end over end."""
    env, turns = MuJoCoEnv(PickUpAndOrient()), []
    for seed in range(100):
        env.reset(seed=seed)
        body = env.data.body("object")
        axis, across = rotation(body.xquat).apply([0, 0, 1]), np.array([0.0, 1.0, 0.0])
        turns.append(degrees_between(axis, across))
        assert axis[2] == pytest.approx(0.0, abs=1e-9) and 0.06 <= body.xpos[0] <= 0.11
    assert max(turns) <= 45.0 + 1e-6 and max(turns) > 40.0


def test_a_scripted_hand_catches_most_cylinders_and_an_idle_one_few():
    def held(make) -> float:
        task = Catch()
        env, kept = MuJoCoEnv(task), 0
        for seed in range(10):
            env.reset(seed=seed)
            act, ended = make(task), False
            for _ in range(150):
                _, _, ended, _, info = env.step(act(env.data))
                if ended:
                    break
            kept += not ended and info["held"]
        return kept / 10

    assert held(lambda task: Catcher(task.hand).act) >= 0.9
    assert held(lambda task: lambda data: np.zeros(13)) <= 0.3


def test_gymnasium_makes_the_tasks():
    env = gymnasium.make("paceline/Hand-v0", task="rotate_in_hand")
    assert env.spec.max_episode_steps is None and env.reset(seed=0)[0].shape == (72,)
    with pytest.raises(UsageError, match="'cetch' does not exist, did you mean 'catch'"):
        gymnasium.make("paceline/Hand-v0", task="cetch")


def test_a_short_training_run_reports_what_is_held(tmp_path):
    """All systems train on the hand; what an episode achieved is in the metrics."""
    run = pl.train(
        env="hand:catch",
        folder=tmp_path / "run",
        steps=600,
        device="cpu",
        rollout_steps=50,
        ppo={"epochs": 1, "minibatches": 1},
        pool={"kind": "serial", "num_envs": 4},
    )
    assert "episode_held" in run.metrics


def test_ids_are_checked_before_a_worker_starts():
    with pytest.raises(UsageError, match="'cetch'.*did you mean 'catch'"):
        make_pool("hand:cetch", PoolConfig(kind="serial", num_envs=1))
    with pytest.raises(UsageError, match="option 'size'"):
        make_pool("hand:catch?size=3", PoolConfig(kind="serial", num_envs=1))
    for steps in ("0", "-3", "1.5", "many"):
        with pytest.raises(UsageError, match=f"max_episode_steps of .* is {steps}; allowed: a whole number from 1"):
            make_pool(f"hand:catch?max_episode_steps={steps}", PoolConfig(kind="serial", num_envs=1))


@pytest.mark.parametrize(("name", "usual"), [("hand:pick_up_and_orient", 500), ("parkour:walker", 1000)])
def test_episodes_may_be_shorter(name, usual):
    """Truncated, so that the value of what would follow is not lost."""
    for env_id, length in ((f"{name}?max_episode_steps=3", 3), (name, usual)):
        with contextlib.closing(resolve(env_id).make(0)) as env:
            env.reset(seed=0)
            env._steps = length - 3
            ends = [env.step(np.zeros(env.action_space.shape, np.float32))[2:4] for _ in range(3)]
            assert ends == [(False, False), (False, False), (False, True)]


def test_a_cylinder_does_not_creep_in_a_still_hand():
    """MuJoCo's friction lets things slip slowly. With `impratio` 5 some fell out of still hands within ten seconds."""
    moved = []
    for seed in range(6):
        task = Catch()
        hand, env = task.hand, MuJoCoEnv(task)
        env.reset(seed=seed)
        act = Catcher(hand).act
        for _ in range(60):
            env.step(act(env.data))
        for _ in range(100):  # what was caught comes to rest
            env.step(np.zeros(13))
        before = hand.position(env.data) - hand.grasp_point(env.data)
        for _ in range(150):
            *_, ended, _, info = env.step(np.zeros(13))
        assert info["held"] and not ended, seed
        moved.append(np.linalg.norm(hand.position(env.data) - hand.grasp_point(env.data) - before))
    assert max(moved) < 0.003
