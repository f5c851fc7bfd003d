"""`habitat:` on a stand-in of habitat-lab (see its docstring). Habitat itself is not installed where tests run."""

import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from paceline.envs import resolve
from paceline.envs.habitat import own_scenes
from paceline.envs.ids import EnvId
from paceline.envs.registry import code_named_by, load
from paceline.errors import MissingPackage, UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool

STAND_IN = Path(__file__).parent / "habitat_stand_in"
CONFIG = "benchmark/nav/pointnav/pointnav_line.yaml"
ID = f"habitat:{CONFIG}"
STOP, FORWARD, LEFT = 0, 1, 2


@pytest.fixture(autouse=True)
def _habitat(monkeypatch, tmp_path):
    """The stand-in as the installed package, and its episodes in the current folder."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "episodes").mkdir()
    for split in ("train", "val"):
        (tmp_path / "episodes" / f"{split}.json").touch()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("habitat", "habitat_sim")]:
        del sys.modules[name]


def play(env, goal=None):
    """Walk to the goal and stop, or turn until the time is over; the last step."""
    steps = [FORWARD] * goal + [STOP] if goal is not None else [LEFT] * 6
    for action in steps:
        last = env.step(action)
    return last


def episodes(env, count):
    """The scenes and numbers of the next episodes."""
    found = []
    for _ in range(count):
        env.reset()
        episode = env._task_env.habitat_env.current_episode
        found.append(episode.scene_id + episode.episode_id)
    return found


def test_spaces_are_gymnasiums_and_images_channel_first():
    env = resolve(ID).make(0)
    assert env.observation_space["rgb"] == spaces.Box(0, 255, (3, 4, 4), np.uint8)
    assert env.observation_space["depth"] == spaces.Box(0.0, 1.0, (1, 4, 4), np.float32)
    assert env.observation_space["pointgoal"].shape == (2,)
    assert env.action_space == spaces.Discrete(4)
    obs, info = env.reset(seed=1)
    assert info == {} and env.observation_space.contains(obs)
    assert obs["rgb"][:, 0, 1].tolist() == [10, 20, 30]
    assert env.render().shape == (8, 8, 3)
    env.close()
    assert env._env.closed


def test_an_episode_ends_with_its_measures():
    env = resolve(ID).make(0)
    obs, _ = env.reset(seed=1)
    _, reward, terminated, truncated, info = play(env, goal=int(obs["pointgoal"][0]))
    assert terminated and not truncated and reward == pytest.approx(2.49)
    assert info["success"] == 1.0 and 0.5 <= info["spl"] < 1.0
    assert info["collisions.count"] == 3


def test_the_end_of_the_time_is_a_truncation():
    env = resolve(ID).make(0)
    env.reset(seed=1)
    *_, terminated, truncated, info = play(env)
    assert truncated and not terminated and info["success"] == 0.0
    env.reset()
    for _ in range(5):
        env.step(LEFT)
    *_, terminated, truncated, _ = env.step(STOP)  # at the last moment, and in the wrong place
    assert terminated and not truncated


def test_success_without_a_stop_is_a_termination():
    env = resolve(f"{ID}?habitat.task.success_measure=collisions").make(0)  # a measure that is always true
    env.reset(seed=1)
    *_, terminated, truncated, _ = env.step(LEFT)
    assert terminated and not truncated
    env = resolve(f"{ID}?habitat.task.success_measure=collisions&habitat.task.end_on_success=false").make(0)
    env.reset(seed=1)
    *_, terminated, truncated, _ = play(env)
    assert truncated and not terminated


def test_continuous_actions_are_kept_within_their_bounds():
    env = resolve(f"{ID}?habitat.task.continuous=true").make(0)
    assert env.action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)
    env.reset(seed=1)
    obs, *_ = env.step(np.array([7.0], np.float64))
    assert obs["depth"].max() == pytest.approx(0.1)


def test_other_actions_are_refused():
    with pytest.raises(UsageError) as raised:
        resolve(f"{ID}?habitat.task.two_agents=true").make(0)
    assert str(raised.value) == f"the actions of the Habitat config '{CONFIG}' are a Dict; allowed: Discrete, Box"


def test_a_seed_gives_the_same_episodes_again():
    env, other = resolve(ID).make(0), resolve(ID).make(1)
    env.reset(seed=5)
    first = episodes(env, 12)
    env.reset(seed=5)
    assert episodes(env, 12) == first and len(set(first)) == 12
    env.reset(seed=6)
    assert episodes(env, 12) != first
    assert env._task_env.habitat_env.seeds == [100, 5, 5, 6] and other._task_env.habitat_env.seeds == [101]


def test_the_option_seed_replaces_that_of_the_run():
    envs = [resolve(f"{ID}?seed=40").make(index) for index in (0, 1)]
    for env, seed in zip(envs, (40, 41), strict=True):
        env.reset(seed=7)
        assert env._task_env.habitat_env.seeds == [seed, seed]
    assert episodes(envs[0], 6) != episodes(envs[1], 6)


def test_split_settings_and_scenes():
    env = resolve(
        f"{ID}?split=val&habitat.environment.iterator_options.shuffle=false&habitat.simulator.resolution=8"
    ).make(0)
    assert env.observation_space["rgb"].shape == (3, 8, 8)
    env.reset(seed=1)
    assert episodes(env, 3) == ["val_a1", "val_a2", "val_a3"]
    for index, scenes in enumerate([{"train_a", "train_b"}, {"train_c", "train_a"}, {"train_b", "train_c"}]):
        assert {episode.scene_id for episode in resolve(f"{ID}?scenes=2").make(index)._episodes} == scenes


def test_scenes_of_an_environment():
    assert own_scenes(["a", "b", "c"], 1, 4) == ["b"]
    assert own_scenes(["a", "b", "c", "d", "e"], 2, 2) == ["e", "a"]
    assert sorted(own_scenes(["a", "b", "c"], 9, 4)) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_in_pools(kind):
    config = PoolConfig(kind=kind, num_envs=2, workers=2 if kind == "process" else None)
    with make_pool(ID, config, seed=1) as pool:
        assert pool.spec.measures == ("success", "spl")
        for _ in range(13):
            batch = pool.recv(min_slots=None)
            assert batch.obs["rgb"].shape == (2, 3, 4, 4) and batch.obs["depth"].shape == (2, 1, 4, 4)
            pool.send(np.full(2, LEFT), batch.slots)
        done = pool.take_episodes()
    assert [episode.length for episode in done] == [6] * 4
    assert done[0].info == {
        "success": 0.0,
        "spl": 0.0,
        "distance_to_goal_reward": 0.0,
        "collisions.count": 3.0,
        "collisions.is_collision": 0.0,
    }


def test_a_factory_travels_without_habitat():
    child = "import sys, cloudpickle; cloudpickle.load(sys.stdin.buffer); assert 'habitat' not in sys.modules"
    subprocess.run([sys.executable, "-c", child], input=cloudpickle.dumps(resolve(ID)), timeout=300, check=True)


def test_names_are_the_benchmarks_of_the_package():
    assert load("habitat").names() == [CONFIG]


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("habitat?split=val", "names no config; allowed: habitat:benchmark"),
        ("habitat:benchmark/nav/pointnav/pointnav_lin.yaml", "does not exist, did you mean '.*pointnav_line.yaml'"),
        (f"{ID}?spilt=val", "'spilt'.*did you mean 'split'.*allowed: split, seed, scenes, habitat.SETTING"),
        (f"{ID}?seed=-1", "option 'seed' of .* is -1; allowed: an integer of at least 0"),
        (f"{ID}?scenes=few", "option 'scenes' of .* is 'few'; allowed: an integer"),
        (f"{ID}?habitat.tsk.x=1", "cannot be composed: Could not override 'habitat.tsk.x'. Key 'tsk' is not in struct"),
        (f"{ID}?split=test", "episodes .* not there: 'episodes/test.json' does not exist; python -m habitat_sim.utils"),
    ],
)
def test_bad_ids_say_what_is_allowed(env_id, message):
    with pytest.raises(UsageError, match=message) as raised:
        resolve(env_id)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("package", ["habitat", "habitat_sim"])
def test_missing_packages_say_what_to_install(monkeypatch, tmp_path, package):
    for name in ("habitat", "habitat_sim"):
        if name != package:
            (tmp_path / name).symlink_to(STAND_IN / name)
    sys.path.remove(str(STAND_IN))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        MissingPackage, match=f"No module named '{package}'.*conda install habitat-sim.*pip install habitat-lab"
    ):
        resolve(ID)


def test_configs_that_may_name_code(tmp_path):
    assert code_named_by(ID) is None
    assert code_named_by(f"{ID}?split=val&habitat.seed=3") is None
    assert "settings, which may be the names of modules" in code_named_by(f"{ID}?habitat.env_task_gym_id=evil:Env-v0")
    (tmp_path / "own.yaml").touch()
    for name in ("own.yaml", str(tmp_path / "own.yaml"), "../evil.yaml"):
        assert "which may name modules" in code_named_by(f"habitat:{name}")


def test_settings_in_hydras_notation():
    overrides = resolve(
        f"{ID}?habitat.task.continuous=False&habitat.dataset.content_scenes=['a','b']&habitat.seed=1e5"
        "&habitat.task.success_measure=null"
    ).make.settings.overrides
    assert overrides == (
        "habitat.task.continuous=false",
        "habitat.dataset.content_scenes=['a','b']",
        "habitat.seed=100000.0",
        "habitat.task.success_measure=null",
    )


def test_a_list_may_have_hydras_notation():
    assert resolve(f"{ID}?habitat.dataset.content_scenes=[a,b]").make.settings.overrides == (
        "habitat.dataset.content_scenes=[a,b]",
    )


TEXTS = {
    "/data/{split}/{split}.json.gz": "'/data/{split}/{split}.json.gz'",
    "/data/a,b (c=d)": "'/data/a,b (c=d)'",
    "1e5": "'1e5'",
    "it's": r"'it\'s'",
    r"C:\a\'": r"'C:\a\\\''",
    "\\": r"'\\'",
}
"""Texts, and how Hydra has them."""


def overrides_of(text):
    options = {"habitat.dataset.data_path": text, "habitat.dataset.content_scenes": [text, "b"]}
    return load("habitat")._settings(EnvId.parse(str(EnvId("habitat", CONFIG, options)))).overrides


@pytest.mark.parametrize(("text", "quoted"), TEXTS.items())
def test_texts_are_quoted_for_hydra(text, quoted):
    assert overrides_of(text) == (
        f"habitat.dataset.data_path={quoted}",
        f"habitat.dataset.content_scenes=[{quoted},'b']",
    )


@pytest.mark.parametrize("text", TEXTS)
def test_hydra_reads_the_quoted_texts(text):
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    assert [parser.parse_override(one).value() for one in overrides_of(text)] == [text, [text, "b"]]


def test_paths_of_episodes_may_have_special_characters(tmp_path):
    (tmp_path / "a,b=(val)").touch()
    env = resolve(f"{ID}?split=val&habitat.dataset.data_path={tmp_path}/a,b=({{split}})").make(0)
    env.reset(seed=1)
    assert episodes(env, 1)[0].startswith("val_")
