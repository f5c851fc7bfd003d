"""The Gymnasium environment: its rules, the same streams as in a batch, and rendering."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import paceline.sims.navigation
from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.env import NavigationEnv
from paceline.sims.navigation.simulator import Navigation


@pytest.mark.parametrize("sensors", ["depth", "depth+rgb", "blind"])
def test_gymnasium_s_checker_finds_nothing(sensors):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = {"scenes": 2, "resolution": 8, "sensors": sensors, "render_mode": "rgb_array"}
        env = gymnasium.make("paceline/PointNav-v0", disable_env_checker=True, **options)
        check_env(env.unwrapped, skip_render_check=False)


def test_it_is_registered():
    paceline.sims.navigation.register()  # again, which does no harm
    env = gymnasium.make("paceline/PointNav-v0", tier="small", scenes=2, resolution=8)
    obs, _ = env.reset(seed=1)
    assert obs["depth"].shape == (1, 8, 8)
    with pytest.raises(UsageError, match="'resolutoin'.*did you mean 'resolution'"):
        gymnasium.make("paceline/PointNav-v0", resolutoin=8)


def test_its_streams_are_those_of_a_batch(small_bank):
    options = {"resolution": 8, "max_episode_steps": 10}
    batch = Navigation(4, "cpu", PointNavConfig(**options), bank=small_bank)
    envs = [NavigationEnv(stream=i, bank=small_bank, **options) for i in range(4)]
    obs = batch.reset(5)
    for i, env in enumerate(envs):
        first, _ = env.reset(seed=5)
        assert all(np.array_equal(first[name], obs[name][i]) for name in obs)
    rng = np.random.default_rng(0)
    num_ends = 0
    for _ in range(40):
        actions = rng.choice(4, 4, p=[0.05, 0.6, 0.2, 0.15])
        step = batch.step(torch.from_numpy(actions))
        for i, env in enumerate(envs):
            got, reward, terminated, truncated, info = env.step(actions[i])
            assert all(np.array_equal(got[name], step.final_obs[name][i]) for name in got)
            assert reward == float(step.reward[i])
            assert (terminated, truncated) == (bool(step.terminated[i]), bool(step.truncated[i]))
            if terminated or truncated:
                assert info["spl"] == float(batch.last_measures["spl"][i])
                assert set(info) == set(batch.last_measures)
                num_ends += 1
                got, _ = env.reset()
                assert all(np.array_equal(got[name], step.obs[name][i]) for name in got)
            else:
                assert info == {}
    assert num_ends > 8


def test_resets_at_any_time(small_bank):
    env = NavigationEnv(bank=small_bank, resolution=8)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(1)
    first, _ = env.reset(seed=3)
    env.step(1)
    second, _ = env.reset()
    assert not np.array_equal(first["goal"], second["goal"])
    env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(1)
    again, _ = env.reset(seed=3)
    assert np.array_equal(first["goal"], again["goal"])


def test_without_a_seed_environments_differ(small_bank):
    goals = {tuple(NavigationEnv(bank=small_bank, sensors="blind").reset()[0]["goal"].tolist()) for _ in range(5)}
    assert len(goals) > 1


def test_rendering(small_bank):
    env = NavigationEnv(render_mode="rgb_array", bank=small_bank, sensors="blind", max_episode_steps=30)
    env.reset(seed=0)
    start = env.render()
    assert start.shape == (256, 512, 3)
    assert start.dtype == np.uint8
    seen, above = start[:, :256], start[:, 256:]
    assert seen.std() > 10  # not one colour
    for color in ((37, 99, 235), (220, 38, 38), (46, 160, 67)):  # start, goal and shortest path
        assert (np.abs(above.astype(int) - color).sum(2) < 20).sum() > 5, color
    for _ in range(29):
        *_, truncated, _ = env.step(1)
    moved = env.render()
    assert (moved[:, :256] != seen).mean() > 0.1
    *_, truncated, _ = env.step(1)
    assert truncated
    # The last frame shows the episode that has ended, although the simulator has begun the next one.
    assert (env.render()[:, 256:] != moved[:, 256:]).mean() < 0.05
    env.reset()
    assert (env.render()[:, 256:] != moved[:, 256:]).mean() > 0.05
    assert NavigationEnv(bank=small_bank).render() is None
    with pytest.raises(ValueError, match="render_mode 'human' does not exist"):
        NavigationEnv(render_mode="human", bank=small_bank)
