"""What holds for the factory of every family: it travels to a fresh process, and imports nothing there until called."""

import subprocess
import sys

import cloudpickle
import pytest

from paceline.envs import resolve

HEAVY = ["torch", "ale_py", "cv2", "vizdoom", "dm_control", "mujoco", "pettingzoo"]

CHILD = f"""
import sys, cloudpickle
factory = cloudpickle.load(sys.stdin.buffer)
assert not set(sys.modules) & set({HEAVY!r}), set(sys.modules) & set({HEAVY!r})
env = factory.make(3)
env.reset(seed=1)
env.close()
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("env_id", "package", "frameskip"),
    [
        ("gym:CartPole-v1", "gymnasium", 1),
        ("atari:Pong", "ale_py", 4),
        ("atari:Pong?frameskip=2", "ale_py", 2),
        ("doom:basic", "vizdoom", 4),
        ("dmc:pendulum-swingup?frameskip=3", "dm_control", 3),
        ("pettingzoo:classic.rps_v2", "pettingzoo", 1),
        ("synthetic:minority", "gymnasium", 1),
        ("gymnasium.envs.classic_control:CartPoleEnv", "gymnasium", 1),
    ],
)
def test_travels_to_a_fresh_process(env_id, package, frameskip):
    pytest.importorskip(package)
    factory = resolve(env_id)
    assert factory.label == env_id
    assert factory.frameskip == frameskip
    child = subprocess.run(
        [sys.executable, "-c", CHILD], input=cloudpickle.dumps(factory), capture_output=True, timeout=300, check=False
    )
    assert child.returncode == 0, child.stderr.decode()
