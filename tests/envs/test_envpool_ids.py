"""Ids of the envpool family: what is found, what is refused, and what the refusal says."""

import pickle

import numpy as np
import pytest

pytest.importorskip("envpool")

from paceline.envs.envpool import names, spaces_of
from paceline.envs.registry import resolve
from paceline.errors import UsageError


def test_a_task_becomes_a_factory():
    factory = resolve("envpool:Breakout-v5?stack_num=2")
    assert factory.backend == "envpool"
    assert factory.frameskip == 4
    assert factory.label == "envpool:Breakout-v5?stack_num=2"
    assert spaces_of(factory.make.spec())[0].shape == (2, 84, 84)
    assert pickle.loads(pickle.dumps(factory)) == factory


def test_frameskip_is_the_tasks_own():
    assert resolve("envpool:Breakout-v5?frame_skip=2").frameskip == 2
    assert resolve("envpool:HalfCheetah-v5").frameskip == 5
    assert resolve("envpool:CartPole-v1").frameskip == 1


def test_names_are_tasks():
    assert {"CartPole-v1", "Breakout-v5", "CheetahRun-v1"} <= set(names())


def test_an_unknown_task_names_its_neighbours():
    with pytest.raises(UsageError, match=r"no task 'Breakot-v5', did you mean 'Breakout-v5'"):
        resolve("envpool:Breakot-v5")


def test_an_unknown_option_lists_those_allowed():
    with pytest.raises(UsageError, match=r"option 'frameskip' .* did you mean 'frame_skip'.* allowed: .*episodic_life"):
        resolve("envpool:Breakout-v5?frameskip=2")


@pytest.mark.parametrize("option", ["num_envs", "seed", "num_threads", "max_num_players"])
def test_what_the_pool_decides_is_no_option(option):
    with pytest.raises(UsageError, match=f"option '{option}'"):
        resolve(f"envpool:CartPole-v1?{option}=1")


def test_an_option_of_the_wrong_type_is_named():
    with pytest.raises(UsageError, match="stack_num='many'"):
        resolve("envpool:Breakout-v5?stack_num=many")


def test_batch_size_is_nothing_or_one():
    assert resolve("envpool:CartPole-v1?batch_size=1").make.batch_size == 1
    with pytest.raises(UsageError, match=r"batch_size is 4 .*allowed: 0 .* and 1"):
        resolve("envpool:CartPole-v1?batch_size=4")


def test_several_players_are_refused():
    with pytest.raises(UsageError, match=r"'TicTacToe-v1' has 2 players.*pettingzoo"):
        resolve("envpool:TicTacToe-v1")


def test_boxes_without_bounds_have_none():
    """EnvPool writes the smallest positive number where it means minus infinity."""
    observation_space, _ = spaces_of(resolve("envpool:CheetahRun-v1").make.spec())
    assert np.isneginf(observation_space["velocity"].low).all()
    assert np.isposinf(observation_space["velocity"].high).all()
