"""MuJoCo Warp on the CPU: arrays of Warp without a copy, the physics of plain MuJoCo, and a run of the command line.

The package compiles its kernels when they are first used, and keeps them in `~/.cache/warp`. The test takes about 24
seconds the first time, and eight later.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import paceline as pl
from paceline.pool import PoolConfig, make_pool
from tests.forks import run_paceline

mujoco = pytest.importorskip("mujoco")

NUM_ENVS = 3


@pytest.fixture(scope="module")
def warp_envs() -> ModuleType:
    """Imported by the process that needs it: MuJoCo Warp takes seconds."""
    pytest.importorskip("warp")
    pytest.importorskip("mujoco_warp")
    return importlib.import_module("tests.integration.warp_envs")


class Alone:
    """One of the environments, in plain MuJoCo."""

    def __init__(self, number: int, warp_envs: ModuleType) -> None:
        self.number, self.length, self.model = number, warp_envs.LENGTH, warp_envs.MODEL
        self.steps, self.data = number % self.length, mujoco.MjData(self.model)
        self.restart()

    def restart(self) -> None:
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[0] = 0.1 * self.number

    def step(self, action: np.ndarray) -> tuple[float, bool]:
        """The reward, and whether the episode has ended."""
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data)
        self.steps = (self.steps + 1) % self.length
        return -np.cos(self.data.qpos[0]), self.steps == 0

    def require_same(self, obs, slot: int) -> None:
        for name in ("qpos", "qvel"):
            np.testing.assert_allclose(obs[name][slot], getattr(self.data, name), rtol=1e-3, atol=1e-4)


def test_warp_arrays_are_stepped_as_by_mujoco_and_trained_on(tmp_path, warp_envs):
    """One test, so that kernels are compiled once."""
    compare_with_mujoco(warp_envs)
    train_and_evaluate(warp_envs, tmp_path / "run")


def compare_with_mujoco(warp_envs: ModuleType) -> None:
    generator, alone = np.random.default_rng(3), [Alone(number, warp_envs) for number in range(NUM_ENVS)]
    made, ends = [], 0

    def make(num_envs, device):
        made.append(warp_envs.Pendulums(num_envs, device))
        return made[-1]

    with make_pool(make, PoolConfig(num_envs=NUM_ENVS)) as pool:
        batch = pool.recv(None)
        assert batch.obs["qpos"].data_ptr() == made[0].data.qpos.ptr, "nothing is copied"
        for _ in range(3 * warp_envs.LENGTH):
            actions = generator.uniform(-1, 1, (NUM_ENVS, 1)).astype(np.float32)
            pool.send(actions, batch.slots)
            batch = pool.recv(None)
            for slot, env in enumerate(alone):
                reward, ended = env.step(actions[slot])
                assert abs(reward - batch.reward[slot]) < 1e-4
                assert (bool(batch.terminated[slot]), bool(batch.truncated[slot])) == (False, ended)
                if ended:
                    env.require_same(batch.final_obs, slot)
                    env.restart()
                    ends += 1
                env.require_same(batch.obs, slot)
        assert ends >= 3 * NUM_ENVS - 1 and len(pool.take_episodes()) == ends


def train_and_evaluate(warp_envs: ModuleType, folder: Path) -> None:
    small = ["--steps", 512, "--rollout-steps", 16, "--pool.num-envs", 8, "--ppo.minibatches", 1, "--device", "cpu"]
    env = f"{warp_envs.__file__}:Pendulums"
    done = run_paceline("train", "--env", env, "--run-dir", folder, *small)
    assert done.returncode == 0 and "512 steps" in done.stderr, done.stderr
    assert len(pl.evaluate(folder, episodes=4).episodes) == 4
