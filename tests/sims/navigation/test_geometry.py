"""Lines of sight and steps against slow references, on random rectangles and in special cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sims.navigation.scenes.free_space import CONTACT, NODE, REST, SIGHT
from paceline.sims.navigation.scenes.geometry import boxed, is_blocked, move
from tests.sims.navigation import reference

coordinate = st.integers(0, 80).map(lambda n: n / 16)  # so that touching and lying flush happen
rectangle = st.tuples(coordinate, coordinate, st.integers(1, 30), st.integers(1, 30)).map(
    lambda r: (r[0], r[1], r[0] + r[2] / 16, r[1] + r[3] / 16)
)


def test_growths_are_apart_by_more_than_rounding():
    assert SIGHT < NODE < CONTACT < REST
    assert min(np.diff([SIGHT, NODE, CONTACT, REST])) > 30 * np.spacing(np.float32(20.0))


@settings(max_examples=100)
@given(st.lists(rectangle, min_size=1, max_size=6), st.lists(st.tuples(coordinate, coordinate), min_size=2, max_size=8))
def test_sight_equals_the_reference(rects, points):
    corners = torch.tensor(rects, dtype=torch.float64)
    places = torch.tensor(points, dtype=torch.float64)
    count = len(points)
    got = is_blocked(places, places.expand(count, -1, -1), boxed(corners).expand(count, -1, -1))
    for i in range(count):
        for j in range(count):
            if i != j and points[i] != points[j]:
                assert bool(got[i, j]) == (not reference.sees(points[i], points[j], rects)), (points[i], points[j])


def test_touching_does_not_block():
    rect = boxed(torch.tensor([[[1.0, 1.0, 2.0, 2.0]]]))
    for start, end, blocked in [
        ((0, 1), (3, 1), False),  # along a side
        ((0, 0), (1, 1), False),  # up to a corner
        ((0, 2), (2, 0), False),  # through a corner
        ((0, 1.01), (3, 1.01), True),
        ((0, 0), (3, 3), True),
        ((0, 1.5), (0.99, 1.5), False),
        ((1.5, 1.5), (1.6, 1.6), True),  # all of it inside
    ]:
        got = is_blocked(torch.tensor([start]).float(), torch.tensor([[end]]).float(), rect)
        assert bool(got) == blocked, (start, end)


def at_rest(rects):
    return boxed(torch.tensor(reference.grown(rects, CONTACT), dtype=torch.float32))


@settings(max_examples=100)
@given(
    st.lists(rectangle, min_size=1, max_size=6),
    st.tuples(coordinate, coordinate),
    st.lists(st.floats(-math.pi, math.pi), min_size=1, max_size=30),
    st.booleans(),
)
def test_a_walk_never_enters_an_obstacle(rects, start, headings, slide):
    """It also goes no farther than the step, and stops only at obstacles."""
    # Gaps that the agent fits into only by rounding are not walked into.
    limits = reference.grown(rects, CONTACT)
    if any(a < start[0] < c and b < start[1] < d for a, b, c, d in reference.grown(rects, REST)) or any(
        0.0 < max(a[0] - b[2], b[0] - a[2], a[1] - b[3], b[1] - a[3]) < 0.01 for a in limits for b in limits
    ):
        return
    position, contact = torch.tensor([start]), at_rest(rects)[None]
    for heading in headings:
        step = 0.25 * torch.tensor([[math.cos(heading), math.sin(heading)]])
        before = position[0].tolist()
        position, travelled, collided = move(position, step, contact, slide)
        after = position[0].tolist()
        for x0, y0, x1, y1 in limits:
            assert not (x0 + 1e-5 < after[0] < x1 - 1e-5 and y0 + 1e-5 < after[1] < y1 - 1e-5)
        assert float(travelled) <= 0.25 + 1e-6
        assert math.dist(before, after) <= float(travelled) + REST - CONTACT + 1e-6
        target = (before[0] + float(step[0, 0]), before[1] + float(step[0, 1]))
        inner = reference.grown(rects, CONTACT - 1e-5)
        if not reference.sees(before, target, inner):
            assert bool(collided)
        elif reference.sees(before, target, reference.grown(rects, REST)):
            assert not bool(collided)
            assert after == pytest.approx(target, abs=1e-6)


def walk(rects, start, heading_degrees, length=0.25, slide=True):
    heading = math.radians(heading_degrees)
    step = length * torch.tensor([[math.cos(heading), math.sin(heading)]])
    return move(torch.tensor([start]).float(), step, at_rest(rects)[None], slide)


def test_sliding_goes_on_along_the_wall():
    wall = [(1.0, -5.0, 2.0, 5.0)]
    slid = walk(wall, (0.8, 0.0), 45, length=0.4)
    # 0.1 m to the wall less its millimetre; then what is left in y.
    assert slid.position[0].tolist() == pytest.approx([1.0 - REST, 0.4 * math.sin(math.pi / 4)], abs=1e-5)
    assert bool(slid.collided)
    to_wall = (0.2 - CONTACT) * math.sqrt(2)
    assert float(slid.travelled) == pytest.approx(to_wall + (0.4 - to_wall) * math.sin(math.pi / 4), abs=1e-4)


def test_without_sliding_it_stops():
    stopped = walk([(1.0, -5.0, 2.0, 5.0)], (0.8, 0.0), 45, length=0.4, slide=False)
    assert stopped.position[0].tolist() == pytest.approx([1.0 - REST, 0.2 - CONTACT], abs=1e-4)
    assert bool(stopped.collided)
    assert float(stopped.travelled) == pytest.approx((0.2 - CONTACT) * math.sqrt(2), abs=1e-5)


def test_sliding_ends_at_the_next_wall():
    corner = [(1.0, -5.0, 2.0, 5.0), (-5.0, 0.3, 1.0, 1.0)]
    slid = walk(corner, (0.85, 0.0), 45, length=0.6)
    assert slid.position[0].tolist() == pytest.approx([1.0 - REST, 0.3 - REST], abs=1e-4)
    # And stays there, however often it tries.
    again = slid
    for _ in range(100):
        again = move(again.position, torch.tensor([[0.2, 0.2]]), at_rest(corner)[None])
    assert again.position[0].tolist() == pytest.approx(slid.position[0].tolist(), abs=5e-4)
    assert float(again.travelled) == pytest.approx(0.0, abs=1e-3)


def test_a_wall_of_two_flush_boxes_is_one_wall():
    wall = [(1.0, -5.0, 2.0, 0.0), (1.0, 0.0, 2.0, 5.0)]
    slid = walk(wall, (0.85, -0.1), 60)
    assert float(slid.position[0, 1]) == pytest.approx(-0.1 + 0.25 * math.sin(math.radians(60)), abs=1e-5)


def test_an_agent_at_a_wall_can_turn_and_leave():
    wall = [(1.0, -5.0, 2.0, 5.0)]
    at_wall = walk(wall, (0.8, 0.0), 0)
    away = move(at_wall.position, torch.tensor([[-0.25, 0.0]]), at_rest(wall)[None])
    assert float(away.position[0, 0]) == pytest.approx(1.0 - REST - 0.25, abs=1e-6)
    assert not bool(away.collided)
    along = move(at_wall.position, torch.tensor([[0.0, 0.25]]), at_rest(wall)[None])
    assert float(along.position[0, 1]) == pytest.approx(0.25)
    assert not bool(along.collided)
    standing = move(at_wall.position, torch.zeros(1, 2), at_rest(wall)[None])
    assert standing.position.tolist() == at_wall.position.tolist()
    assert not bool(standing.collided)
