"""Recipes and families of environments of the user's own, and of other packages."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from paceline import recipes
from paceline.cli.envs import Envs
from paceline.cli.recipes import Recipes
from paceline.cli.train import find_start
from paceline.config import Config
from paceline.envs import registry
from paceline.errors import UsageError
from paceline.recipes.defaults import default_config

MODULE = """
from paceline.config import Config
from paceline.envs.gym import resolve as gym
from paceline.envs.ids import EnvId

def quick():
    "Train for a moment."
    return Config(steps=123)

def wrong():
    return {"steps": 3}

def of_size(size, *, steps=3):
    return Config(steps=steps)

def names():
    return ["pole"]

def resolve(env_id):
    return gym(EnvId("gym", "CartPole-v1"))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's own, in the current directory."""
    (tmp_path / "paceline_own.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield "paceline_own"
    sys.modules.pop("paceline_own", None)


@pytest.fixture
def installed(module, monkeypatch):
    """The same module, as an installed package would register it."""

    def entry_points(group):
        named = {recipes.ENTRY_POINTS: "paceline_own:quick", registry.ENTRY_POINTS: "paceline_own"}
        broken = {recipes.ENTRY_POINTS: "paceline_own:gone", registry.ENTRY_POINTS: "paceline_gone"}
        return [EntryPoint("their-own", named[group], group), EntryPoint("broken", broken[group], group)]

    for where in (recipes, registry):
        monkeypatch.setattr(where, "entry_points", entry_points)
    registry.families.cache_clear()
    yield module
    registry.families.cache_clear()


@pytest.mark.parametrize("name", ["paceline_own:quick", "./paceline_own.py:quick"])
def test_a_recipe_of_the_users_own(module, name):
    start = find_start([name, "--seed", "3"])
    assert start.config == Config(steps=123, recipe=name) and start.label == "quick"
    assert start.options == ["--seed", "3"]


def test_what_is_no_recipe_is_named(module):
    with pytest.raises(UsageError, match="recipe paceline_own:wrong returns a dict; allowed: a paceline.Config"):
        recipes.find("paceline_own:wrong")
    with pytest.raises(UsageError, match="module 'paceline_own' has no 'quik'"):
        recipes.find("paceline_own:quik")
    needs = "recipe paceline_own:of_size needs 'size'; allowed: a function without required arguments that returns a"
    with pytest.raises(UsageError, match=f"{needs} paceline.Config$"):
        recipes.find("paceline_own:of_size")
    own = "or package.module:function for your own"
    with pytest.raises(UsageError, match=rf"did you mean 'cartpole'\?; `paceline recipes` lists all, {own}"):
        recipes.find("cartploe")
    with pytest.raises(UsageError, match=f"recipe 'xyz' does not exist; `paceline recipes` lists all, {own}"):
        recipes.find("xyz")


def test_recipes_of_other_packages(installed, capsys):
    assert recipes.find("their_own").steps == 123
    Recipes().run()
    assert "their-own" in capsys.readouterr().out
    with pytest.raises(UsageError, match="recipe broken of the installed package is broken: paceline_own:gone"):
        recipes.find("broken")


def test_families_of_other_packages(installed, capsys):
    assert registry.resolve("their-own:pole").make(0).spec.id == "CartPole-v1"
    assert registry.code_named_by("their-own:pole") is None, "it is installed, as all families are"
    Envs("their-own").run()
    assert capsys.readouterr().out == "their-own:pole\n"
    with pytest.raises(UsageError, match="family 'broken' of an installed package is broken.*paceline_gone"):
        registry.resolve("broken:pole")
    with pytest.raises(UsageError, match="allowed: gym.*their-own"):
        registry.resolve("nothing:pole")


def test_an_environment_of_another_package_is_no_recipe(installed, monkeypatch):
    with pytest.raises(UsageError, match="'their-own:pole' is an environment and no recipe; allowed: --env their-own:"):
        find_start(["their-own:pole"])
    family = registry.Family(module="paceline_own", extra=None, example="", about="")
    monkeypatch.setitem(registry.families(), "paceline_own", family)
    assert find_start(["paceline_own:quick"]).config.steps == 123, "a recipe in a module with the name of a family"
    with pytest.raises(UsageError, match="module 'paceline_own' has no 'pole'.*; .* is --env paceline_own:pole$"):
        find_start(["paceline_own:pole"])


@pytest.mark.parametrize("task", ["catch", "pick_up_and_orient", "rotate_in_hand"])
def test_recipes_of_the_hand(task):
    """The paper's settings of manipulation, and FastTD3's: two updates after a step of all streams."""
    paper, fast = recipes.find(f"hand_{task}"), recipes.find(f"hand_{task}_fast")
    assert paper.env == f"hand:{task}" and paper.system == fast.system == "d4pg"
    assert fast.env == ("hand:catch?max_episode_steps=60" if task == "catch" else paper.env)
    assert (paper.pool.num_envs, paper.d4pg.batch, paper.d4pg.steps, paper.d4pg.noise) == (64, 512, 5, 0.3)
    assert paper.d4pg.actor_rate == paper.d4pg.critic_rate == 5e-5 and paper.control.value.atoms == 51
    assert fast.limiter.samples_per_insert * fast.pool.num_envs / fast.d4pg.batch == 2.0
    for config in (paper, fast):
        largest = 1.0 / (1.0 - config.d4pg.discount)
        assert (config.control.value.low, config.control.value.high) == (0.0, pytest.approx(largest))


class Planes(gymnasium.Env):
    """An observation of three dimensions."""

    action_space = spaces.Discrete(2)

    def __init__(self, highest=1, dtype=np.int8):
        self.observation_space = spaces.Box(0, highest, (8, 8, 2), dtype)

    def reset(self, *, seed=None, options=None):
        return np.zeros((8, 8, 2), self.observation_space.dtype), {}


def test_a_board_has_the_settings_of_vectors():
    """As the networks see it: planes of 0 and 1 are no image."""
    config, chosen_for = default_config(Planes)
    assert chosen_for == "vectors as observations, discrete actions" and config.policy.normalize_obs
    _, chosen_for = default_config(lambda: Planes(255, np.uint8))
    assert chosen_for == "images as observations, discrete actions"
