import os
import subprocess
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from paceline.envs import mujoco_rendering, resolve
from paceline.envs.gym import names
from paceline.errors import UsageError


class Counter(gymnasium.Env):
    """Counts to `limit`; registered in tests only."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, limit=5):
        self.limit = limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count == self.limit, False, {}


@pytest.fixture
def counter_id():
    gymnasium.register("PacelineCounter-v0", entry_point=Counter, max_episode_steps=50)
    yield "PacelineCounter-v0"
    del gymnasium.registry["PacelineCounter-v0"]


def test_keeps_the_time_limit_and_drops_the_checkers():
    env = resolve("gym:CartPole-v1").make(0)
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    assert type(env.env) is gymnasium.envs.classic_control.CartPoleEnv


def test_same_stream_as_gymnasium_itself():
    ours, theirs = resolve("gym:CartPole-v1").make(0), gymnasium.make("CartPole-v1")
    np.testing.assert_array_equal(ours.reset(seed=7)[0], theirs.reset(seed=7)[0])
    for action in [0, 1, 1, 0, 1]:
        for left, right in zip(ours.step(action), theirs.step(action), strict=True):
            np.testing.assert_array_equal(left, right)


def test_options_are_arguments_and_max_episode_steps(counter_id):
    env = resolve(f"gym:{counter_id}?limit=9&max_episode_steps=2").make(0)
    assert env.unwrapped.limit == 9
    env.reset()
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]
    unlimited = resolve(f"gym:{counter_id}?max_episode_steps=-1").make(0)
    assert unlimited is unlimited.unwrapped


def test_resolving_leaves_the_registration_alone(counter_id):
    resolve(f"gym:{counter_id}?limit=9&max_episode_steps=2")
    assert gymnasium.spec(counter_id).kwargs == {}
    assert gymnasium.spec(counter_id).max_episode_steps == 50


def test_registered_here_works_in_another_process():
    class Local(Counter):  # by value: no other process can import it
        pass

    gymnasium.register("PacelineLocal-v0", entry_point=Local)
    try:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        shipped = cloudpickle.dumps(resolve("gym:PacelineLocal-v0?limit=2"))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        del gymnasium.registry["PacelineLocal-v0"]
    code = "import sys, cloudpickle; e = cloudpickle.load(sys.stdin.buffer).make(0); e.reset(); print(e.step(1)[0][0])"
    child = subprocess.run([sys.executable, "-c", code], input=shipped, capture_output=True, timeout=300, check=True)
    assert child.stdout.split() == [b"1.0"]


def test_imports_the_module_that_registers(tmp_path, monkeypatch):
    (tmp_path / "paceline_registers.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('PacelineImported-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    resolve("gym:paceline_registers:PacelineImported-v0").make(0).reset(seed=0)
    del gymnasium.registry["PacelineImported-v0"]


def test_names_are_registered_ids():
    assert "CartPole-v1" in names()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("gym:CartPol-v1", "is not a registered Gymnasium environment, did you mean 'CartPole-v1'"),
        ("gym:no_such_module_of_ours:CartPole-v1", "module 'no_such_module_of_ours' .* cannot be imported"),
        (
            "gym:CartPole-v1?barto_reward=1",
            "option 'barto_reward' .* does not exist, did you mean 'sutton_barto_reward'",
        ),
        ("gym:CartPole-v1?max_episode_steps=0", "'max_episode_steps' .* is 0; allowed: a positive integer"),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)


def test_only_environments_of_mujoco_choose_a_renderer(monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setattr(mujoco_rendering, "find_library", lambda name: name)
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone after the test
        monkeypatch.delenv(name)
    resolve("gym:CartPole-v1").make(0)
    assert "MUJOCO_GL" not in os.environ
    resolve("gym:InvertedPendulum-v5").make(0)
    assert os.environ["MUJOCO_GL"] == "egl"


def test_missing_dependency_found_while_resolving(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"needs a package that is not installed.*Box2D"):
        resolve("gym:LunarLander-v3")


def test_missing_dependency_found_while_making(counter_id):
    def make():
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    gymnasium.registry[counter_id].entry_point = make
    with pytest.raises(UsageError, match=r"not installed.*pip install 'paceline\[mujoco\]'"):
        resolve(f"gym:{counter_id}").make(0)
