"""Double pendulums in MuJoCo Warp, as a vector environment of Warp's own arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

mujoco = pytest.importorskip("mujoco")
warp = pytest.importorskip("warp")
mujoco_warp = pytest.importorskip("mujoco_warp")

warp.config.optimization_level = 0  # kernels compile three times as fast
LENGTH = 7
"""Steps of an episode."""
# Without constraints their solver is not compiled. Damping by Euler's method needs that solver, even if there is none.
MODEL = mujoco.MjModel.from_xml_string(
    """
    <mujoco>
      <option timestep="0.02"><flag contact="disable" constraint="disable" eulerdamp="disable"/></option>
      <worldbody>
        <body>
          <joint name="upper" axis="0 1 0"/>
          <geom type="capsule" fromto="0 0 0 0 0 -.5" size=".05"/>
          <body pos="0 0 -.5">
            <joint axis="0 1 0"/>
            <geom type="capsule" fromto="0 0 0 0 0 -.5" size=".05"/>
          </body>
        </body>
      </worldbody>
      <actuator><motor joint="upper" gear="20"/></actuator>
    </mujoco>
    """
)


class Pendulums(VectorEnv):
    """Observations are the simulator's own memory. Episodes begin at an angle of 0.1 times the environment's number,
    and the first ones have different lengths. The reward is the height of the upper pendulum's end."""

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs, self._device = num_envs, device
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        numbers = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_observation_space = spaces.Dict(qpos=numbers, qvel=numbers)
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)
        with warp.ScopedDevice(device):
            self._model = mujoco_warp.put_model(MODEL)
            self.data = mujoco_warp.put_data(MODEL, mujoco.MjData(MODEL), nworld=num_envs, nconmax=0, njmax=0)
        self._qpos, self._qvel, self._ctrl = map(warp.to_torch, (self.data.qpos, self.data.qvel, self.data.ctrl))
        self._starts = torch.zeros_like(self._qpos)
        self._starts[:, 0] = 0.1 * torch.arange(num_envs)

    def reset(self, *, seed=None, options=None):
        if options is None:
            self._steps = torch.arange(self.num_envs, device=self._device) % LENGTH
            ended = torch.ones_like(self._steps, dtype=torch.bool)
        else:
            ended = options["reset_mask"]
            self._steps.masked_fill_(ended, 0)
        self._qpos.copy_(torch.where(ended[:, None], self._starts, self._qpos))
        self._qvel.masked_fill_(ended[:, None], 0.0)
        return self._observation(), {}

    def step(self, actions):
        self._ctrl.copy_(actions)
        with warp.ScopedDevice(self._device):
            mujoco_warp.step(self._model, self.data)
        self._steps += 1
        truncated = self._steps >= LENGTH
        results = -self._qpos[:, 0].cos(), torch.zeros_like(truncated), truncated
        return self._observation(), *map(warp.from_torch, results), {}

    def _observation(self):
        return {"qpos": self.data.qpos, "qvel": self.data.qvel}
