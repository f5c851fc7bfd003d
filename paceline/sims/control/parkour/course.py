"""The course of one episode: where its boxes are, and where its obstacles end.

Tiles follow each other in a random order, and each has an obstacle: a gap before it, a hurdle or a wall on it, a
platform above it, or the tile itself is raised or sunken. A hurdle is sunk into its tile up to its height. The two
halves of a wall are shifted to the sides of its opening.

Obstacles become harder along the course.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.sims.control.parkour.boxes import HURDLE, RUNWAY, SLAB, START, THICKNESS, UNUSED, WALL, Boxes
from paceline.sims.control.parkour.limits import CourseLimits

FIRST = (2.0, 4.0)
"""Where the floor at the start ends."""
RUN_UP, LANDING = 1.5, 1.0
"""Floor of a tile before and behind a hurdle, a hovering platform or a wall, at least."""
SIDE = 1.5
"""Height of walls, and of the corridor's sides."""
SUNK = 0.01
"""Walls are that much lower than the sides, where parts of them are inside."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """Places of the boxes [B, 3], and the ends of the obstacles [N] along x, in order."""

    centres: np.ndarray
    ends: np.ndarray


def build(
    boxes: Boxes, limits: CourseLimits, kinds: tuple[str, ...], difficulty: float, random: np.random.Generator
) -> Course:
    builder = _Builder(boxes, limits, random)
    for number, tile in enumerate(random.permutation(limits.num_obstacles)):
        kind = kinds[random.integers(len(kinds))]
        builder.add(kind, int(tile), difficulty * (number + 1) / limits.num_obstacles)
    return builder.finish()


class _Builder:
    """Adds obstacles from left to right. `_x` is where the floor ends up to now."""

    def __init__(self, boxes: Boxes, limits: CourseLimits, random: np.random.Generator) -> None:
        self._boxes, self._limits, self._random = boxes, limits, random
        self._centres = np.tile(UNUSED, (len(boxes.halves), 1))
        self._ends: list[float] = []
        self._x = random.uniform(*FIRST)
        self._place("start", 0, self._x - START / 2, 0.0)
        for number, y in enumerate((-limits.width, limits.width) if "side" in boxes.groups else ()):
            self._place("side", number, self._x - START + (START + RUNWAY) / 2, SIDE, y)

    def add(self, kind: str, tile: int, hardness: float) -> None:
        """Add a tile and its obstacle. A hardness of 0 gives the easiest size, 1 any size."""
        self._tile, self._share = tile, hardness * self._random.uniform()
        {"gaps": self._gap, "hurdles": self._hurdle, "platforms": self._platform, "walls": self._wall}[kind]()

    def finish(self) -> Course:
        self._place("runway", 0, self._x + RUNWAY / 2, 0.0)
        return Course(centres=self._centres, ends=np.array(self._ends))

    def _gap(self) -> None:
        self._x += self._size(self._limits.gap)
        self._ends.append(self._x)
        self._floor(0.0)

    def _hurdle(self) -> None:
        middle = self._middle_of(HURDLE)
        self._place("hurdle", self._tile, middle, self._size(self._limits.hurdle))
        self._ends.append(middle + HURDLE / 2)
        self._floor(0.0)

    def _platform(self) -> None:
        shape = self._random.integers(3)
        if shape < 2:
            step = self._size(self._limits.step)
            self._floor(step if shape == 0 else -step)
            self._ends.append(self._x)
        else:
            middle = self._middle_of(SLAB)
            self._place("slab", self._tile, middle, self._size(self._limits.clearance) + THICKNESS)
            self._ends.append(middle + SLAB / 2)
            self._floor(0.0)

    def _wall(self) -> None:
        opening, width = self._size(self._limits.opening), self._limits.width
        middle, y = self._middle_of(WALL), self._random.uniform(-1, 1) * (width - opening) / 2
        self._place("right", self._tile, middle, SIDE - SUNK, y - (opening + width) / 2)
        self._place("left", self._tile, middle, SIDE - SUNK, y + (opening + width) / 2)
        self._ends.append(middle + WALL / 2)
        self._floor(0.0)

    def _size(self, limits: tuple[float, float]) -> float:
        easiest, hardest = limits
        return easiest + self._share * (hardest - easiest)

    def _length(self) -> float:
        return 2 * self._boxes.halves[self._boxes.groups["tile"]][self._tile, 0]

    def _middle_of(self, length: float) -> float:
        """A place on the tile for something of this length."""
        return self._x + self._random.uniform(RUN_UP + length / 2, self._length() - LANDING - length / 2)

    def _floor(self, level: float) -> None:
        length = self._length()
        self._place("tile", self._tile, self._x + length / 2, level)
        self._x += length

    def _place(self, group: str, number: int, x: float, top: float, y: float = 0.0) -> None:
        index = self._boxes.groups[group].start + number
        self._centres[index] = x, y, top - self._boxes.halves[index, 2]
