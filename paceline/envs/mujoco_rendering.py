"""How MuJoCo renders on this machine: by EGL or OSMesa where there is no display.

`MUJOCO_GL` names the way. MuJoCo and dm_control read it when they are imported, and without it they choose GLFW, which
needs a display.
"""

from __future__ import annotations

import logging
import os
from ctypes.util import find_library

from paceline.errors import UsageError

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
"""The library of each way that needs no display, the faster one first."""
OFF = "off"


def choose_renderer() -> bool:
    """Set `MUJOCO_GL`, unless the user has set it or there is a display. Returns whether it was set here.

    PyOpenGL's log about its optional parts is silenced.
    """
    logging.getLogger("OpenGL").setLevel(logging.WARNING)
    if "MUJOCO_GL" in os.environ or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return False
    os.environ["MUJOCO_GL"] = next((name for name, library in LIBRARIES.items() if find_library(library)), OFF)
    return True


def cannot_render(error: Exception) -> UsageError:
    """OpenGL's loaders raise errors of many kinds, some of them without a text."""
    return UsageError(
        f"MuJoCo cannot render here with MUJOCO_GL={os.environ.get('MUJOCO_GL', '')} ({type(error).__name__}); without "
        "a display, install libegl1 and libgl1-mesa-dri (Debian) for MUJOCO_GL=egl, or libosmesa6 for MUJOCO_GL=osmesa"
    )
