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
    """A module of the user's, whose agents differ in `different`."""
    (tmp_path / "paceline_agents.py").write_text(
        """
from gymnasium import spaces

class Pair:
    possible_agents = ["a", "b"]
    closed = False

    def __init__(self, different):
        self.different = different

    def observation_space(self, agent):
        return spaces.Discrete(3 if agent == "b" and self.different == "observation" else 2)

    def action_space(self, agent):
        return spaces.Discrete(3 if agent == "b" and self.different == "action" else 2)

    def close(self):
        pass

def parallel_env(different="nothing"):
    return Pair(different)
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "paceline_agents"
    sys.modules.pop("paceline_agents", None)


def test_modules_of_ones_own(own_module):
    assert resolve(f"pettingzoo:{own_module}").make(0).possible_agents == ["a", "b"]
    with pytest.raises(UsageError, match=r"option 'differ' .* did you mean 'different'"):
        resolve(f"pettingzoo:{own_module}?differ=action")


@pytest.mark.parametrize(
    ("kind", "wrapper"), [("observation", "pad_observations_v0"), ("action", "pad_action_space_v0")]
)
def test_agents_with_different_spaces_are_refused(own_module, kind, wrapper):
    factory = resolve(f"pettingzoo:{own_module}?different={kind}")
    with pytest.raises(UsageError, match=rf"different {kind} spaces: a has Discrete\(2\).*supersuit\.{wrapper}"):
        factory.make(0)


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
        ("pettingzoo:classic.tictactoe_v3", "has no parallel_env; environments in which agents take turns"),
        ("pettingzoo:classic.rps_v2?actions=5", "option 'actions' .* allowed: num_actions"),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)
