"""The kinds of objects that the robot can lift. An object is an upright box with a yaw."""

from __future__ import annotations

from typing import NamedTuple


class ObjectKind(NamedTuple):
    name: str
    half_extents: tuple[float, float, float]
    """Half of its length, width and height, in metres."""
    color: tuple[int, int, int]


OBJECT_KINDS = (
    ObjectKind("can", (0.034, 0.034, 0.060), (200, 60, 50)),
    ObjectKind("mug", (0.048, 0.040, 0.048), (70, 120, 200)),
    ObjectKind("bowl", (0.080, 0.080, 0.034), (235, 225, 205)),
    ObjectKind("apple", (0.038, 0.038, 0.038), (120, 180, 50)),
    ObjectKind("cereal box", (0.095, 0.030, 0.140), (240, 190, 40)),
    ObjectKind("bottle", (0.036, 0.036, 0.130), (40, 130, 80)),
    ObjectKind("milk carton", (0.045, 0.045, 0.110), (245, 245, 250)),
    ObjectKind("sponge", (0.055, 0.036, 0.025), (250, 230, 90)),
    ObjectKind("book", (0.100, 0.070, 0.026), (130, 50, 120)),
    ObjectKind("jar", (0.042, 0.042, 0.070), (190, 110, 50)),
    ObjectKind("orange", (0.040, 0.040, 0.040), (250, 140, 30)),
    ObjectKind("cracker box", (0.080, 0.034, 0.100), (60, 190, 190)),
)
HALF_EXTENTS = tuple(kind.half_extents for kind in OBJECT_KINDS)
