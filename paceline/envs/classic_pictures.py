"""Pictures of Gymnasium's CartPole and Pendulum, drawn by Pillow: Gymnasium's own renderer needs pygame."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from PIL import Image, ImageDraw

WIDTH, HEIGHT = 300, 200
BACKGROUND, GROUND, BODY, ROD, JOINT = (248, 250, 252), (100, 116, 139), (30, 41, 59), (37, 99, 235), (234, 88, 12)


class DrawnEnv(gymnasium.Wrapper):
    """An environment whose `render` draws its state."""

    render_mode = "rgb_array"

    def __init__(self, env: Any, draw: Callable[[ImageDraw.ImageDraw, Any], None]) -> None:
        super().__init__(env)
        self._draw = draw

    def render(self) -> Any:
        image = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND)
        self._draw(ImageDraw.Draw(image), self.env.unwrapped)
        return np.asarray(image)


def drawn(env: Any) -> DrawnEnv | None:
    """The environment with a `render` of ours; None if there is no drawing of it."""
    spec = getattr(env, "spec", None)
    draw = DRAWINGS.get(spec.id.rpartition("-v")[0]) if spec is not None else None
    return None if draw is None else DrawnEnv(env, draw)


def draw_cartpole(canvas: ImageDraw.ImageDraw, env: Any) -> None:
    place, _, angle, _ = env.state
    x, y = WIDTH / 2 + place / env.x_threshold * 0.45 * WIDTH, 0.75 * HEIGHT
    length = 0.55 * HEIGHT
    canvas.line((0, y + 12, WIDTH, y + 12), GROUND, 2)
    canvas.rounded_rectangle((x - 24, y - 10, x + 24, y + 10), 4, BODY)
    canvas.line((x, y - 8, x + length * math.sin(angle), y - 8 - length * math.cos(angle)), ROD, 8)
    canvas.ellipse((x - 5, y - 13, x + 5, y - 3), JOINT)


def draw_pendulum(canvas: ImageDraw.ImageDraw, env: Any) -> None:
    angle, _ = env.state  # 0 is upright, and it grows against the clock
    x, y, length = WIDTH / 2, HEIGHT / 2, 0.42 * HEIGHT
    end = (x - length * math.sin(angle), y - length * math.cos(angle))
    canvas.line((x, y, *end), ROD, 14)
    canvas.ellipse((end[0] - 10, end[1] - 10, end[0] + 10, end[1] + 10), ROD)
    canvas.ellipse((x - 6, y - 6, x + 6, y + 6), BODY)
    torque = float(env.last_u or 0.0)
    canvas.line((x - 40 * torque / 2, HEIGHT - 12, x, HEIGHT - 12), JOINT, 6)


DRAWINGS: dict[str, Callable[[ImageDraw.ImageDraw, Any], None]] = {
    "CartPole": draw_cartpole,
    "Pendulum": draw_pendulum,
}
"""By the name of the environment without its version."""
