import sys

import pytest

pytest.importorskip("pettingzoo")

from gymnasium import spaces

from paceline.envs import resolve
from paceline.envs.pettingzoo import names
from paceline.errors import MissingExtra, UsageError


@pytest.mark.parametrize("name", ["pettingzoo.classic.rps_v2", "classic.rps_v2"])
def test_with_and_without_the_packages_name(name):
    env = resolve(f"pettingzoo:{name}?num_actions=5&max_cycles=3").make(0)
    env.reset(seed=0)
    assert env.possible_agents == ["player_0", "player_1"]
    assert env.action_space("player_1") == spaces.Discrete(5)
    for _ in range(3):
        *_, truncations, _ = env.step({"player_0": 0, "player_1": 1})
    assert truncations == {"player_0": True, "player_1": True}


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of the user's."""
    (tmp_path / "paceline_agents.py").write_text(
        """
from gymnasium import spaces

class Pair:
    possible_agents = ["a", "b"]

    def __init__(self, choices):
        self.choices = choices

    def observation_space(self, agent):
        return spaces.Discrete(2)

    def action_space(self, agent):
        return spaces.Discrete(self.choices)

    def close(self):
        pass

def parallel_env(choices=2):
    return Pair(choices)
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "paceline_agents"
    sys.modules.pop("paceline_agents", None)


def test_modules_of_ones_own(own_module):
    assert resolve(f"pettingzoo:{own_module}").make(0).possible_agents == ["a", "b"]
    with pytest.raises(UsageError, match=r"option 'choice' .* did you mean 'choices'"):
        resolve(f"pettingzoo:{own_module}?choice=3")


def test_turn_based_modules():
    env = resolve("pettingzoo:classic.tictactoe_v3?screen_height=200").make(0)
    env.reset(seed=0)
    assert env.possible_agents == ["player_1", "player_2"] and env.agent_selection == "player_1"


def test_names_are_found_without_importing():
    assert {"pettingzoo.butterfly.pistonball_v6", "pettingzoo.classic.rps_v2"} <= set(names())


def test_missing_dependency(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymunk", None)
    for name in [name for name in sys.modules if "pistonball" in name]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"pymunk.*pip install 'paceline\[pettingzoo\]'"):
        resolve("pettingzoo:butterfly.pistonball_v6")


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("pettingzoo:classic.rps_v1", "module 'classic.rps_v1' .* did you mean 'classic.rps_v2'"),
        ("pettingzoo:pettingzoo.butterfly.pistonbal_v6", "did you mean 'pettingzoo.butterfly.pistonball_v6'"),
        ("pettingzoo:pettingzoo.utils", "has neither parallel_env nor env"),
        ("pettingzoo:classic.tictactoe_v3?height=5", "option 'height' .* allowed: render_mode, screen_height"),
        ("pettingzoo:classic.rps_v2?actions=5", "option 'actions' .* allowed: num_actions"),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)
