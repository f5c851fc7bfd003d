"""Control tasks from pixels, and how a renderer is chosen."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("dm_control")

from gymnasium.utils.env_checker import check_env

from paceline.envs import mujoco_rendering, resolve
from paceline.errors import UsageError
from paceline.pool.env_state import env_state, restore_env

TINY = "dmc:pendulum-swingup?pixels=16x12&shadows=false"


@pytest.fixture(scope="module")
def renderer():
    """Skips where nothing renders."""
    try:
        resolve(TINY).make(0).close()
    except UsageError as error:
        pytest.skip(str(error))


def rollout(env, steps, seed=0):
    """Observations after random actions."""
    rng = np.random.default_rng(seed)
    return [env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))[0] for _ in range(steps)]


def test_images_are_what_the_camera_sees_with_channels_first(renderer):
    env = resolve(TINY).make(0)
    check_env(env, skip_render_check=True)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (9, 12, 16) and observation.dtype == np.uint8
    observation = rollout(env, 2)[-1]
    seen = env.unwrapped.physics.render(12, 16, camera_id=0, render_flag_overrides={"shadow": False})
    np.testing.assert_array_equal(observation[-3:], seen.transpose(2, 0, 1))
    assert observation.std() > 0


def test_frames_are_stacked_oldest_first_and_an_episode_begins_with_its_first_frame(renderer):
    env = resolve(TINY).make(0)
    before, _ = env.reset(seed=1)
    np.testing.assert_array_equal(before, np.tile(before[:3], (3, 1, 1)))
    kept = before.copy()
    after = rollout(env, 1)[0]
    np.testing.assert_array_equal(after[:6], before[3:])
    assert not np.array_equal(after[6:], before[6:])
    np.testing.assert_array_equal(before, kept)  # a step changes no earlier observation


def test_a_stack_of_one_is_one_image(renderer):
    env = resolve(f"{TINY}&stack=1").make(0)
    assert env.observation_space.shape == (3, 12, 16)
    assert not np.array_equal(*rollout(env, 2))


def test_seeds_decide_images(renderer):
    one, other = (resolve(TINY).make(0) for _ in range(2))
    one.reset(seed=5)
    rollout(one, 3)
    first, same, different = one.reset(seed=1)[0], other.reset(seed=1)[0], other.reset(seed=2)[0]
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(same, different)


def test_a_saved_state_continues_with_the_same_images(renderer):
    env, other = (resolve(TINY).make(0) for _ in range(2))
    env.reset(seed=3)
    rollout(env, 2)
    state = env_state(env)
    other.reset(seed=9)
    restore_env(other, state)
    np.testing.assert_array_equal(rollout(env, 4), rollout(other, 4))


def test_a_saved_height_field_is_seen(renderer):
    """The terrain of quadruped-escape is another in each episode, and renderers have a copy of it."""
    env, other = (resolve("dmc:quadruped-escape?pixels=24&shadows=false&camera=0").make(0) for _ in range(2))
    env.reset(seed=3)
    other.reset(seed=9)
    restore_env(other, env_state(env))
    np.testing.assert_array_equal(rollout(env, 1), rollout(other, 1))


def test_shadows_and_cameras_are_options(renderer):
    pictures = [
        resolve(f"dmc:walker-walk?pixels=24&stack=1{option}").make(0).reset(seed=0)[0]
        for option in ("", "&shadows=false", "&camera=1")
    ]
    assert not np.array_equal(pictures[0], pictures[1]) and not np.array_equal(pictures[0], pictures[2])
    with pytest.raises(UsageError, match="camera 9 does not exist; allowed: 0 to "):
        resolve(f"{TINY}&camera=9").make(0)


def test_pixels_are_never_from_envpool():
    factory = resolve("dmc:cheetah-run?pixels=84&frameskip=2")
    assert factory.backend is None and factory.frameskip == 2


def chosen(monkeypatch, libraries, **environment):
    """`MUJOCO_GL` on a machine with these libraries."""
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(mujoco_rendering, "find_library", lambda name: name if name in libraries else None)
    mujoco_rendering.choose_renderer()
    found = os.environ.get("MUJOCO_GL")
    monkeypatch.setenv("MUJOCO_GL", "")  # so that what was set above is undone after the test
    return found


def test_without_a_display_a_renderer_is_chosen_that_is_there(monkeypatch):
    assert chosen(monkeypatch, {"EGL", "OSMesa"}) == "egl"
    assert chosen(monkeypatch, {"OSMesa"}) == "osmesa"
    assert chosen(monkeypatch, set()) == "off"


def test_a_display_or_the_users_choice_holds(monkeypatch):
    assert chosen(monkeypatch, {"EGL"}, MUJOCO_GL="glfw") == "glfw"
    assert chosen(monkeypatch, {"EGL"}, DISPLAY=":0") is None


@pytest.mark.parametrize("way", ["off", "osmesa-that-is-not-there"])
def test_a_missing_renderer_is_one_line(way):
    """Also one that fails as soon as dm_control is imported."""
    program = f"from paceline.envs import resolve; resolve({TINY!r}).make(0)"
    environment = {**os.environ, "MUJOCO_GL": way}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"paceline.errors.UsageError: MuJoCo cannot render here with MUJOCO_GL={way} (RuntimeError); "
    )
    assert "install libegl1 and libgl1-mesa-dri" in last


def test_tasks_without_images_need_no_renderer(tmp_path):
    """EGL is there, but it does not work: PyOpenGL finds nothing."""
    (tmp_path / "OpenGL").mkdir()
    (tmp_path / "OpenGL" / "__init__.py").write_text("raise ImportError('broken')")
    program = (
        "from paceline.envs import mujoco_rendering, resolve; mujoco_rendering.find_library = lambda name: name;"
        "print(resolve('dmc:pendulum-swingup?frameskip=2').make(0).reset(seed=0)[0])"
    )
    hidden = ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "orientation" in done.stdout
