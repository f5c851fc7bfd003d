"""OpenGL for EnvPool's images. EnvPool finds it only if it is loaded before EnvPool is imported.

The import of this module loads it where it is installed. Without it, the first image would end the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

from paceline.errors import UsageError

LIBRARIES = (("libEGL.so.1",), ("libOpenGL.so.0", "libGL.so.1")) if sys.platform == "linux" else ()
"""One of each is needed. Other systems have other libraries, and EnvPool is left alone there."""


def require(env_id: str) -> None:
    """Raise if the images of `env_id` cannot be rendered."""
    if MISSING:
        raise UsageError(
            f"EnvPool cannot render images of {env_id!r}: {MISSING} cannot be loaded; install libegl1, libopengl0 "
            "and libgl1-mesa-dri (Debian)"
        )
    if IS_LATE:
        raise UsageError(
            f"EnvPool cannot render images of {env_id!r}, because this program has imported envpool before OpenGL was "
            "loaded; allowed: programs that import paceline.envs.envpool first"
        )


def _load(names: tuple[str, ...]) -> bool:
    """Load one of these libraries for the whole process."""
    for name in names:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
            return True
    return False


IS_LATE = bool(LIBRARIES) and "envpool" in sys.modules
MISSING = ", ".join(names[0] for names in LIBRARIES if not _load(names))
