"""The options of the navigation tasks, without PyTorch: ids are checked before a simulator is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from paceline.errors import UsageError
from paceline.sims.config import SimulatorOptions, option_names

TIERS = ("small", "full")
SPLITS = ("train", "val", "test")
SENSORS = ("depth", "rgb", "depth+rgb", "blind")
DEPTH_DTYPES = ("float32", "float16", "uint8")
MAX_RESOLUTION = 1024
MIN_DISTANCE = 1.0
"""Least geodesic distance from start to goal of an episode, in metres."""
PATHS = ("plans", "bank_file")
"""Options that name files or folders with scenes."""
REPLACED = ("tier", "split", "scenes", "bank_seed")
"""Options of generated scenes. Floor plans and scene files replace them."""


_CHOICES = {"tier": TIERS, "split": SPLITS, "sensors": SENSORS, "depth_dtype": DEPTH_DTYPES}
_RANGES: dict[str, tuple[float, float]] = {
    "scenes": (1, 100_000),
    "bank_seed": (0, math.inf),
    "resolution": (1, MAX_RESOLUTION),
    "max_episode_steps": (1, 1_000_000),
    "success_distance": (0.0, math.inf),
    "forward_step": (0.001, 1.0),
    "turn_angle": (0.001, 180.0),
    "max_distance": (MIN_DISTANCE, math.inf),
    "actuation_noise": (0.0, 1.0),
    "image_noise": (0.0, 1.0),
    "gps_noise": (0.0, 10.0),
}


@dataclass(frozen=True, kw_only=True)
class NavigationConfig(SimulatorOptions):
    """What all tasks have in common: scenes, body, camera and noise. 500 steps of 0.25 m or 10 degrees by default."""

    task: ClassVar[str]
    """The task's name: the family of its environment ids."""
    choices: ClassVar = _CHOICES
    ranges: ClassVar = _RANGES
    needs: ClassVar[str] = "free floor"
    """What a scene needs, so that it has episodes of the task, in words."""

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
    plans: str = ""
    """Floor plans of your own: a file, or a folder of files (docs/floor_plans.md). They replace the same options."""
    resolution: int = 64
    """Width and height of images in pixels."""
    sensors: str = "depth"
    """"depth", "rgb", "depth+rgb" or "blind"."""
    depth_dtype: str = "float32"
    """Depth as a share of 10 m: "float32" or "float16" in [0, 1], or "uint8" in [0, 255]."""
    slide: bool = True
    """Whether the agent slides along an obstacle that it hits, or stops there."""
    max_episode_steps: int = 500
    forward_step: float = 0.25
    """Length of a step in metres."""
    turn_angle: float = 10.0
    """Angle of a turn in degrees."""
    actuation_noise: float = 0.0
    """Standard deviation of the length of a step and of the angle of a turn, as a share of them. A step never goes
    back and never turns the agent; a turn never moves it."""
    image_noise: float = 0.0
    """Standard deviation of pixels: of depth as a share of the depth, of RGB as a share of full brightness. Each pixel
    has one random number per step, which its depth and its three colours share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plans and self.bank_file:
            raise UsageError(f"{self.task}: plans and bank_file are both given; allowed: one of them")

    @classmethod
    def of_options(cls, options: dict[str, Any], what: str) -> Self:
        """From the options of the environment id `what`, which error messages name."""
        for source in PATHS:
            if options.get(source) == "":
                raise UsageError(f"{source} is empty in {what!r}; allowed: a path, or no {source}")
            unread = [name for name in REPLACED if name in options and options.get(source)]
            if unread:
                problem = f"{unread[0]} has no effect in {what!r}, because {source} names the scenes"
                raise UsageError(f"{problem}; allowed: {unread[0]} or {source}, not both")
        if isinstance(options.get("sensors"), str):
            options = {**options, "sensors": options["sensors"].replace(" ", "+")}  # a + in a query is read as a space
        return super().of_options(options, what)

    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, for `of_options`."""
        usual, unread = type(self)(), () if self.is_generated else REPLACED
        values = {name: getattr(self, name) for name in option_names(type(self)) if name not in unread}
        return {name: value for name, value in values.items() if value != getattr(usual, name)}

    @property
    def is_generated(self) -> bool:
        """Whether the scenes are generated, and not the user's floor plans or those of a file."""
        return not self.plans and not self.bank_file

    @property
    def is_noisy(self) -> bool:
        """Whether anything random happens within an episode."""
        return any(getattr(self, name) for name in option_names(type(self)) if name.endswith("_noise"))


@dataclass(frozen=True, kw_only=True)
class PointNavConfig(NavigationConfig):
    """Walk to a point. The defaults follow the literature."""

    task: ClassVar[str] = "pointnav"

    gps: bool = True
    """Whether the goal is observed relative to the agent's pose (GPS and compass), or to its start."""
    success_distance: float = 0.2
    """Largest geodesic distance to the goal that counts as success, in metres."""
    max_distance: float = math.inf
    """Largest distance from start to goal in metres. A scene without such a goal keeps its nearest one.
    `PointNav.set_max_distance` changes it."""
    gps_noise: float = 0.0
    """Standard deviation of x and y of the observed position, in metres, and of the observed heading, in radians. Drawn
    anew in every step. Without `gps` it has no effect."""


@dataclass(frozen=True, kw_only=True)
class FleeConfig(NavigationConfig):
    """Get as far as possible from the start."""

    task: ClassVar[str] = "flee"


@dataclass(frozen=True, kw_only=True)
class ExploreConfig(NavigationConfig):
    """Visit as many places as possible."""

    task: ClassVar[str] = "explore"


@dataclass(frozen=True, kw_only=True)
class ObjectNavConfig(NavigationConfig):
    """Find an object of a category. The defaults are those of the Habitat challenge, except the resolution."""

    task: ClassVar[str] = "objectnav"
    needs: ClassVar[str] = "furniture with a category, 1.5 m of path or more from a start"

    sensors: str = "depth+rgb"
    turn_angle: float = 30.0
    """Angle of a turn in degrees."""
    gps: bool = True
    """Whether the agent observes its position and heading, relative to its start."""
    success_distance: float = 1.0
    """Largest distance from an object that counts as success, in metres; at most 1.5, which starts always exceed."""
    gps_noise: float = 0.0
    """Standard deviation of x and y of the observed position, in metres, and of the observed heading, in radians. Drawn
    anew in every step. Without `gps` it has no effect."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range("success_distance", 0.1, 1.5)


@dataclass(frozen=True, kw_only=True)
class ImageNavConfig(NavigationConfig):
    """Walk to where a picture was taken. With `sensors=blind` there is no picture."""

    task: ClassVar[str] = "imagenav"

    max_episode_steps: int = 1000
    success_distance: float = 0.2
    """Largest geodesic distance to the goal that counts as success, in metres."""
    max_distance: float = math.inf
    """Largest distance from start to goal in metres. A scene without such a goal keeps its nearest one."""
