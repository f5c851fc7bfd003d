import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from paceline.envs import resolve, synthetic
from paceline.envs.synthetic import read_stamp
from paceline.errors import UsageError


@pytest.fixture
def spent(monkeypatch):
    """What environments would have slept or burnt, in order."""
    seconds = []
    monkeypatch.setattr(synthetic, "SPENDERS", {"sleep": seconds.append, "burn": lambda s: seconds.append(-s)})
    return seconds


@pytest.mark.parametrize("name", synthetic.names())
def test_is_a_valid_environment(name):
    check_env(resolve(f"synthetic:{name}?mean=0").make(0), skip_render_check=True)


@pytest.mark.parametrize("options", ["dtype=uint8", "dtype=float32", "obs=8", "obs=3&dtype=float32", "obs=128x72x3"])
def test_observations_say_where_they_come_from(options):
    env = resolve(f"synthetic:constant?episode_length=300&{options}").make(517)
    assert read_stamp(env.reset(seed=0)[0]) == (517, 0, 0)
    stamps = [read_stamp(env.step(0)[0]) for _ in range(300)]
    assert stamps == [(517, 0, step) for step in range(1, 301)]
    assert read_stamp(env.reset()[0]) == (517, 1, 0)
    assert read_stamp(env.reset(seed=0)[0]) == (517, 0, 0)


def test_rewards_are_the_actions():
    env = resolve("synthetic:constant?actions=7").make(0)
    env.reset(seed=0)
    assert [env.step(np.int64(action))[1] for action in range(7)] == list(range(7))


def test_observations_are_the_callers_to_keep():
    env = resolve("synthetic:constant").make(0)
    first, _ = env.reset()
    second, *_ = env.step(0)
    assert (read_stamp(first)[2], read_stamp(second)[2]) == (0, 1)


def ends(env, num_steps=1000, seed=0):
    """The steps within their episodes at which episodes ended, and how."""
    env.reset(seed=seed)
    found = []
    for _ in range(num_steps):
        observation, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            found.append((read_stamp(observation)[2], terminated, truncated))
            env.reset()
    return found


def test_ends():
    assert ends(resolve("synthetic:constant?episode_length=400").make(0)) == [(400, False, True)] * 2
    assert ends(resolve("synthetic:constant?terminate=300").make(0)) == [(300, True, False)] * 3
    assert ends(resolve("synthetic:constant?episode_length=300&terminate=300").make(0)) == [(300, True, False)] * 3
    assert ends(resolve("synthetic:constant?episode_length=0").make(0)) == []
    drawn = ends(resolve("synthetic:constant?terminate=0.1").make(0))
    assert 60 < len(drawn) < 140
    assert all(end[1:] == (True, False) for end in drawn)
    assert drawn == ends(resolve("synthetic:constant?terminate=0.1").make(1))
    assert drawn != ends(resolve("synthetic:constant?terminate=0.1").make(0), seed=1)


def test_costs_do_not_decide_ends(spent):
    assert ends(resolve("synthetic:lognormal?terminate=0.1&mean=1").make(0)) == ends(
        resolve("synthetic:constant?terminate=0.1").make(0)
    )


def test_spends_steps_and_resets(spent):
    env = resolve("synthetic:constant?mean=0.5&reset_seconds=2").make(0)
    env.reset(seed=0)
    env.step(0)
    env.step(1)
    assert spent == [2.0, 0.5, 0.5]


def test_spends_nothing_at_mean_zero(spent):
    env = resolve("synthetic:heavy_tail").make(0)
    env.reset(seed=0)
    env.step(0)
    assert spent == []


def test_burns_instead_of_sleeping(spent):
    env = resolve("synthetic:constant?mean=0.5&spend=burn").make(0)
    env.reset(seed=0)
    env.step(0)
    assert spent == [-0.5]


def test_burning_uses_cpu_time(monkeypatch):
    clock = iter([10.0, 10.1, 10.3, 10.6])
    monkeypatch.setattr(synthetic.time, "thread_time", lambda: next(clock))
    synthetic.burn(0.5)
    assert next(clock, None) is None


def test_costs_follow_the_seed(spent):
    env = resolve("synthetic:lognormal?mean=1&sigma=0.5").make(0)
    streams = []
    for seed in (1, 1, 2):
        spent.clear()
        env.reset(seed=seed)
        for _ in range(20):
            env.step(0)
        streams.append(list(spent))
    assert streams[0] == streams[1] != streams[2]


def test_minority_and_actions_cost_more(spent):
    for index in (0, 7):
        env = resolve("synthetic:minority?mean=1&slow=5&fraction=0.125").make(index)
        env.reset(seed=0)
        env.step(0)
    assert spent[1] == pytest.approx(5 * spent[0])
    spent.clear()
    env = resolve("synthetic:by_action?mean=1&slow=3&actions=2").make(0)
    env.reset(seed=0)
    env.step(0)
    env.step(1)
    assert spent == pytest.approx([0.5, 1.5])


def test_the_distribution_may_be_left_out():
    env = resolve("synthetic:?mean=0&obs=16").make(0)
    assert env.observation_space.shape == (16,)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("synthetic:lognormall", "distribution 'lognormall' .* did you mean 'lognormal'"),
        ("synthetic:constant?sigma=1", "option 'sigma' .* does not exist"),
        ("synthetic:constant?mean=-1", "'mean' .* is -1; allowed: a number of at least 0"),
        ("synthetic:constant?mean=inf", "'mean' .* allowed: a number"),
        ("synthetic:heavy_tail?alpha=1", "'alpha' .* allowed: a number above 1"),
        ("synthetic:minority?fraction=2", "allowed: a number of at least 0 and at most 1"),
        ("synthetic:minority?slow=0.5", "allowed: a number of at least 1"),
        ("synthetic:constant?spend=wait", "allowed: sleep, burn"),
        ("synthetic:constant?dtype=int8", "allowed: uint8, float32"),
        ("synthetic:constant?obs=7", "allowed: at least 8 numbers of uint8"),
        ("synthetic:constant?obs=3x-1", "allowed: positive sizes such as 3x72x128"),
        ("synthetic:constant?actions=0", "allowed: an integer of at least 1"),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)
