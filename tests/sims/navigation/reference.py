"""Slow and simple reference implementations. They use only constants of the package."""

import heapq
import itertools
import math

import numpy as np

RADIUS = 0.1


def grown(obstacles, margin=RADIUS):
    return [(x0 - margin, y0 - margin, x1 + margin, y1 + margin) for x0, y0, x1, y1 in np.asarray(obstacles).tolist()]


def span_inside(p, q, rect):
    """Where the segment from p to q enters and leaves a rectangle, as shares of its length; None if it misses."""
    enter, leave = 0.0, 1.0
    for axis in (0, 1):
        low, high, step = rect[axis] - p[axis], rect[axis + 2] - p[axis], q[axis] - p[axis]
        if step == 0.0:
            if not low < 0.0 < high:
                return None
            continue
        a, b = sorted((low / step, high / step))
        enter, leave = max(enter, a), min(leave, b)
    return (enter, leave) if leave - enter > 1e-9 else None


def sees(p, q, rects):
    return all(span_inside(p, q, rect) is None for rect in rects)


def shortest_by_corners(start, goal, obstacles, interior):
    """Dijkstra's algorithm over all corners of all obstacles."""
    rects = grown(obstacles)
    x0, y0, x1, y1 = interior
    corners = [(rect[i], rect[j]) for rect in rects for i in (0, 2) for j in (1, 3)]
    corners = [c for c in corners if x0 + RADIUS <= c[0] <= x1 - RADIUS and y0 + RADIUS <= c[1] <= y1 - RADIUS]
    places = [tuple(start), tuple(goal), *dict.fromkeys(corners)]
    return dijkstra(
        len(places),
        lambda i: (
            (j, math.dist(places[i], places[j])) for j in range(len(places)) if sees(places[i], places[j], rects)
        ),
    )


def dijkstra(count, neighbours):
    """The distance from node 0 to node 1."""
    least, front, closed = [0.0] + [math.inf] * (count - 1), [(0.0, 0)], set()
    while front:
        so_far, i = heapq.heappop(front)
        if i == 1:
            return so_far
        if i in closed:
            continue
        closed.add(i)
        for j, length in neighbours(i):
            if so_far + length < least[j]:
                least[j] = so_far + length
                heapq.heappush(front, (least[j], j))
    return math.inf


def shortest_by_grid(start, goal, obstacles, interior, cell=0.05, reach=5):
    """Dijkstra's algorithm over the points of a fine grid through `start`, with steps in very many directions.

    `goal` must be a whole number of cells away. What it finds is a way that can be walked: never shorter than the
    shortest, and longer by no more than the grid is coarse.
    """
    x0, y0, x1, y1 = interior
    rects = np.array(grown(obstacles)).reshape(-1, 4)
    low = [math.ceil((edge + RADIUS - at) / cell - 1e-6) for edge, at in zip((x0, y0), start, strict=True)]
    high = [math.floor((edge - RADIUS - at) / cell + 1e-6) for edge, at in zip((x1, y1), start, strict=True)]
    shape = (high[0] - low[0] + 1, high[1] - low[1] + 1)
    points = np.stack(
        np.meshgrid(*(start[k] + cell * np.arange(low[k], high[k] + 1) for k in (0, 1)), indexing="ij"), 2
    )
    steps = [(i, j) for i, j in itertools.product(range(-reach, reach + 1), repeat=2) if math.gcd(i, j) == 1]
    allowed = {step: _free_steps(points, np.array(step) * cell, rects) for step in steps}
    first = (-low[0], -low[1])
    last = tuple(round((goal[k] - start[k]) / cell) - low[k] for k in (0, 1))
    order = {first: 0, last: 1}
    cells = [first, last, *(c for c in itertools.product(range(shape[0]), range(shape[1])) if c not in order)]
    number = {c: n for n, c in enumerate(cells)}

    def neighbours(n):
        i, j = cells[n]
        for step in steps:
            other = (i + step[0], j + step[1])
            if allowed[step][i, j] and other in number:
                yield number[other], cell * math.hypot(*step)

    return dijkstra(len(cells), neighbours)


def _free_steps(points, step, rects):
    """bool for each point: whether a step from there enters no rectangle."""
    free = np.ones(points.shape[:2], bool)
    for rect in rects:
        enter, leave = np.zeros(points.shape[:2]), np.ones(points.shape[:2])
        for axis in (0, 1):
            to_low, to_high = rect[axis] - points[..., axis], rect[axis + 2] - points[..., axis]
            if step[axis] == 0.0:
                outside = ~((to_low < -1e-9) & (to_high > 1e-9))
                leave[outside] = -1.0
            else:
                a, b = to_low / step[axis], to_high / step[axis]
                enter, leave = np.maximum(enter, np.minimum(a, b)), np.minimum(leave, np.maximum(a, b))
        free &= ~(leave - enter > 1e-9)
    return free


def depth_of_ray(boxes, pose, column, row, side, camera_height, ceiling):
    """The depth of one pixel in metres and the number of the box it shows: -1 for the floor, -2 for the ceiling."""
    x, y, heading = pose
    u, v = (2 * (column + 0.5) / side - 1), -(2 * (row + 0.5) / side - 1)
    direction = (
        math.cos(heading) + u * math.sin(heading),
        math.sin(heading) - u * math.cos(heading),
        v,
    )
    origin = (x, y, camera_height)
    best = (-camera_height / v, -1) if v < 0 else ((ceiling - camera_height) / v, -2)
    for number, box in enumerate(boxes.tolist()):
        enter, leave = 0.0, math.inf
        for axis, (low, high) in enumerate(((box[0], box[2]), (box[1], box[3]), (box[4], box[5]))):
            a, b = sorted((edge - origin[axis]) / direction[axis] for edge in (low, high))
            enter, leave = max(enter, a), min(leave, b)
        if enter <= leave and enter < best[0]:
            best = (enter, number)
    return best
