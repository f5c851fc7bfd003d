import numpy as np
import pytest

pytest.importorskip("dm_control")

from gymnasium.utils.env_checker import check_env

from paceline.envs import resolve
from paceline.envs.dmc import names
from paceline.errors import UsageError


def run_to_end(env):
    env.reset(seed=0)
    steps = 0
    while True:
        steps += 1
        *_, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape, np.float32))
        if terminated or truncated:
            return steps, terminated, truncated


def test_is_a_valid_environment():
    check_env(resolve("dmc:cheetah-run").make(0), skip_render_check=True)


def test_spaces():
    env = resolve("dmc:humanoid-walk").make(0)
    shapes = {key: box.shape for key, box in env.observation_space.items()}
    assert shapes["head_height"] == (1,)  # a number in dm_control
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert env.action_space.shape == (21,)


def test_flat_is_the_concatenation():
    parts, flat = (resolve(f"dmc:hopper-hop{option}").make(0) for option in ("", "?flat=true"))
    observation = parts.reset(seed=3)[0]
    np.testing.assert_array_equal(np.concatenate(list(observation.values())), flat.reset(seed=3)[0])
    assert flat.observation_space.contains(flat.step(flat.action_space.sample())[0])


def test_seeds():
    env = resolve("dmc:cartpole-swingup?flat=true").make(0)
    first, second, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_time_limit_is_a_truncation_and_frames_are_skipped():
    assert run_to_end(resolve("dmc:pendulum-swingup").make(0)) == (1000, False, True)
    assert run_to_end(resolve("dmc:pendulum-swingup?frameskip=4").make(0)) == (250, False, True)


def test_rewards_of_skipped_frames_are_added():
    single, double = (resolve(f"dmc:cartpole-balance{option}").make(0) for option in ("", "?frameskip=2"))
    single.reset(seed=0)
    double.reset(seed=0)
    action = np.zeros(1, np.float32)
    assert double.step(action)[1] == pytest.approx(single.step(action)[1] + single.step(action)[1])


def test_discount_zero_is_a_termination():
    env = resolve("dmc:lqr-lqr_2_1").make(0)
    task = env._env.task
    task.get_termination = lambda physics: 0.0
    env.reset(seed=0)
    assert env.step(np.zeros(1, np.float32))[2:4] == (True, False)


def test_names():
    assert {"cheetah-run", "humanoid_CMU-run", "ball_in_cup-catch"} <= set(names())


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("dmc:cheetah-runs", "task 'cheetah-runs' .* did you mean 'cheetah-run'"),
        ("dmc:cheetah", "task 'cheetah' .* allowed: acrobot-swingup, "),
        ("dmc:cheetah-run?repeat=2", "option 'repeat' .* allowed: frameskip, flat"),
        ("dmc:cheetah-run?frameskip=0", "allowed: an integer of at least 1"),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)
