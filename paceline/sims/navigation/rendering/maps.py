"""Top-down maps as images: a scene with trajectories, the shortest path, the start and the goal.

A shape colours each pixel by the share of it that the shape covers, so edges are smooth at any scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.sims.navigation.scenes.generator import is_wall
from paceline.sims.navigation.scenes.scene import AGENT_HEIGHT, Rect, Scene

Color = tuple[int, int, int]

OUTSIDE: Color = (255, 255, 255)
FLOOR: Color = (232, 230, 226)
WALL: Color = (72, 76, 84)
DOOR: Color = (208, 204, 196)
PATH: Color = (46, 160, 67)
START: Color = (37, 99, 235)
GOAL: Color = (220, 38, 38)
MARK: Color = (235, 30, 60)
TRAJECTORIES: tuple[tuple[Color, Color], ...] = (
    ((23, 37, 120), (125, 190, 255)),
    ((124, 45, 18), (253, 186, 116)),
    ((88, 28, 135), (216, 180, 254)),
)
"""The colours of the start and the end of the first, second and third trajectory."""


class Canvas:
    """An image of a rectangle of the floor, y upwards."""

    def __init__(self, x0: float, y0: float, x1: float, y1: float, pixels_per_metre: float) -> None:
        self._scale, self._x0, self._y1 = pixels_per_metre, x0, y1
        height, width = (max(1, round(length * pixels_per_metre)) for length in (y1 - y0, x1 - x0))
        self._image = np.tile(np.array(OUTSIDE, np.float64), (height, width, 1))

    def pixels(self) -> np.ndarray:
        """uint8 [H, W, 3]."""
        return np.round(self._image).astype(np.uint8)

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, color: Color, opacity: float = 1.0) -> None:
        height, width, _ = self._image.shape
        left, right = (x0 - self._x0) * self._scale, (x1 - self._x0) * self._scale
        top, bottom = (self._y1 - y1) * self._scale, (self._y1 - y0) * self._scale
        columns = slice(max(0, int(left)), max(0, min(width, int(right) + 1)))
        rows = slice(max(0, int(top)), max(0, min(height, int(bottom) + 1)))
        across, down = _covered(left, right, width)[columns], _covered(top, bottom, height)[rows]
        self._blend(rows, columns, down[:, None] * across[None, :] * opacity, color)

    def line(self, points: np.ndarray, colors: Sequence[Color], thickness: float) -> None:
        """Lines between `points` [L, 2], each in its own colour; `thickness` in metres, at least 1.5 pixels."""
        radius = max(0.75, 0.5 * thickness * self._scale)
        places = np.column_stack([(points[:, 0] - self._x0) * self._scale, (self._y1 - points[:, 1]) * self._scale])
        for start, end, color in zip(places[:-1], places[1:], colors, strict=True):
            self._capsule(start, end, radius, color)

    def box(self, box: Sequence[float], color: Color, opacity: float = 1.0) -> None:
        """A rectangle with a yaw: x and y of its centre, its half extents, and its rotation in radians."""
        x, y, half_x, half_y, yaw = box
        height, width, _ = self._image.shape
        center = np.array([(x - self._x0) * self._scale, (self._y1 - y) * self._scale])
        reach = np.hypot(half_x, half_y) * self._scale + 1
        low = np.floor(center - reach).astype(int).clip(0)
        high = np.ceil(center + reach).astype(int).clip(0, (width, height))
        if (high <= low).any():
            return
        right = np.arange(low[0], high[0]) + 0.5 - center[0]
        up = center[1] - (np.arange(low[1], high[1]) + 0.5)[:, None]
        along, across = np.cos(yaw) * right + np.sin(yaw) * up, np.cos(yaw) * up - np.sin(yaw) * right
        inside = np.minimum(half_x * self._scale - np.abs(along), half_y * self._scale - np.abs(across))
        rows, columns = slice(low[1], high[1]), slice(low[0], high[0])
        self._blend(rows, columns, (inside + 0.5).clip(0.0, 1.0) * opacity, color)

    def disc(self, x: float, y: float, radius: float, color: Color) -> None:
        place = np.array([(x - self._x0) * self._scale, (self._y1 - y) * self._scale])
        self._capsule(place, place, max(2.0, radius * self._scale), color)

    def _capsule(self, start: np.ndarray, end: np.ndarray, radius: float, color: Color) -> None:
        height, width, _ = self._image.shape
        low = np.floor(np.minimum(start, end) - radius - 1).astype(int).clip(0)
        high = np.ceil(np.maximum(start, end) + radius + 1).astype(int).clip(0, (width, height))
        if (high <= low).any():
            return
        x, y = np.arange(low[0], high[0]) + 0.5, (np.arange(low[1], high[1]) + 0.5)[:, None]
        along = end - start
        share = ((x - start[0]) * along[0] + (y - start[1]) * along[1]) / max(1e-12, float(along @ along))
        share = share.clip(0.0, 1.0)
        distance = np.hypot(x - start[0] - share * along[0], y - start[1] - share * along[1])
        rows, columns = slice(low[1], high[1]), slice(low[0], high[0])
        self._blend(rows, columns, (radius + 0.5 - distance).clip(0.0, 1.0), color)

    def _blend(self, rows: slice, columns: slice, opacity: np.ndarray, color: Color) -> None:
        part = self._image[rows, columns]
        part += opacity[..., None] * (np.array(color, np.float64) - part)


def top_down(
    scene: Scene,
    *,
    size: int = 512,
    trajectories: Sequence[np.ndarray] = (),
    path: np.ndarray | None = None,
    start: Sequence[float] | None = None,
    goal: Sequence[float] | None = None,
    pose: Sequence[float] | None = None,
    marks: Sequence[Rect] = (),
) -> np.ndarray:
    """uint8 [H, W, 3]: a map whose longer side has `size` pixels.

    `trajectories` [L, 2] turn from dark to light over time. `path` is green, `start` a blue square, `goal` a red square
    and `pose` (x, y, heading) a pointed disc. `marks` are red areas.
    """
    canvas = draw_scene(scene, size)
    if path is not None:
        canvas.line(np.asarray(path, np.float64), [PATH] * (len(path) - 1), 0.07)
    for index, points in enumerate(trajectories):
        canvas.line(
            np.asarray(points, np.float64), gradient(TRAJECTORIES[index % len(TRAJECTORIES)], len(points) - 1), 0.09
        )
    for place, color in ((start, START), (goal, GOAL)):
        if place is not None:
            x, y = float(place[0]), float(place[1])
            canvas.rectangle(x - 0.17, y - 0.17, x + 0.17, y + 0.17, (255, 255, 255))
            canvas.rectangle(x - 0.13, y - 0.13, x + 0.13, y + 0.13, color)
    if pose is not None:
        draw_pose(canvas, *map(float, pose))
    for area in marks:
        # Thin areas are drawn wide enough to be seen.
        grow_x, grow_y = (max(0.0, 0.06 - side) / 2 for side in (area.width, area.depth))
        canvas.rectangle(area.x0 - grow_x, area.y0 - grow_y, area.x1 + grow_x, area.y1 + grow_y, MARK, 0.7)
    return canvas.pixels()


def draw_scene(scene: Scene, size: int, area: Rect | None = None) -> Canvas:
    """Floor, walls, doors and furniture of `area`, or of all. The longer side of the image has `size` pixels."""
    area = area or scene.interior.grown(0.2)
    canvas = Canvas(*area, pixels_per_metre=size / max(area.width, area.depth))
    canvas.rectangle(*scene.interior, FLOOR)
    walls = is_wall(scene.boxes)
    for index in np.argsort(scene.boxes[:, 5], kind="stable"):  # higher boxes are drawn on top
        x0, y0, x1, y1, low, _ = map(float, scene.boxes[index])
        if walls[index]:
            canvas.rectangle(x0, y0, x1, y1, WALL)
        elif low >= AGENT_HEIGHT:
            canvas.rectangle(x0, y0, x1, y1, DOOR, 0.6)
        else:
            red, green, blue = (round(0.55 * value + 0.45 * 215) for value in scene.colors[index].tolist())
            canvas.rectangle(x0, y0, x1, y1, (red, green, blue))
    return canvas


def centered(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image in the middle of a white one."""
    board = np.full((height, width, 3), 255, np.uint8)
    top, left = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    board[top : top + image.shape[0], left : left + image.shape[1]] = image
    return board


def draw_pose(canvas: Canvas, x: float, y: float, heading: float) -> None:
    """A pointed disc."""
    tip = np.array([[x, y], [x + 0.28 * np.cos(heading), y + 0.28 * np.sin(heading)]])
    canvas.line(tip, [(250, 204, 21)], 0.08)
    canvas.disc(x, y, 0.13, (30, 30, 30))
    canvas.disc(x, y, 0.1, (250, 204, 21))


def gradient(ends: tuple[Color, Color], count: int) -> list[Color]:
    """`count` colours from the first to the second of `ends`."""
    first, last = (np.array(color) for color in ends)
    colors = []
    for share in np.linspace(0.0, 1.0, max(count, 1)):
        red, green, blue = np.round(first + share * (last - first)).astype(int).tolist()
        colors.append((red, green, blue))
    return colors[:count]


def _covered(start: float, end: float, count: int) -> np.ndarray:
    """[count]: the share of each pixel between two positions."""
    pixels = np.arange(count)
    return (np.minimum(pixels + 1, end) - np.maximum(pixels, start)).clip(0.0, 1.0)
