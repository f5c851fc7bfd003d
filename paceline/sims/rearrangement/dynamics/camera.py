"""Depth images of the robot's camera: by MuJoCo's renderer, or by our own.

Both see the same: the robot's arm, but not its body.
"""

from __future__ import annotations

import atexit
import importlib
import os
import weakref
from typing import Any, Protocol

import mujoco
import numpy as np

from paceline.envs.mujoco_rendering import LIBRARIES, cannot_render, choose_renderer
from paceline.errors import UsageError
from paceline.sims.navigation.rendering.render import MAX_DEPTH
from paceline.sims.rearrangement.dynamics.config import DynamicsConfig
from paceline.sims.rearrangement.dynamics.house import HouseDynamics
from paceline.sims.rearrangement.dynamics.model import FARTHEST, NEAREST
from paceline.sims.rearrangement.dynamics.robot import CAMERA, HIDDEN
from paceline.sims.rearrangement.rendering.camera import HeadCamera, scenery
from paceline.sims.rearrangement.simulator import Rearrangement, Stream

_MOST_GEOMS = 1000


class DepthCamera(Protocol):
    def see(self, house: HouseDynamics, stream: Stream) -> dict[str, np.ndarray]:
        """The images of a robot; `stream` is its state. None of them without sensors."""
        ...

    def close(self) -> None: ...


def make_camera(config: DynamicsConfig, simulator: Rearrangement) -> DepthCamera:
    if config.renderer == "traced" or config.sensors == "blind":
        return TracedDepth(config, simulator)
    return OpenGLDepth(config)


class TracedDepth:
    """The images of the kinematic tasks."""

    def __init__(self, config: DynamicsConfig, simulator: Rearrangement) -> None:
        self._simulator = simulator
        self._camera = HeadCamera(simulator.bank, config, simulator.device)

    def see(self, house: HouseDynamics, stream: Stream) -> dict[str, np.ndarray]:
        seen = scenery(self._simulator.world_of(stream), stream.state, stream.scenes)
        return {name: image[0].numpy() for name, image in self._camera.see(seen).items()}

    def close(self) -> None:
        """Nothing is open."""


class OpenGLDepth:
    """The images of MuJoCo's renderer.

    One OpenGL context serves all houses: their models have no textures and meshes, so it holds nothing of them.
    """

    def __init__(self, config: DynamicsConfig) -> None:
        self._resolution, self._dtype = config.resolution, np.dtype(config.depth_dtype)
        self._context: mujoco.MjrContext | None = None
        self._rect = mujoco.MjrRect(0, 0, config.resolution, config.resolution)
        self._pixels = np.empty((config.resolution, config.resolution), np.float32)
        self._shown = mujoco.MjvOption()
        self._shown.geomgroup[HIDDEN] = 0
        self._view = mujoco.MjvCamera()

    def see(self, house: HouseDynamics, stream: Stream) -> dict[str, np.ndarray]:
        if self._context is None:
            self._open(house.model)
        self._gl.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(house.model, house.data, self._shown, None, self._view, everything, self._scene)
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(None, self._pixels, self._rect, self._context)
        # The buffer has 1 at the nearest and 0 at the farthest depth, and rows from below.
        depth = NEAREST * FARTHEST / (NEAREST + self._pixels[::-1] * (FARTHEST - NEAREST))
        share = np.minimum(depth / MAX_DEPTH, 1.0)
        return {"depth": self._encoded(share)[None]}

    def close(self) -> None:
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._context = None

    def _open(self, model: mujoco.MjModel) -> None:
        try:
            self._gl = _context_class()(self._resolution, self._resolution)
            self._gl.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        except Exception as error:
            raise UsageError(f"{cannot_render(error)}; or renderer=traced, which needs no OpenGL") from error
        atexit.register(_close, weakref.ref(self))  # before OpenGL ends
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._context.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR
        self._scene = mujoco.MjvScene(model, _MOST_GEOMS)
        for flag in (
            mujoco.mjtRndFlag.mjRND_SHADOW,
            mujoco.mjtRndFlag.mjRND_REFLECTION,
            mujoco.mjtRndFlag.mjRND_SKYBOX,
        ):
            self._scene.flags[flag] = 0
        self._view.type, self._view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera(CAMERA).id

    def _encoded(self, share: np.ndarray) -> np.ndarray:
        return (np.rint(share * 255.0) if self._dtype == np.uint8 else share).astype(self._dtype)


def _close(camera: weakref.ref[OpenGLDepth]) -> None:
    if (still_there := camera()) is not None:
        still_there.close()


def _context_class() -> Any:
    """MuJoCo's class of OpenGL contexts. What MuJoCo has chosen when it was imported may need a display."""
    choose_renderer()
    way = os.environ.get("MUJOCO_GL", "")
    return importlib.import_module(f"mujoco.{way}").GLContext if way in LIBRARIES else mujoco.GLContext
