"""Top-down maps: positions and colours."""

import numpy as np
import pytest

from paceline.sims.navigation.rendering.maps import FLOOR, GOAL, PATH, START, TRAJECTORIES, WALL, Canvas, top_down
from tests.sims.navigation.rooms import divided_room

SIZE = 640  # 100 pixels a metre: 6 m and 0.2 m of wall on either side


def at(image, x, y):
    """The colour at a position of the divided room; y points up."""
    return tuple(image[round((4.2 - y) * 100), round((x + 0.2) * 100)].tolist())


def test_a_map_shows_what_is_there():
    image = top_down(divided_room(), size=SIZE, path=np.array([(1, 1), (2, 1)]), start=(1, 3), goal=(5, 1))
    assert image.shape == (440, 640, 3)
    assert image.dtype == np.uint8
    assert at(image, 3, 1) == WALL
    assert at(image, -0.1, 2) == WALL
    assert at(image, 3, 3.5) == FLOOR
    assert at(image, 4.5, 2.5) == FLOOR
    assert at(image, 1.5, 1) == PATH
    assert at(image, 1, 3) == START
    assert at(image, 5, 1) == GOAL


def test_trajectories_turn_from_dark_to_light():
    points = np.column_stack([np.linspace(0.5, 2.5, 21), np.full(21, 2.0)])
    image = top_down(divided_room(), size=SIZE, trajectories=[points, points + np.array([3.0, 0.0])])
    first, last = TRAJECTORIES[0]
    assert at(image, 0.52, 2) == first
    assert at(image, 2.48, 2) == last
    middle = at(image, 1.52, 2)
    assert first < middle < last
    assert at(image, 3.52, 2) == TRAJECTORIES[1][0]


def test_the_agent_points_where_it_looks():
    image = top_down(divided_room(), size=SIZE, pose=(1.0, 2.0, np.pi / 2))
    assert at(image, 1.0, 2.25) == (250, 204, 21)
    assert at(image, 1.0, 1.75) == FLOOR


def test_edges_are_smooth():
    """A line covers an area of its length times its thickness, at any slope."""
    for angle in (0.0, 0.3, 1.0):
        canvas = Canvas(0, 0, 10, 10, 20)
        end = (2 + 5 * np.cos(angle), 2 + 5 * np.sin(angle))
        canvas.line(np.array([(2, 2), end]), [(0, 0, 0)], 0.5)
        covered = (255 - canvas.pixels()[..., 0].astype(float)).sum() / 255 / 20**2
        assert covered == pytest.approx(5 * 0.5 + np.pi * 0.25**2, rel=0.03)
    canvas = Canvas(0, 0, 1, 1, 10)
    canvas.rectangle(0.05, 0.0, 0.1, 1.0, (0, 0, 0))
    assert canvas.pixels()[5, :2, 0].tolist() == [128, 255]


def test_what_is_outside_is_cut_off():
    canvas = Canvas(0, 0, 1, 1, 10)
    canvas.line(np.array([(-5, -5), (-4, -5)]), [(0, 0, 0)], 0.1)
    canvas.disc(9, 9, 0.5, (0, 0, 0))
    assert (canvas.pixels() == 255).all()
