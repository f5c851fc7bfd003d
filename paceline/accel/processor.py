"""The machine's processor. Free of heavy imports."""

from __future__ import annotations

import platform

ON_ARM = platform.machine() in ("aarch64", "arm64")
