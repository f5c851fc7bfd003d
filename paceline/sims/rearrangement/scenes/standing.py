"""Where the base of the robot can stand: in front of surfaces, and in front of handles.

A place is free if the base has `CLEARANCE` to everything that never moves and `PLAY` to doors and drawers. Boxes are
grown by the radius as rectangles, as in navigation.

Legend: P places, B boxes, S surfaces, J joints.
"""

from __future__ import annotations

import numpy as np
import torch

from paceline.sims.navigation.scenes.free_space import is_free
from paceline.sims.navigation.scenes.geometry import NOWHERE, boxed, is_blocked
from paceline.sims.navigation.scenes.scene import Rect
from paceline.sims.rearrangement.scenes.house import FRIDGE, IN_THE_OPEN, NUM_JOINTS, House, Surface

CLEARANCE = 0.05
PLAY = 0.02
NEAREST = 0.45
"""Least distance from a stand to what it is for."""
REACH, DRAWER_REACH = 0.55, 0.75
"""Largest distance from a stand to what lies on a surface, and to what lies in an open drawer."""
OPEN_DOOR = (1.6, 1.9, 2.2)
"""Angles of the fridge's door that leave its stands free."""
HANDLE_DISTANCES = ((0.85, 1.25), (0.8, 1.1), (0.8, 1.1))
"""Distances from the starts of each joint to its handle."""
LEAST_STANDS = 10
"""Surfaces with fewer stands hold few objects."""
LEAST_SURFACES = 4
"""Surfaces in the open that a house needs for all objects and goals of an episode."""
_ARM = 0.3
"""Height above a surface that the arm needs."""
_STEP = 0.08
_SPREAD = 1.0
"""Largest angle between the line from a handle to its starts and the line straight ahead, in radians."""


def clear_of(points: np.ndarray, boxes: np.ndarray, margin: float) -> np.ndarray:
    """bool [P]: whether `points` [P, 2] are `margin` or more away from `boxes` [B, 7].

    Distances are in the maximum norm, along the sides of each box.
    """
    dx, dy = (points[:, None, axis] - boxes[None, :, axis] for axis in (0, 1))
    cos, sin = np.cos(boxes[:, 6]), np.sin(boxes[:, 6])
    along, across = np.abs(cos * dx + sin * dy) - boxes[:, 3], np.abs(cos * dy - sin * dx) - boxes[:, 4]
    return (np.maximum(along, across) >= margin).all(1)


def swept_boxes(house: House, joint: int) -> np.ndarray:
    """float64 [B, 7]: boxes that together cover all places of a door or a drawer."""
    limit = house.joints[joint, 5]
    values = np.zeros((2 if house.joints[joint, 0] else 14, NUM_JOINTS))
    values[:, joint] = np.linspace(0.0, limit, len(values))
    boxes = house.moved(values)[:, house.moving_joint == joint]
    if not house.joints[joint, 0]:
        return boxes.reshape(-1, 7)
    low, high = boxes[..., :3] - boxes[..., 3:6], boxes[..., :3] + boxes[..., 3:6]
    low, high = low.min((0, 1)), high.max((0, 1))
    return np.array([[*(low + high) / 2, *(high - low) / 2, 0.0]])


def all_swept_boxes(house: House) -> np.ndarray:
    return np.concatenate([swept_boxes(house, joint) for joint in range(NUM_JOINTS)])


def is_outside_sweeps(house: House, points: np.ndarray, swept: np.ndarray) -> np.ndarray:
    """bool [P]: whether the base at `points` [P, 2] is free, however far doors and drawers are open."""
    radius = house.scene.radius
    free = is_free(house.scene, points, radius + CLEARANCE)
    free[free] = clear_of(points[free], swept, radius + PLAY)
    return free


def opened(house: House, surface: Surface) -> Rect:
    """The place of a surface while its drawer is open."""
    if surface.joint in (IN_THE_OPEN, FRIDGE):
        return surface.area
    x, y = shift_of(house, surface)
    return Rect(surface.area.x0 + x, surface.area.y0 + y, surface.area.x1 + x, surface.area.y1 + y)


def shift_of(house: House, surface: Surface) -> np.ndarray:
    """float64 [2]: how far a surface moves when its drawer opens."""
    if surface.joint in (IN_THE_OPEN, FRIDGE):
        return np.zeros(2)
    return house.joints[surface.joint, 3:5] * house.joints[surface.joint, 5]


def stands_of(house: House, surface: Surface) -> np.ndarray:
    """float64 [P, 2]: free places of the base from which the arm reaches into the surface.

    They are free while everything is closed and while the fridge is open, or while the surface's own joint is open.
    """
    area, radius = opened(house, surface), house.scene.radius
    reach = REACH if surface.joint in (IN_THE_OPEN, FRIDGE) else DRAWER_REACH
    step = _STEP if surface.joint == IN_THE_OPEN else 0.5 * _STEP
    spans, nearest = zip(area[:2], area[2:], strict=True), radius + CLEARANCE + 0.001
    xs, ys = (_around(low, high, nearest, reach, step) for low, high in spans)
    points = np.stack(np.meshgrid(xs, ys, indexing="ij"), 2).reshape(-1, 2)
    if surface.joint != IN_THE_OPEN:
        points = points[_is_in_front(house, surface, area, points)]
    points = points[is_free(house.scene, points, radius + CLEARANCE)]
    boxes = house.moved(_states(surface.joint)).reshape(-1, 7)
    points = points[clear_of(points, boxes, radius + PLAY)]
    inner = np.array([min(0.1, 0.5 * side) for side in (area.width, area.depth)])
    nearest = points.clip(np.array(area[:2]) + inner, np.array(area[2:]) - inner)
    rects = np.broadcast_to(blocking(house, surface), (len(points), len(house.scene.boxes), 4))
    return points[~is_hidden(points, nearest, rects)]


def blocking(house: House, surface: Surface) -> np.ndarray:
    """float64 [B, 4]: centres and half extents of the boxes that block an arm above a surface; others are far away."""
    low, high = house.scene.boxes[:, 4], house.scene.boxes[:, 5]
    is_near = (high > surface.z + 0.01) & (low < surface.z + _ARM)
    rects = np.where(is_near[:, None], house.scene.boxes[:, :4], np.array(NOWHERE))
    return boxed(torch.from_numpy(rects)).numpy()


def is_hidden(points: np.ndarray, targets: np.ndarray, rects: np.ndarray) -> np.ndarray:
    """bool [P]: whether `rects` [P, B, 4] are between `points` [P, 2] and `targets` [P, 2]."""
    tensors = (torch.tensor(part) for part in (points, targets[:, None], rects))
    return is_blocked(*tensors).numpy()[:, 0]


def draw_joint_starts(rng: np.random.Generator, house: House, count: int) -> np.ndarray | None:
    """float64 [J, count, 3]: poses in front of each handle that face it, outside the area that its joint sweeps.

    None if there are no such places.
    """
    starts = np.empty((NUM_JOINTS, count, 3))
    for joint in range(NUM_JOINTS):
        handle, outward = house.handles[joint, :2], house.outward(joint)
        angle = np.arctan2(outward[1], outward[0]) + rng.uniform(-_SPREAD, _SPREAD, 400)
        length = rng.uniform(*HANDLE_DISTANCES[joint], 400)
        points = handle + length[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
        points = points[is_outside_sweeps(house, points, all_swept_boxes(house))]
        rects = np.broadcast_to(_walls(house), (len(points), len(house.scene.boxes), 4))
        points = points[~is_hidden(points, np.broadcast_to(handle + 0.05 * outward, points.shape), rects)][:count]
        if len(points) < count:
            return None
        starts[joint] = facing(points, np.broadcast_to(handle, points.shape))
    return starts


def facing(points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """float64 [..., 3]: poses at `points` [..., 2] that face `targets` [..., 2]."""
    way = targets - points
    return np.concatenate([points, np.arctan2(way[..., 1:], way[..., :1])], -1)


def is_usable(house: House) -> bool:
    """Whether the robot reaches the fridge, the drawers, a table, a counter, all handles and enough other surfaces."""
    reached = [surface for surface in house.surfaces if len(stands_of(house, surface)) >= LEAST_STANDS]
    kinds = [surface.kind for surface in reached]
    if kinds.count("fridge") < 2 or kinds.count("drawer") < 2 or not {"table", "counter"} <= set(kinds):
        return False
    if sum(surface.joint == IN_THE_OPEN for surface in reached) < LEAST_SURFACES:
        return False
    return draw_joint_starts(np.random.default_rng(house.scene.seed), house, 8) is not None


def _walls(house: House) -> np.ndarray:
    return boxed(torch.from_numpy(house.scene.boxes[:, :4])).numpy()


def _around(low: float, high: float, margin: float, reach: float, step: float) -> np.ndarray:
    """Coordinates between two sides of a surface, and up to `reach` beyond them, but not nearer than `margin`."""
    beyond = np.arange(margin, reach, step)
    between = np.linspace(low, high, max(3, round((high - low) / step) + 1))
    return np.concatenate([(low - beyond)[::-1], between, high + beyond])


def _is_in_front(house: House, surface: Surface, area: Rect, points: np.ndarray) -> np.ndarray:
    """bool [P]: whether `points` [P, 2] are straight in front of the opening of a fridge or a drawer."""
    outward = house.outward(surface.joint)
    center = np.array([area.x0 + area.x1, area.y0 + area.y1]) / 2
    across = np.array([area.width, area.depth]) @ np.abs(outward[::-1])
    ahead, aside = (points - center) @ outward, (points - center) @ outward[::-1]
    return (ahead > 0) & (np.abs(aside) <= 0.5 * across)


def _states(joint: int) -> np.ndarray:
    """Values of the joints that must leave the stands of a surface free."""
    door = [(angle, 0.0, 0.0) for angle in OPEN_DOOR]
    if joint == FRIDGE:
        return np.array(door)
    if joint == IN_THE_OPEN:
        return np.array([(0.0, 0.0, 0.0), door[-1]])
    drawer = np.zeros((1, NUM_JOINTS))
    drawer[0, joint] = 0.45
    return drawer
