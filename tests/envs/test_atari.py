import numpy as np
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

import ale_py
import gymnasium
from gymnasium.utils.env_checker import check_env

from paceline.envs import resolve
from paceline.envs.atari import names
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.env_state import UnreadableState, env_state, restore_env
from paceline.pool.process import ProcessPool

PLAIN = "fire_reset=false&clip_rewards=false"


def make(options="", game="Breakout"):
    return resolve(f"atari:{game}{options and '?' + options}").make(0)


def reference(
    *, game="breakout", frameskip=4, stack=4, size=84, grayscale=True, noop=0, max_frames=108_000, sticky=0.0
):
    """What Gymnasium users build from ale-py's environment and Gymnasium's wrappers."""
    env = ale_py.env.AtariEnv(
        game=game, frameskip=1, repeat_action_probability=sticky, max_num_frames_per_episode=max_frames
    )
    env = gymnasium.wrappers.AtariPreprocessing(
        env, noop_max=noop, frame_skip=frameskip, screen_size=size, grayscale_obs=grayscale
    )
    return gymnasium.wrappers.FrameStackObservation(env, stack)


def assert_same_streams(ours, theirs, num_steps, transpose=None):
    """Step both with the same seed and actions; return how many episodes ended."""
    actions = np.random.default_rng(5).integers(ours.action_space.n, size=num_steps)
    convert = transpose or (lambda observation: observation)
    np.testing.assert_array_equal(ours.reset(seed=11)[0], convert(theirs.reset(seed=11)[0]))
    ends = []
    for action in actions:
        observation, reward, terminated, truncated, _ = ours.step(action)
        expected, *rest, _ = theirs.step(action)
        np.testing.assert_array_equal(observation, convert(expected))
        assert [reward, terminated, truncated] == rest
        if terminated or truncated:
            ends.append("terminated" if terminated else "truncated")
            np.testing.assert_array_equal(ours.reset()[0], convert(theirs.reset()[0]))
    return ends


def test_equals_gymnasiums_wrappers_frame_by_frame():
    ends = assert_same_streams(make(f"noop=0&{PLAIN}"), reference(), num_steps=300)
    assert ends.count("terminated") >= 2


def test_equals_gymnasiums_wrappers_with_noops_and_sticky_actions():
    options = f"noop=30&repeat_action_probability=0.25&{PLAIN}"
    assert_same_streams(make(options, "SpaceInvaders"), reference(game="space_invaders", noop=30, sticky=0.25), 100)


def test_equals_gymnasiums_wrappers_at_truncation():
    ends = assert_same_streams(make(f"noop=0&max_frames=101&{PLAIN}"), reference(max_frames=101), num_steps=90)
    assert ends == ["truncated"] * 3


def test_equals_gymnasiums_wrappers_with_other_sizes():
    options = f"noop=0&frameskip=3&stack=2&resolution=64&{PLAIN}"
    assert_same_streams(make(options), reference(frameskip=3, stack=2, size=64), num_steps=40)
    assert_same_streams(make(f"noop=0&frameskip=1&stack=1&{PLAIN}"), reference(frameskip=1, stack=1), num_steps=40)


def test_equals_gymnasiums_wrappers_in_colour():
    ours = make(f"noop=0&grayscale=false&stack=2&{PLAIN}")
    assert ours.observation_space.shape == (6, 84, 84)
    theirs = reference(grayscale=False, stack=2)
    assert_same_streams(ours, theirs, 40, transpose=lambda frames: np.concatenate(frames.transpose(0, 3, 1, 2)))


def test_is_a_valid_environment():
    check_env(make(), skip_render_check=True)


def test_resolution_is_width_times_height():
    env = make("resolution=96x72")
    assert env.observation_space.shape == (4, 72, 96)
    assert env.reset(seed=0)[0].shape == (4, 72, 96)


def test_observations_are_the_callers_to_keep():
    env = make()
    first, _ = env.reset(seed=1)
    before = first.copy()
    second = env.step(1)[0]
    env.step(1)
    np.testing.assert_array_equal(first, before)
    assert not np.shares_memory(first, second)


def play(env, num_games, seed=3):
    """Random play; yields every step as (reward, terminated, truncated, info) until `num_games` were over."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    while num_games:
        _, reward, terminated, truncated, info = env.step(rng.integers(env.action_space.n))
        yield reward, terminated, truncated, info
        if terminated or truncated:
            num_games -= "score" in info
            env.reset()


def test_score_is_the_games_own_when_rewards_are_clipped():
    # Space Invaders gives 5 to 30 points a hit.
    env = make("max_frames=1600", "SpaceInvaders")
    clipped = [(reward, info) for reward, _, _, info in play(env, 1)]
    raw = [reward for reward, _, _, _ in play(make("max_frames=1600&clip_rewards=false", "SpaceInvaders"), 1)]
    assert {reward for reward, _ in clipped} == {0.0, 1.0}
    assert clipped[-1][1]["score"] == sum(raw) > sum(reward for reward, _ in clipped)
    assert all("score" not in info for _, info in clipped[:-1])


def test_episodic_life_ends_episodes_but_not_the_game():
    env = make("episodic_life=true")
    ends = [(terminated, truncated, info) for _, terminated, truncated, info in play(env, 2) if terminated or truncated]
    assert [end[:2] for end in ends] == [(True, False)] * 10
    assert [info["lives"] for *_, info in ends] == [4, 3, 2, 1, 0] * 2
    assert ["score" in info for *_, info in ends] == ([False] * 4 + [True]) * 2


def test_episodic_life_keeps_the_score_of_the_whole_game():
    env = make("episodic_life=true&clip_rewards=false")
    steps = list(play(env, 1))
    assert steps[-1][3]["score"] == sum(reward for reward, *_ in steps)


def test_truncation_under_episodic_life_starts_a_new_game():
    env = make("episodic_life=true&max_frames=400")
    ends = [step[1:] for step in play(env, 3, seed=0) if step[1] or step[2]]
    assert all(terminated != truncated for terminated, truncated, _ in ends)
    assert all(truncated == ("score" in info) for _, truncated, info in ends)  # no game of 400 frames is lost
    assert any(terminated for terminated, _, _ in ends)
    assert env.reset()[1]["lives"] == 5


def test_a_life_lost_as_time_runs_out_is_a_termination():
    env = make(f"episodic_life=true&noop=0&{PLAIN}")
    env.reset(seed=0)
    while not env.step(1)[2]:
        pass
    frames = env._ale.getEpisodeFrameNumber()
    env = make(f"episodic_life=true&noop=0&max_frames={frames}&{PLAIN}")
    env.reset(seed=0)
    while not any((end := env.step(1))[2:4]):
        pass
    assert end[2:4] == (True, False)
    assert "score" in end[4]
    assert env.reset()[1]["lives"] == 5


def test_a_reset_in_the_middle_of_a_life_starts_a_new_game():
    env = make("episodic_life=true")
    env.reset(seed=0)
    while not env.step(0 if env._ale.lives() < 5 else 1)[2]:
        pass
    assert env.reset()[1]["lives"] == 4
    env.step(0)
    assert env.reset()[1]["lives"] == 5
    while not env.step(1)[2]:
        pass
    assert env.reset(seed=0)[1]["lives"] == 5


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("Pong", "noop=0&repeat_action_probability=0.5"),
        ("Breakout", "noop=5&repeat_action_probability=0.25&episodic_life=true"),
        ("SpaceInvaders", "noop=5&max_frames=100&grayscale=false"),
    ],
)
def test_a_restored_game_goes_on_to_the_bit(game, options):
    """Also after its end, and in an environment that has played something else with another seed."""
    rng, saved, restored, ends = np.random.default_rng(0), make(options, game), make(options, game), 0
    saved.reset(seed=0)
    restored.reset(seed=100)
    for _ in range(10):  # in some of these moments the emulator goes on with an earlier action
        restored.step(1)
        restore_env(restored, env_state(saved))
        for action in rng.integers(saved.action_space.n, size=10):
            observation, *expected = saved.step(action)
            found, *rest = restored.step(action)
            np.testing.assert_array_equal(found, observation)
            assert rest == expected
            if rest[1] or rest[2]:
                ends += 1
                np.testing.assert_array_equal(restored.reset()[0], saved.reset()[0])
    assert ends > 0 or game == "Pong"


def test_a_state_between_two_lives_continues_the_game():
    saved, restored = make("episodic_life=true"), make("episodic_life=true")
    saved.reset(seed=0)
    while not saved.step(1)[2]:
        pass
    restore_env(restored, env_state(saved))
    assert restored.reset()[1]["lives"] == saved.reset()[1]["lives"] == 4


@pytest.mark.parametrize(("game", "options"), [("Pong", ""), ("Breakout", "stack=2"), ("Breakout", "grayscale=false")])
def test_a_state_that_does_not_fit_is_refused_before_anything_changes(game, options):
    state, env, twin = env_state(make(options, game)), make("noop=0"), make("noop=0")
    for copy in (env, twin):
        copy.reset(seed=1)
    with pytest.raises(UnreadableState, match=f"the state is of {game.lower()} .* allowed: breakout 4x84x84 of"):
        restore_env(env, state)
    np.testing.assert_array_equal(env.step(1)[0], twin.step(1)[0])


@pytest.mark.usefixtures("forked_workers")
def test_a_pool_of_worker_processes_goes_on_with_its_games():
    """A new pool with the state of another one steps as that does."""
    config, rows = PoolConfig(num_envs=1, workers=1, nice=0), []
    with ProcessPool(resolve("atari:Pong?noop=0"), config, seed=1) as pool:
        batch = pool.recv(min_slots=None)
        for _ in range(5):
            pool.send(np.full(1, 2), batch.slots)
            batch = pool.recv(min_slots=None)
        state = pool.state()
        pool.send(np.full(1, 3), batch.slots)
        rows.append(next(iter(pool.recv(min_slots=None).obs.values())).copy())
    with ProcessPool(resolve("atari:Pong?noop=0"), config, seed=2) as pool:
        pool.recv(min_slots=None)
        assert len(pool.restore(state)) == 0
        pool.send(np.full(1, 3), pool.recv(min_slots=None).slots)
        rows.append(next(iter(pool.recv(min_slots=None).obs.values())).copy())
    np.testing.assert_array_equal(*rows)


def test_full_action_space():
    assert make().action_space.n == 4
    assert make("full_action_space=true").action_space.n == 18


def test_names_resolve_in_both_spellings():
    assert {"Breakout", "SpaceInvaders"} <= set(names())
    assert resolve("atari:space_invaders").make(0).action_space == resolve("atari:SpaceInvaders").make(0).action_space


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("atari:Breakot", "game 'Breakot' .* does not exist, did you mean 'Breakout'"),
        ("atari:Combat", "game 'Combat' .* does not exist"),
        ("atari:Breakout?frame_skip=4", "'frame_skip' .* did you mean 'frameskip'.* allowed: frameskip, stack"),
        ("atari:Breakout?rom=pong", "option 'rom' .* does not exist"),
        ("atari:Breakout?frameskip=0", "'frameskip' .* is 0; allowed: an integer of at least 1"),
        ("atari:Breakout?stack=two", "'stack' .* is 'two'; allowed: an integer"),
        ("atari:Breakout?resolution=84x84x3", "'resolution' .* allowed: positive sizes such as 84x84"),
        ("atari:Breakout?grayscale=1", "'grayscale' .* allowed: true or false"),
        ("atari:Breakout?repeat_action_probability=2", "allowed: a number of at least 0 and at most 1"),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)
