import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vizdoom")
pytest.importorskip("cv2")

import vizdoom
from gymnasium.utils.env_checker import check_env

from paceline.envs import doom_bots, doom_matches, resolve
from paceline.envs.doom import names
from paceline.errors import UsageError


@pytest.fixture
def make():
    """Builds environments and closes them after the test."""
    envs = []

    def make(text):
        envs.append(resolve(text).make(0))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def engines():
    """The processes that this one has started."""
    children = [Path(task, "children").read_text().split() for task in Path("/proc/self/task").iterdir()]
    return {int(pid) for pids in children for pid in pids}


def run_to_end(env, action=0):
    env.reset(seed=2)
    while not any((step := env.step(action))[2:4]):
        pass
    return step


@pytest.mark.parametrize("name", [name for name in names() if name not in doom_matches.SCENARIOS])
def test_every_scenario_starts_and_steps(make, name):
    env = make(f"doom:{name}?actions=multi_discrete")
    env.reset(seed=0)
    for _ in range(3):
        observation = env.step(env.action_space.sample())[0]
    assert env.observation_space.contains(observation)
    assert observation.max() > 0


def test_names_are_what_the_package_or_the_project_has_files_for():
    assert {"basic", "deathmatch", "my_way_home", "freedoom2", "take_cover", "battle", "duel"} <= set(names())
    assert not {"cig", "multi", "multi_duel", "doom", "doom2"} & set(names())


def test_matches_against_bots_side_by_side(make):
    """The heads are those of table A.4, death does not end an episode, and matches do not accumulate bots."""
    env_id = "doom:cig?bots=8&actions=multi_discrete&measurements=DEATHCOUNT,PLAYER_COUNT"
    envs = [make(env_id) for _ in range(2)]
    assert np.prod(envs[0].action_space.nvec) == 12096
    for env in envs:
        env.reset(seed=0)
        env.action_space.seed(0)
    deaths, after = 0, 0
    for _ in range(300):
        for env in envs:
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            assert not terminated and not truncated
        deaths, players = observation["measurements"]
        after += deaths > 0
        if after > 20:
            break
    assert players == 9 and deaths > 0
    envs[0].reset(seed=1)
    for _ in range(20):
        observation = envs[0].step(envs[0].action_space.sample())[0]
    assert observation["measurements"][1] == 9


class Game:
    """What a match asks of the engine."""

    def __init__(self):
        self.values, self.commands, self.dead = {}, [], False

    def get_game_variable(self, variable):
        return self.values.get(variable.name, 0.0)

    def is_player_dead(self):
        return self.dead

    def respawn_player(self):
        self.dead = False
        self.values["HEALTH"] = 100.0

    def send_game_command(self, command):
        self.commands.append(command)

    def set_available_buttons(self, buttons):
        assert len(buttons) == 15

    def set_episode_timeout(self, frames):
        assert frames == 4 * 60 * 35

    def add_game_args(self, arguments):
        assert "-deathmatch" in arguments


def test_what_a_match_is_rewarded_for():
    game = Game()
    match = doom_bots.Match(game, 2)
    game.values = {"HEALTH": 100.0, "SELECTED_WEAPON": 2.0}
    match.begin()
    assert game.commands == ["removebots", "addbot", "addbot"]
    assert match.reward() == 0.0
    game.values |= {"FRAGCOUNT": 1.0, "DAMAGECOUNT": 50.0, "HITCOUNT": 2.0}
    assert match.reward() == pytest.approx(1.0 + 50 * 0.003 + 2 * 0.01)
    game.values |= {"SELECTED_WEAPON": 3.0, "WEAPON3": 1.0}
    assert match.reward() == pytest.approx(0.1 - 0.01)
    game.values |= {"HEALTH": -999_900.0, "DEATHCOUNT": 1.0}  # as the engine reports after some deaths
    game.dead = True
    assert match.reward() == pytest.approx(-0.75 - 100 * 0.003)
    match.revive()
    game.values["SELECTED_WEAPON"] = -1.0
    assert match.reward() == 0.0, "health that it comes back with"
    game.values["FRAGCOUNT"] = 0.0  # its own rocket
    assert match.reward() == pytest.approx(-1.0)


def test_a_respawn_in_the_step_of_the_death_is_no_reward():
    game = Game()
    match = doom_bots.Match(game, 1)
    game.values = {"HEALTH": 100.0, "SELECTED_WEAPON": -1.0}
    match.begin()
    game.values["SELECTED_WEAPON"] = 5.0
    assert match.reward() == 0.0, "the weapon that it starts with"
    game.values |= {"HEALTH": 5.0, "ARMOR": 30.0, "SELECTED_WEAPON": 3.0}
    assert match.reward() == pytest.approx(-95 * 0.003 + 30 * 0.005 - 0.01)
    game.values |= {"DEATHCOUNT": 1.0, "HEALTH": 100.0, "ARMOR": 0.0, "WEAPON5": 1.0, "SELECTED_WEAPON": 5.0}
    assert match.reward() == pytest.approx(-0.75 - 5 * 0.003 - 30 * 0.001)
    game.values["HEALTH"] = 110.0
    assert match.reward() == pytest.approx(10 * 0.005), "what it finds afterwards counts"
    game.values |= {"DEATHCOUNT": 2.0, "HEALTH": 80.0, "SELECTED_WEAPON": -1.0}
    assert match.reward() == pytest.approx(-0.75 - 110 * 0.003), "hit again after the respawn"
    game.values["SELECTED_WEAPON"] = 5.0
    assert match.reward() == 0.0


def test_a_match_against_bots_follows_from_its_seed(make):
    """Also in another environment, and in the episodes after it. Only a reset with a seed takes a new engine."""
    streams = []
    for env in (make("doom:cig?bots=8&resolution=64x40"), make("doom:cig?bots=8&resolution=64x40")):
        env.reset(seed=len(streams))
        before = engines()
        first, _ = env.reset(seed=3)
        assert len(engines() - before) == 1
        before = engines()
        stream = [first, *(env.step(4)[0] for _ in range(30)), env.reset()[0], *(env.step(4)[0] for _ in range(10))]
        assert engines() == before
        streams.append(np.stack(stream))
    np.testing.assert_array_equal(*streams)
    assert not np.array_equal(streams[0][0], make("doom:cig?bots=8&resolution=64x40").reset(seed=4)[0])


def test_is_a_valid_environment(make):
    check_env(make("doom:basic?measurements=true"), skip_render_check=True)


def test_defaults(make):
    env = make("doom:my_way_home")
    assert env.observation_space.shape == (3, 72, 128)
    assert env.action_space.n == 6


def test_resolutions(make):
    resized = make("doom:my_way_home?resolution=100x50").reset(seed=4)[0]
    native = make("doom:my_way_home?resolution=160x120").reset(seed=4)[0]
    assert resized.shape == (3, 50, 100)
    assert native.shape == (3, 120, 160)
    assert abs(resized.mean() - native.mean()) < 5


def test_the_same_seed_is_the_same_episode_whatever_was_played_before(make):
    fresh, used = make("doom:health_gathering"), make("doom:health_gathering")
    used.reset(seed=1)
    for _ in range(20):
        used.step(3)
    streams = []
    for env in (fresh, used):
        stream = [env.reset(seed=9)[0], *(env.step(action)[0] for action in [1, 3, 3, 2, 3] * 3), env.reset()[0]]
        streams.append(np.stack(stream))
    np.testing.assert_array_equal(*streams)
    assert not np.array_equal(streams[0][0], streams[0][-1])


def test_measurements(make):
    env = make("doom:defend_the_center?measurements=true")
    observation, _ = env.reset(seed=0)
    assert observation["screen"].shape == (3, 72, 128)
    np.testing.assert_array_equal(observation["measurements"], np.array([26, 100], np.float32))  # AMMO2, HEALTH
    env = make("doom:my_way_home?measurements=health,armor")
    np.testing.assert_array_equal(env.reset(seed=0)[0]["measurements"], np.array([100, 0], np.float32))


def test_time_out_is_a_truncation_that_repeats_the_last_screen(make):
    env = make("doom:basic?frameskip=10")
    env.reset(seed=2)
    observation = None
    while True:
        before = observation
        observation, _, terminated, truncated, info = env.step(0)
        if terminated or truncated:
            break
    assert (terminated, truncated) == (False, True)
    np.testing.assert_array_equal(observation, before)
    assert info == {"ammo2": 50.0}


def test_death_is_a_termination(make):
    _, reward, terminated, truncated, info = run_to_end(make("doom:deadly_corridor"))
    assert (terminated, truncated) == (True, False)
    assert info["health"] <= 0
    assert reward < -50  # the penalty for it


def test_reached_goal_is_a_termination(make):
    env = make("doom:basic?actions=multi_discrete")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(2000):
        _, reward, terminated, truncated, _ = env.step(rng.integers(env.action_space.nvec))
        if reward > 50:  # the monster was hit
            break
        if truncated:
            env.reset()
    assert (terminated, truncated) == (True, False)


def test_close_ends_the_engine_and_no_file_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = engines()
    envs = [resolve("doom:basic").make(index) for index in range(2)]
    assert len(engines() - before) == 2
    assert os.listdir(tmp_path) == []  # whatever ends it now, nothing stays
    for env in envs:
        env.close()
    assert engines() == before
    assert os.listdir(tmp_path) == []


def test_scenario_of_ones_own(make, tmp_path):
    source = Path(vizdoom.scenarios_path)
    text = (source / "basic.cfg").read_text()
    (tmp_path / "mine.cfg").write_text(text)
    (tmp_path / "basic.wad").write_bytes((source / "basic.wad").read_bytes())
    assert make(f"doom:{tmp_path}/mine.cfg").action_space.n == 4


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("doom:my_way", "scenario 'my_way' .* did you mean 'my_way_home'"),
        ("doom:cig", "needs several players; allowed: basic, .* or doom:cig.bots=8"),
        ("doom:cig?bots=16", "allowed: at most 15"),
        ("doom:basic?bots=2", "is for deathmatches: cig"),
        ("doom:nowhere.cfg", "scenario file 'nowhere.cfg' .* does not exist"),
        ("doom:basic?resolution=9000x10", "allowed: at most 1920x1080"),
        ("doom:basic?actions=continuous", "allowed: discrete, multi_discrete"),
        ("doom:basic?measurements=HELTH", "did you mean 'HEALTH'"),
        ("doom:basic?measurements=HEALTH,health", "allowed: each game variable once"),
        ("doom:my_way_home?measurements=true", "allowed: names such as HEALTH,AMMO2"),
        (
            "doom:basic?skip=4",
            "option 'skip' .* allowed: resolution, frameskip, actions, measurements, reward_scale, bots",
        ),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)
