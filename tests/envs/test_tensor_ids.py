"""Ids of batched simulators: built-in ones, and the user's own classes."""

from __future__ import annotations

import subprocess
import sys
import typing

import cloudpickle
import pytest

from paceline.envs import resolve
from paceline.envs.registry import code_named_by
from paceline.envs.tensor import ATTRIBUTES, METHODS
from paceline.errors import UsageError
from paceline.pool import PoolConfig, make_pool
from paceline.pool.tensor import TensorSimulator

MODULE = """
from paceline.envs.tensor_cartpole import TensorCartPole

class Mine(TensorCartPole):
    def __init__(self, num_envs, device, speed=1):
        super().__init__(num_envs, device)
        self.speed = speed

class NoMethods:
    def __init__(self, num_envs, device): pass
    def reset(self, seed): pass

class NoSpaces:
    num_envs, frameskip, device = 1, 1, "cpu"
    def __init__(self, num_envs, device): pass
    reset = step = state_dict = load_state_dict = lambda self: None

class Demanding:
    def __init__(self, num_envs, device, scene): pass
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """The current directory, with a module `paceline_batched`."""
    (tmp_path / "paceline_batched.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    sys.modules.pop("paceline_batched", None)


def test_a_class_of_the_users_own_runs_in_a_tensor_pool():
    with make_pool("tensor:paceline_batched:Mine?speed=3", PoolConfig(num_envs=5, groups=2)) as pool:
        assert pool.spec.on_device and pool.spec.num_envs == 5
        assert len(pool.recv(min_slots=None)) == 5
    assert resolve("tensor:paceline_batched:Mine?speed=3").make(2).speed == 3


def test_it_travels_to_a_process_that_started_elsewhere(tmp_path):
    shipped = cloudpickle.dumps(resolve("tensor:paceline_batched:Mine"))
    code = "import sys, cloudpickle; print(cloudpickle.load(sys.stdin.buffer).make(4).num_envs)"
    child = subprocess.run([sys.executable, "-c", code], input=shipped, capture_output=True, cwd="/", check=True)
    assert child.stdout.decode().strip() == "4"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("NoMethods", "is no tensor simulator: it lacks step, state_dict, load_state_dict .*TensorSimulator"),
        ("Demanding", r"needs 'scene'; give them as options: tensor:paceline_batched:Demanding\?scene=\.\.\."),
        ("Mine?sped=1", "option 'sped' .* did you mean 'speed'"),
        ("Mien", "has no 'Mien', .* did you mean 'Mine'"),
    ],
)
def test_what_is_wrong_with_a_class_is_said_before_anything_starts(env, message):
    with pytest.raises(UsageError, match=message):
        resolve(f"tensor:paceline_batched:{env}")


def test_attributes_that_an_instance_lacks_are_named():
    with pytest.raises(UsageError, match="paceline_batched:NoSpaces .* it lacks observation_space, action_space "):
        make_pool("tensor:paceline_batched:NoSpaces", PoolConfig(num_envs=1))


def test_unknown_names_say_what_is_allowed():
    with pytest.raises(UsageError, match="'cartpol', did you mean 'cartpole'.*or package.module:Class for your own"):
        resolve("tensor:cartpol")


def test_an_id_that_names_code_says_so():
    assert code_named_by("tensor:my.sims:Mine") == "import the module 'my.sims' and call 'Mine'"
    assert code_named_by("tensor:cartpole") is None


def test_the_required_members_are_those_of_the_protocol():
    methods = {name for name in vars(TensorSimulator) if callable(vars(TensorSimulator)[name]) and name[0] != "_"}
    assert methods == set(METHODS)
    assert set(typing.get_type_hints(TensorSimulator)) == set(ATTRIBUTES)
