"""Kitchens: a run of counters with a fridge and a cabinet along one wall, and often a counter around the corner.

The floor in front of all this stays free: `COUNTER_SPACE` before counters, and the swept area of a door or a drawer and
`STAND` more before the fridge and the cabinet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.sims.navigation.scenes.furniture import Gaps, Solid, is_connected
from paceline.sims.navigation.scenes.generator import draw_tone
from paceline.sims.navigation.scenes.scene import Rect
from paceline.sims.rearrangement.scenes.appliances import (
    COUNTER_DEPTH,
    COUNTER_HEIGHT,
    DRAWER_LIMIT,
    FRIDGE_DEPTH,
    HANDLE_LENGTH,
    Appliance,
    Color,
    draw_cabinet,
    draw_fridge,
)
from paceline.sims.rearrangement.scenes.house import ROBOT_RADIUS, Surface
from paceline.sims.rearrangement.scenes.wall_frame import WallFrame

ROBOT_GAPS = Gaps(radius=ROBOT_RADIUS, merged=0.4, passable=0.7)
COUNTER_SPACE = 0.9
STAND = 0.7
DOOR_ROOM = 0.6
"""Least distance from the fridge's hinge to the next drawer or wall on its side."""
_LEAST_COUNTER = 0.3
_ATTEMPTS = 4


@dataclass
class Kitchen:
    fridge: Appliance
    cabinet: Appliance
    counters: list[Rect] = field(default_factory=list)
    counter_color: Color = (0, 0, 0)
    footprints: list[Rect] = field(default_factory=list)
    """Of everything."""
    keep_free: list[Rect] = field(default_factory=list)
    """The floor that must stay free."""

    def pieces(self) -> Iterator[tuple[str, list[Solid], list[Color]]]:
        """Kinds, boxes and colours of all pieces of furniture."""
        for appliance in (self.fridge, self.cabinet):
            yield appliance.kind, appliance.solids, appliance.colors
        for area in self.counters:
            yield "counter", [(area, 0.0, COUNTER_HEIGHT)], [self.counter_color]

    def surfaces(self) -> list[Surface]:
        tops = [Surface(area, COUNTER_HEIGHT, "counter") for area in self.counters]
        return [*self.fridge.surfaces, *self.cabinet.surfaces, *tops]


@dataclass(frozen=True, kw_only=True)
class KitchenRun:
    """The order of a run along its wall, as intervals of the coordinate a."""

    fridge: tuple[float, float]
    hinge_at_end: bool
    cabinet: tuple[float, float]
    counters: tuple[tuple[float, float], ...]

    @property
    def start(self) -> float:
        return min(self.fridge[0], *(start for start, _ in self.counters))

    @property
    def end(self) -> float:
        return max(self.cabinet[1], *(end for _, end in self.counters))


def draw_kitchen(rng: np.random.Generator, room: Rect, doors: Sequence[Rect]) -> Kitchen | None:
    """The run of a kitchen. `doors` is the floor in front of doors. None if no wall has space."""
    for side in rng.permutation(4):
        frame = WallFrame(room, int(side), bool(rng.integers(2)))
        for start, end in _free_intervals(frame, doors):
            for _ in range(_ATTEMPTS):
                run = _draw_run(rng, frame, start, end)
                kitchen = None if run is None else _build(rng, frame, run, doors)
                if kitchen is not None and _is_usable(kitchen, room, doors):
                    return kitchen
    return None


def _free_intervals(frame: WallFrame, doors: Sequence[Rect]) -> list[tuple[float, float]]:
    """The parts of a wall without doors nearby, the longest first."""
    taken = sorted((zone.x0, zone.x1) for zone in map(frame.local, doors) if zone.y0 < FRIDGE_DEPTH + 0.2)
    free, at = [], 0.0
    for start, end in [*taken, (frame.length, frame.length)]:
        if start > at:
            free.append((at, start))
        at = max(at, end)
    return sorted(free, key=lambda span: span[0] - span[1])


def _draw_run(rng: np.random.Generator, frame: WallFrame, low: float, high: float) -> KitchenRun | None:
    """A run from `low`; None if the interval is too short."""

    def length(least: float, most: float) -> float:
        return round(float(rng.uniform(least, most)), 2)

    counters: list[tuple[float, float]] = []
    at = round(low, 2) if low == 0.0 else round(low + 0.01, 2)
    # With the hinge at its start, the door opens over what is before the fridge: a counter, but no door of the room.
    hinge_at_end = low > 0.0 or rng.random() < 0.5
    if not hinge_at_end:
        counters.append((at, at := round(at + length(DOOR_ROOM, 0.9), 2)))
    fridge = (at, at := round(at + length(0.66, 0.76), 2))
    if hinge_at_end or rng.random() < 0.6:
        least = DOOR_ROOM if hinge_at_end else _LEAST_COUNTER
        counters.append((at, at := round(at + length(least, 1.2), 2)))
    cabinet = (at, at := round(at + length(0.5, 0.65), 2))
    rest = round(high - at, 2)
    if rest < 0:
        return None
    more = length(0.0, 1.5)
    to_corner = high == frame.length
    if to_corner and rest - more < ROBOT_GAPS.passable:
        more = rest
    more = min(more, rest)
    if more >= _LEAST_COUNTER:
        counters.append((at, round(at + more, 2)))
    elif to_corner and more == rest > 0:
        cabinet = (cabinet[0], round(high, 2))
    return KitchenRun(fridge=fridge, hinge_at_end=hinge_at_end, cabinet=cabinet, counters=tuple(counters))


def _build(rng: np.random.Generator, frame: WallFrame, run: KitchenRun, doors: Sequence[Rect]) -> Kitchen:
    color = draw_tone(rng, (70, 60, 50), (225, 215, 205))
    width = run.fridge[1] - run.fridge[0]
    kitchen = Kitchen(
        draw_fridge(rng, frame, run.fridge[0], width, run.hinge_at_end),
        draw_cabinet(frame, run.cabinet[0], run.cabinet[1] - run.cabinet[0], color),
        counter_color=color,
    )
    kitchen.counters = [frame.rect(start, 0.0, end, COUNTER_DEPTH) for start, end in run.counters]
    end = run.end
    corner = _corner_counter(rng, frame, run, doors)
    if corner is not None:
        kitchen.counters.append(frame.rect(*corner))
        before = corner._replace(x0=corner.x0 - COUNTER_SPACE, x1=corner.x0)
        kitchen.keep_free.append(frame.rect(*before))
        end = corner.x0
    kitchen.keep_free += [frame.rect(*zone) for zone in _zones(run, end)]
    kitchen.footprints = [
        frame.rect(run.fridge[0], 0.0, run.fridge[1], FRIDGE_DEPTH),
        frame.rect(run.cabinet[0], 0.0, run.cabinet[1], COUNTER_DEPTH),
        *kitchen.counters,
    ]
    return kitchen


def _zones(run: KitchenRun, end: float) -> list[Rect]:
    """The floor that stays free before a run, up to `end` along the wall."""
    start, stop = run.fridge
    width = stop - start
    before = FRIDGE_DEPTH + width + 0.15
    swept = Rect(start, 0.0, stop + 0.5, before) if run.hinge_at_end else Rect(start - 0.5, 0.0, stop, before)
    drawn = COUNTER_DEPTH + 0.03 + DRAWER_LIMIT + HANDLE_LENGTH
    middle, half = sum(run.cabinet) / 2, max(ROBOT_RADIUS + 0.1, (run.cabinet[1] - run.cabinet[0]) / 2)
    return [
        Rect(run.start, FRIDGE_DEPTH, end, COUNTER_DEPTH + COUNTER_SPACE),
        swept._replace(y0=FRIDGE_DEPTH),
        Rect(start, FRIDGE_DEPTH, stop, before + STAND),
        Rect(middle - half, FRIDGE_DEPTH, middle + half, drawn + STAND),
    ]


def _corner_counter(rng: np.random.Generator, frame: WallFrame, run: KitchenRun, doors: Sequence[Rect]) -> Rect | None:
    """A counter along the next wall, in the frame of this one; None without space."""
    start, end = max(run.counters)
    if end < frame.length - 1e-6 or end - start < COUNTER_DEPTH + 0.05 or start < run.cabinet[0] or rng.random() < 0.3:
        return None
    most = frame.depth - COUNTER_DEPTH - ROBOT_GAPS.passable
    length = round(float(rng.uniform(0.6, 1.6)), 2)
    corner = Rect(end - COUNTER_DEPTH, COUNTER_DEPTH, end, COUNTER_DEPTH + min(length, most))
    if any(corner.gap(frame.local(zone)) < 0 for zone in doors):
        return None
    return corner


def _is_usable(kitchen: Kitchen, room: Rect, doors: Sequence[Rect]) -> bool:
    """Whether the floor that must stay free does, and whether it is connected."""
    if not all(room.grown(1e-6).contains(area) for area in (*kitchen.keep_free, *kitchen.footprints)):
        return False
    free = [*kitchen.keep_free, *doors]
    if any(area.gap(zone) < -1e-6 for area in kitchen.footprints for zone in free):
        return False
    grown = [area.grown(ROBOT_RADIUS) for area in kitchen.footprints]
    return is_connected(room.grown(-ROBOT_RADIUS), grown)
