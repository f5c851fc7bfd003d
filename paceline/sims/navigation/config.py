"""The options of PointGoal navigation, without PyTorch: ids are checked before a simulator is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from paceline.errors import UsageError, closest

TIERS = ("small", "full")
SPLITS = ("train", "val", "test")
SENSORS = ("depth", "rgb", "depth+rgb", "blind")
DEPTH_DTYPES = ("float32", "float16", "uint8")
MAX_RESOLUTION = 1024


@dataclass(frozen=True, kw_only=True)
class PointNavConfig:
    """One task. The defaults follow the literature: 500 steps of 0.25 m or 10 degrees, success within 0.2 m."""

    tier: str = "small"
    """Size of the scenes: "small" (one or two rooms, goals up to 10 m away) or "full" (whole flats, up to 30 m)."""
    split: str = "train"
    """"train", "val" or "test": disjoint scenes."""
    scenes: int = 64
    """Number of scenes."""
    bank_seed: int = 0
    """Which scenes of the split: each number selects other scenes."""
    bank_file: str = ""
    """A file written by `SceneBank.save`. It replaces tier, split, scenes and bank_seed."""
    resolution: int = 64
    """Width and height of images in pixels."""
    sensors: str = "depth"
    """"depth", "rgb", "depth+rgb" or "blind"."""
    depth_dtype: str = "float32"
    """Depth as a share of 10 m: "float32" or "float16" in [0, 1], or "uint8" in [0, 255]."""
    gps: bool = True
    """Whether the goal is observed relative to the agent's pose (GPS and compass), or to its start."""
    slide: bool = True
    """Whether the agent slides along an obstacle that it hits, or stops there."""
    max_episode_steps: int = 500
    success_distance: float = 0.2
    """Largest geodesic distance to the goal that counts as success, in metres."""
    forward_step: float = 0.25
    """Length of a step in metres."""
    turn_angle: float = 10.0
    """Angle of a turn in degrees."""
    max_distance: float = math.inf
    """Largest distance from start to goal in metres; `PointNav.set_max_distance` changes it."""
    actuation_noise: float = 0.0
    """Standard deviation of steps and turns, as a share of their size."""
    image_noise: float = 0.0
    """Standard deviation of pixels: of depth as a share of the depth, of RGB as a share of full brightness."""
    gps_noise: float = 0.0
    """Standard deviation of the observed position, in metres, and of the observed heading, in radians."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(PointNavConfig).items():
            value = getattr(self, name)
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise _error(
                    name, value, {int: "a whole number", bool: "true or false"}.get(kind, f"a {kind.__name__}")
                )
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise _error(name, getattr(self, name), ", ".join(allowed))
        for name, (least, most) in _RANGES.items():
            if not least <= getattr(self, name) <= most:
                limit = "" if most == math.inf else f" to {most:g}"
                raise _error(name, getattr(self, name), f"{least:g}{limit or ' or more'}")

    @classmethod
    def of_options(cls, options: dict[str, Any], what: str) -> PointNavConfig:
        """From the options of the environment id `what`, which error messages name."""
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                raise UsageError(
                    f"option {name!r} of {what!r} does not exist{closest(name, names)}; allowed: {', '.join(names)}"
                )
        if isinstance(options.get("sensors"), str):
            options = {**options, "sensors": options["sensors"].replace(" ", "+")}  # a + in a query is read as a space
        return cls(**options)


_CHOICES = {"tier": TIERS, "split": SPLITS, "sensors": SENSORS, "depth_dtype": DEPTH_DTYPES}
_RANGES: dict[str, tuple[float, float]] = {
    "scenes": (1, 100_000),
    "bank_seed": (0, math.inf),
    "resolution": (1, MAX_RESOLUTION),
    "max_episode_steps": (1, 1_000_000),
    "success_distance": (0.0, math.inf),
    "forward_step": (0.001, 1.0),
    "turn_angle": (0.001, 180.0),
    "max_distance": (0.0, math.inf),
    "actuation_noise": (0.0, 1.0),
    "image_noise": (0.0, 1.0),
    "gps_noise": (0.0, 10.0),
}


def _error(name: str, value: Any, allowed: str) -> UsageError:
    return UsageError(f"pointnav: {name} is {value!r}; allowed: {allowed}")
