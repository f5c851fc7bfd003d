"""A slow renderer: one ray at a time, in float64, with the standard library only."""

import math

import numpy as np

MISS = math.inf


def ray_of_pixel(camera_poses, height, shift, column, row, side):
    """The origin and the direction of one pixel's ray. Its parameter is the depth."""
    x, y, heading = camera_poses
    u, v = 2 * (column + 0.5) / side - 1, shift - (2 * (row + 0.5) / side - 1)
    forward, right = (math.cos(heading), math.sin(heading)), (math.sin(heading), -math.cos(heading))
    return np.array([x, y, height]), np.array([forward[0] + u * right[0], forward[1] + u * right[1], v])


def depth_of_box(origin, direction, box):
    """`box` is cx, cy, cz, ex, ey, ez, yaw: the ray is turned into the frame of the box."""
    cos, sin = math.cos(box[6]), math.sin(box[6])
    turn = np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]])
    start, step = turn @ (origin - np.array(box[:3])), turn @ direction
    enter, leave = 0.0, math.inf
    for axis in range(3):
        if step[axis] == 0.0:
            if abs(start[axis]) > box[3 + axis]:
                return MISS
            continue
        a, b = sorted((side * box[3 + axis] - start[axis]) / step[axis] for side in (-1.0, 1.0))
        enter, leave = max(enter, a), min(leave, b)
    return enter if enter <= leave else MISS


def depth_of_capsule(origin, direction, capsule):
    """`capsule` is ax, ay, az, bx, by, bz, radius: two balls and the cylinder between them."""
    a, b, radius = np.array(capsule[:3]), np.array(capsule[3:6]), capsule[6]
    spans = [
        _roots(direction @ direction, direction @ (end - origin), _square(end - origin) - radius**2) for end in (a, b)
    ]
    length = math.sqrt(_square(b - a))
    if length > 0:
        axis = (b - a) / length
        across, step = _without(a - origin, axis), _without(direction, axis)
        if _square(step) > 0:
            low, high = _roots(_square(step), step @ across, _square(across) - radius**2) or (MISS, MISS)
        else:  # along the axis
            low, high = (-MISS, MISS) if _square(across) <= radius**2 else (MISS, MISS)
        along, start = direction @ axis, (origin - a) @ axis
        ends = sorted((place - start) / along for place in (0.0, length)) if along else (-MISS, MISS)
        if along or 0.0 <= start <= length:
            low, high = max(low, ends[0]), min(high, ends[1])
            spans.append((low, high) if low <= high else None)
    depths = [max(0.0, span[0]) for span in spans if span is not None and span[1] >= 0.0]
    return min(depths, default=MISS)


def _roots(square, linear, constant):
    """Both t with square t^2 - 2 linear t + constant = 0, or None."""
    inside = linear * linear - square * constant
    return None if inside < 0 else ((linear - math.sqrt(inside)) / square, (linear + math.sqrt(inside)) / square)


def _square(vector):
    return float(vector @ vector)


def _without(vector, axis):
    return vector - (vector @ axis) * axis
