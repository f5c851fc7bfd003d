"""Ids of the envpool family: what is found, what is refused, and what the refusal says."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("envpool")

from paceline.envs import envpool_opengl
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


@pytest.mark.parametrize("option", ["stack_num=0", "frame_skip=0", "img_height=0", "img_width=-1"])
def test_sizes_below_one_are_refused(option):
    """EnvPool takes them, and crashes."""
    with pytest.raises(UsageError, match=r"is (0|-1); allowed: a whole number from 1"):
        resolve(f"envpool:Breakout-v5?{option}")


def test_an_episode_has_at_least_one_step():
    with pytest.raises(UsageError, match="max_episode_steps of 'envpool:CartPole-v1.*' is 0; allowed"):
        resolve("envpool:CartPole-v1?max_episode_steps=0")


PIXELS = "envpool:HalfCheetah-v4?from_pixels=true&render_width=16&render_height=16"


def output_of(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.fixture
def renderer():
    """Skips where MuJoCo cannot render by EGL."""
    pytest.importorskip("mujoco")
    try:
        from mujoco.egl import GLContext

        GLContext(8, 8).free()
    except Exception as error:
        pytest.skip(f"EGL does not render here: {error}")


@pytest.mark.skipif(bool(envpool_opengl.MISSING), reason=f"{envpool_opengl.MISSING} is not installed")
def test_images_are_rendered(renderer):
    program = f"from paceline.envs import resolve; print(resolve({PIXELS!r}).make(1).reset()[0].std() > 0)"
    assert output_of(program) == "True"


def test_images_without_opengl_are_refused(monkeypatch):
    monkeypatch.setattr(envpool_opengl, "MISSING", "libEGL.so.1")
    with pytest.raises(UsageError, match=r"libEGL.so.1 cannot be loaded; install libegl1, libopengl0 and libgl1-mesa"):
        resolve(PIXELS)


def test_images_are_refused_if_envpool_was_imported_too_early(monkeypatch):
    monkeypatch.setattr(envpool_opengl, "MISSING", "")
    monkeypatch.setattr(envpool_opengl, "IS_LATE", True)
    with pytest.raises(UsageError, match=r"imported envpool before OpenGL.*allowed: .*paceline.envs.envpool first"):
        resolve(PIXELS)
    resolve("envpool:HalfCheetah-v4?from_pixels=false")


def test_several_players_are_refused():
    with pytest.raises(UsageError, match=r"'TicTacToe-v1' has 2 players.*pettingzoo"):
        resolve("envpool:TicTacToe-v1")


def test_boxes_without_bounds_have_none():
    """EnvPool writes the smallest positive number where it means minus infinity."""
    observation_space, _ = spaces_of(resolve("envpool:CheetahRun-v1").make.spec())
    assert np.isneginf(observation_space["velocity"].low).all()
    assert np.isposinf(observation_space["velocity"].high).all()
