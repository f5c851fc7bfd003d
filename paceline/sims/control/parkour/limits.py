"""Kinds and sizes of obstacles. Free of MuJoCo: ids of environments are checked with them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError, closest

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class CourseLimits:
    """What a body's courses consist of, in metres. Sizes of obstacles are pairs: the easiest and the hardest."""

    kinds: tuple[str, ...]
    num_obstacles: int
    tiles: tuple[float, float]
    """The shortest and the longest piece of floor. Every obstacle has one."""
    width: float
    gap: tuple[float, float]
    hurdle: tuple[float, float]
    """Height."""
    step: tuple[float, float] = (0.0, 0.0)
    """How far a raised platform is above the ground, or a sunken one below it."""
    clearance: tuple[float, float] = (0.0, 0.0)
    """Height under a hovering platform."""
    opening: tuple[float, float] = (0.0, 0.0)
    """Width of the opening in a wall."""


LIMITS = {
    "walker": CourseLimits(
        kinds=("gaps", "hurdles", "platforms"),
        num_obstacles=12,
        tiles=(3.6, 5.4),
        width=2.0,
        gap=(0.2, 1.2),
        hurdle=(0.05, 0.45),
        step=(0.05, 0.4),
        clearance=(1.75, 1.4),
    ),
    "humanoid": CourseLimits(
        kinds=("gaps", "hurdles", "walls"),
        num_obstacles=12,
        tiles=(3.6, 5.4),
        width=4.0,
        gap=(0.2, 1.0),
        hurdle=(0.05, 0.35),
        opening=(2.0, 0.8),
    ),
}
"""By body."""


def check(body: str, terrain: str, difficulty: float) -> None:
    """Raise for a body, a terrain or a difficulty that does not exist."""
    if body not in LIMITS:
        raise UsageError(f"body {body!r} does not exist{closest(body, LIMITS)}; allowed: {', '.join(LIMITS)}")
    kinds = (ALL, *LIMITS[body].kinds)
    if terrain not in kinds:
        raise UsageError(
            f"terrain {terrain!r} of the {body} does not exist{closest(str(terrain), kinds)}; "
            f"allowed: {', '.join(kinds)}"
        )
    if isinstance(difficulty, bool) or not isinstance(difficulty, int | float) or not 0 <= difficulty <= 1:
        raise UsageError(f"difficulty must be between 0 and 1, got {difficulty!r}")
