"""The Jaco arm of dm_control."""

import numpy as np
import pytest

pytest.importorskip("dm_control")

from gymnasium.utils.env_checker import check_env

from paceline.envs import resolve
from paceline.envs.dmc import names
from paceline.errors import UsageError
from paceline.pool.env_state import env_state

REACH = "dmc:manipulation-reach_site_features"


def after(env, steps=3, seed=0):
    """All numbers of the observation after random actions."""
    rng = np.random.default_rng(seed)
    low, high = env.action_space.low, env.action_space.high
    for _ in range(steps):
        observation, *_ = env.step(rng.uniform(low, high).astype(np.float32))
    return np.concatenate([values.ravel() for values in observation.values()])


def test_is_a_valid_environment_of_vectors():
    env = resolve(REACH).make(0)
    check_env(env, skip_render_check=True)
    assert {key: box.shape for key, box in env.observation_space.items()}["jaco_arm/joints_pos"] == (12,)
    assert env.action_space.shape == (9,) and np.isfinite(env.action_space.high).all()


def test_flat_is_the_concatenation():
    parts, flat = (resolve(f"{REACH}{option}").make(0) for option in ("", "?flat=true"))
    observation = parts.reset(seed=3)[0]
    np.testing.assert_array_equal(np.concatenate(list(observation.values())), flat.reset(seed=3)[0])


@pytest.mark.parametrize("task", ["stack_2_of_3_bricks_random_order_features", "lift_large_box_features"])
def test_a_seed_decides_an_episode(task):
    """Also of an environment that has played before, and of a task that changes its model from episode to episode."""
    one, other = (resolve(f"dmc:manipulation-{task}").make(0) for _ in range(2))
    one.reset(seed=5)
    after(one)
    found = []
    for env, seed in ((one, 1), (other, 1), (other, 2)):
        env.reset(seed=seed)
        found.append(after(env))
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[1], found[2])


def test_episodes_are_truncated_after_ten_seconds():
    env = resolve(f"{REACH}?frameskip=50").make(0)
    env.reset(seed=0)
    ends = [env.step(np.zeros(9, np.float32))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


def test_its_state_cannot_be_saved():
    with pytest.raises(UsageError, match="the state of .* cannot be saved"):
        env_state(resolve(REACH).make(0))


def test_vision_has_an_image_beside_vectors():
    try:
        env = resolve("dmc:manipulation-reach_site_vision").make(0)
    except UsageError as error:
        pytest.skip(str(error))
    image = env.observation_space["front_close"]
    assert image.shape == (84, 84, 3) and image.dtype == np.uint8
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation) and observation["front_close"].std() > 0


def test_names():
    assert {"manipulation-reach_site_features", "manipulation-lift_brick_vision", "cheetah-run"} <= set(names())
