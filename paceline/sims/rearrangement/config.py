"""The options of the rearrangement tasks, without PyTorch: ids are checked before a simulator is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.sims.config import SimulatorOptions, option_names

TIERS = ("small", "full")
SPLITS = ("train", "val", "test")
SENSORS = ("depth", "blind")
STARTS = ("near", "far")
DEPTH_DTYPES = ("float32", "float16", "uint8")
SCENARIOS = {"tidy_house": 5, "prepare_groceries": 3, "set_table": 2}
"""The number of objects that have to be moved in each."""
WITH_OPEN_FRIDGE = ("prepare_groceries",)
"""Scenarios that begin with an open fridge."""

FRIDGE_STARTS = tuple(math.radians(degrees) for degrees in range(45, 121, 5))
DRAWER_STARTS = (0.4, 0.41, 0.42, 0.43, 0.44, 0.45)
"""How far doors (radians) and drawers (metres) are open when a robot is to close them. No robot may start inside one at
any of these values, so every start before a handle is checked at all of them."""


@dataclass(frozen=True, kw_only=True)
class RearrangementConfig(SimulatorOptions):
    """What all tasks have in common. A decision lasts 1/30 s."""

    task: ClassVar[str] = "rearrange"
    choices: ClassVar = {
        "tier": TIERS,
        "split": SPLITS,
        "sensors": SENSORS,
        "depth_dtype": DEPTH_DTYPES,
        "start": STARTS,
        "scenario": tuple(SCENARIOS),
    }
    ranges: ClassVar = {
        "scenes": (1, 100_000),
        "bank_seed": (0, math.inf),
        "resolution": (1, 1024),
        "max_episode_steps": (0, 1_000_000),
        "forward_step": (0.001, 0.06),
        "turn_step": (0.001, 0.08),
        "arm_step": (0.001, 0.06),
    }

    tier: str = "small"
    """Size of the houses: "small" (one kitchen) or "full" (flats of up to six rooms)."""
    split: str = "train"
    """"train", "val" or "test": disjoint houses."""
    scenes: int = 64
    """Number of houses."""
    bank_seed: int = 0
    """Which houses of the split: each number selects other houses."""
    scenario: str = "tidy_house"
    """Where objects are, and where they belong: "tidy_house" (on open surfaces), "prepare_groceries" (some in the
    fridge) or "set_table" (some in a drawer and in the fridge)."""
    resolution: int = 64
    """Width and height of images in pixels. The paper has 128."""
    sensors: str = "depth"
    """"depth" or "blind"."""
    depth_dtype: str = "float32"
    """Depth as a share of 10 m: "float32" or "float16" in [0, 1], or "uint8" in [0, 255]."""
    max_episode_steps: int = 0
    """Episodes are truncated after so many steps; 0: after those of the task."""
    start: str = "near"
    """"near": as the task says. "far": anywhere in the house, to see whether a skill finds its way."""
    base: bool = True
    """Whether the policy also moves the base. Without, the robot starts where its arm reaches the target."""
    behind: bool = False
    """Whether a decision is carried out one step later: the policy acts on the observation before the last one."""
    slide: bool = True
    """Whether the base slides along walls."""
    forward_step: float = 0.05
    """Largest motion of the base in a step, in metres."""
    turn_step: float = 0.075
    """Largest turn of the base in a step, in radians."""
    arm_step: float = 0.05
    """Largest turn of a joint of the arm in a step, in radians."""

    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, for `of_options`."""
        usual = type(self)()
        values = {name: getattr(self, name) for name in option_names(type(self))}
        return {name: value for name, value in values.items() if value != getattr(usual, name)}
