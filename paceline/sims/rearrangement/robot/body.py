"""Sizes of the robot's base, and of the body that its own arm must not hit."""

from __future__ import annotations

RADIUS = 0.25
"""The base is a disc. Nothing below `HEIGHT` may be inside it."""
HEIGHT = 1.1
OWN_BODY = (
    (-0.065, 0.0, 0.43, 0.185, 0.2, 0.42, 0.0),
    (-0.05, 0.0, 1.15, 0.1, 0.1, 0.3, 0.0),
)
"""The trunk and the head in the base frame: upright boxes (centre, half extents, yaw)."""
