import numpy as np
import pytest
import torch

pytest.importorskip("dm_control")

from gymnasium.utils.env_checker import check_env

from paceline.config import Config
from paceline.envs import dmc
from paceline.envs import resolve as resolve_any
from paceline.envs.dmc import names
from paceline.errors import UsageError
from paceline.pool import PoolConfig, make_pool
from paceline.pool.env_state import env_state, restore_env
from paceline.recipes.control import SUITE
from paceline.session import pool_config


def resolve(env_id):
    """dm_control's own environment, wherever else there is one."""
    factory = resolve_any(env_id)
    return factory.single or factory


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


def rollout(env, steps, seed):
    rng, rows = np.random.default_rng(seed), []
    low, high = np.maximum(env.action_space.low, -1), np.minimum(env.action_space.high, 1)
    for _ in range(steps):
        observation, reward, *_ = env.step(rng.uniform(low, high).astype(np.float32))
        rows.append(np.append(observation, reward))
    return rows


CHANGE_THEIR_MODEL = [
    "finger-spin",
    "fish-swim",
    "manipulator-insert_peg",
    "point_mass-hard",
    "reacher-hard",
    "stacker-stack_2",
    "swimmer-swimmer6",
]


@pytest.mark.parametrize("task", ["cartpole-swingup", "cheetah-run", "lqr-lqr_2_1", *CHANGE_THEIR_MODEL])
def test_a_saved_state_is_small_and_continues_with_the_same_bits(task):
    """All of the model takes 12 MB."""
    env, other = (resolve(f"dmc:{task}?flat=true").make(index) for index in range(2))
    env.reset(seed=3)
    other.reset(seed=9)
    rollout(other, 2, seed=1)
    for steps in (0, 5):  # at the start of an episode, and later
        rollout(env, steps, seed=0)
        state = env_state(env)
        assert len(state) < 20_000
        restore_env(other, state)
        np.testing.assert_array_equal(rollout(env, 6, seed=2), rollout(other, 6, seed=2))
        np.testing.assert_array_equal(env.reset()[0], other.reset()[0])  # the random numbers go on, too


def test_a_state_may_be_restored_twice():
    env = resolve("dmc:hopper-hop?flat=true").make(0)
    env.reset(seed=3)
    state = env.get_state()
    runs = []
    for _ in range(2):
        env.set_state(state)
        runs.append([*rollout(env, 4, seed=0), np.append(env.reset()[0], 0.0)])
    np.testing.assert_array_equal(*runs)


def test_all_environments_of_lqr_are_the_same_system():
    one, other = (resolve("dmc:lqr-lqr_6_2?flat=true").make(index) for index in range(2))
    first, second, different = (env.reset(seed=seed)[0] for env, seed in ((one, 1), (other, 1), (other, 2)))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(second, different)
    one.reset(seed=2)
    np.testing.assert_array_equal(rollout(one, 5, seed=0), rollout(other, 5, seed=0))


@pytest.mark.parametrize("task", ["lqr-lqr_6_2", "reacher-easy"])
def test_episodes_without_a_seed_differ(task):
    one, other = (resolve(f"dmc:{task}?flat=true").make(0).reset()[0] for _ in range(2))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(("task", "rate"), [("cheetah-run", 100), ("fish-swim", 25)])
def test_videos_have_the_rate_of_the_tasks_steps(task, rate):
    assert resolve(f"dmc:{task}").make(0).metadata["render_fps"] == rate


def test_names():
    assert {"cheetah-run", "humanoid_CMU-run", "ball_in_cup-catch"} <= set(names())


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("dmc:cheetah-runs", "task 'cheetah-runs' .* did you mean 'cheetah-run'"),
        ("dmc:cheetah", "task 'cheetah' .* allowed: acrobot-swingup, "),
        ("dmc:cheetah-run?repeat=2", "option 'repeat' .* allowed: frameskip, flat, pixels, stack, camera, shadows"),
        ("dmc:cheetah-run?frameskip=0", "allowed: an integer of at least 1"),
        ("dmc:cheetah-run?pixels=84&flat=true", "'flat' .* is for vectors only"),
        ("dmc:cheetah-run?pixels=84x84x3", "'pixels' .* allowed: positive sizes such as 84x84"),
        ("dmc:cheetah-run?pixels=84&stack=0", "'stack' .* allowed: an integer of at least 1"),
        ("dmc:cheetah-run?stack=3", "'stack' .* allowed: together with pixels=84"),
        ("dmc:manipulation-reach_site", "did you mean 'manipulation-reach_site_"),
        ("dmc:manipulation-reach_site_features?pixels=84", "allowed: the tasks whose names end in _vision"),
        ("dmc:manipulation-reach_site_vision?flat=true", "'flat' .* is for vectors only"),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)


def vectors(env_id, kind):
    """Shapes of what a pool shows, in order, and its action space."""
    with make_pool(env_id, PoolConfig(kind=kind, num_envs=1)) as pool:
        batch = pool.recv(min_slots=None)
        return [(name, rows.shape, rows.dtype) for name, rows in batch.obs.items()], pool.spec.action_space


@pytest.mark.parametrize("task", SUITE[::2])
def test_envpool_shows_what_dm_control_shows_in_the_same_order(task):
    """fish-swim and the humanoids are those where EnvPool itself has other observations, or another order."""
    pytest.importorskip("envpool")
    assert resolve_any(f"dmc:{task}").backend == "envpool"
    for options in ("", "?flat=true"):
        assert vectors(f"dmc:{task}{options}", "envpool") == vectors(f"dmc:{task}{options}", "serial")


def test_flat_in_envpool_has_dm_controls_order():
    """fish-swim's is neither EnvPool's nor the alphabet's."""
    pytest.importorskip("envpool")
    order = list(resolve("dmc:fish-swim").make(0)._env.observation_spec())
    assert order != sorted(order)
    shown = []
    for options in ("", "?flat=true"):
        with make_pool(f"dmc:fish-swim{options}", PoolConfig(kind="envpool", num_envs=2), seed=3) as pool:
            shown.append(pool.recv(min_slots=None).obs)
    parts, flat = shown
    np.testing.assert_array_equal(np.concatenate([parts[name] for name in order], axis=1), flat["obs"])


def test_envpool_has_the_physics_and_rewards_of_dm_control():
    """Cheetahs are put where EnvPool's are, and both go on with the same actions."""
    pytest.importorskip("envpool")
    env = resolve("dmc:cheetah-run?flat=true").make(0)
    env.reset(seed=0)
    physics, rng, rewards = env._env.physics, np.random.default_rng(0), []
    with make_pool("dmc:cheetah-run?flat=true", PoolConfig(num_envs=1), seed=5) as pool:
        for seed in range(6):
            pool.reset(seed)
            batch = pool.recv(min_slots=None)
            with physics.reset_context():
                physics.data.qpos[1:], physics.data.qvel[:] = batch.obs["obs"][0, :8], batch.obs["obs"][0, 8:]
            for _ in range(10):
                action = rng.uniform(-1, 1, 6).astype(np.float32)
                observation, reward, *_ = env.step(action)
                pool.send(action[None], batch.slots)
                batch = pool.recv(min_slots=None)
                np.testing.assert_allclose(batch.obs["obs"][0], observation, rtol=1e-3, atol=1e-3)
                np.testing.assert_allclose(batch.reward[0], reward, rtol=1e-3, atol=1e-4)
                rewards.append(reward)
    assert max(rewards) > 0.01  # some ran forward


def test_episodes_in_envpool_end_by_truncation_with_their_own_last_observation():
    pytest.importorskip("envpool")
    with make_pool("dmc:fish-swim", PoolConfig(num_envs=2), seed=1) as pool:
        batch = pool.recv(min_slots=None)
        actions = np.zeros((2, 5), np.float32)
        for _ in range(1000):
            assert not (batch.terminated | batch.truncated).any()
            pool.send(actions, batch.slots)
            batch = pool.recv(min_slots=None)
        assert batch.truncated.all() and not batch.terminated.any()
        assert set(batch.final_obs) == {"joint_angles", "upright", "target", "velocity"}
        assert not np.allclose(batch.final_obs["target"], batch.obs["target"])  # the next episode's is elsewhere
        assert [episode.length for episode in pool.take_episodes()] == [1000, 1000]


def test_who_wants_restarts_or_determinism_gets_dm_control():
    pytest.importorskip("envpool")
    with make_pool("dmc:cheetah-run", PoolConfig(num_envs=1, on_error="restart")) as pool:
        assert pool.can_restore
    config = Config(env="dmc:cheetah-run?flat=true", system="d4pg", deterministic=True)
    assert pool_config(config, config.env, torch.device("cpu")).kind == "serial"


def test_without_envpool_or_with_skipped_frames_it_is_dm_control(monkeypatch):
    assert resolve_any("dmc:cheetah-run?frameskip=2").backend is None
    assert resolve_any("dmc:lqr-lqr_2_1").backend is None  # which has no time limit in dm_control
    dmc._in_envpool.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert resolve_any("dmc:cheetah-run").backend is None
    dmc._in_envpool.cache_clear()
