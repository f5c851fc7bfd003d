"""Motion up to contacts, suction, doors, drawers and falls, in a room made by hand."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.sims.rearrangement.physics.grip import grip
from paceline.sims.rearrangement.physics.motion import TOUCHING, advance
from paceline.sims.rearrangement.physics.world import (
    NOTHING,
    UPPER_DRAWER,
    arm_of,
    handle_places,
    moving_boxes,
    object_boxes,
    projections,
)
from tests.sims.rearrangement import rooms

ON, OFF = torch.tensor([True]), torch.tensor([False])


def go(world, now, forward=0.0, left=0.0, turns=(0.0,) * 7):
    depth = rooms.depth(world, now)
    return advance(world, now, arm_of(now), depth, torch.tensor([[forward, left]]), torch.tensor([turns]), slide=True)


def reach(world, now, target, tolerance=0.004):
    """Move the hand towards `target` by the gradient of the distance."""
    target = torch.tensor([target])
    for _ in range(200):
        angles = now.angles.clone().requires_grad_()
        away = (arm_of(now._replace(angles=angles)).tip - target).norm()
        if float(away.detach()) < tolerance:
            return now
        (gradient,) = torch.autograd.grad(away, angles)
        turns = (-gradient / gradient.abs().max() * min(0.05, float(away.detach()))).detach()
        before, now = now, go(world, now, turns=turns[0].tolist()).state
        if torch.equal(before.angles, now.angles):
            return now
    return now


def test_at_rest_nothing_touches():
    assert float(rooms.depth(rooms.world(), rooms.state())) == 0.0


def test_the_base_stops_at_the_table():
    world = rooms.world()
    now = rooms.state(pose=(0.5, 0.0, 0.0), angles=torch.tensor([[1.5, -1.2, 0.0, 2.0, 0.0, 1.0, 0.0]]))
    for _ in range(18):
        moved = go(world, now, forward=0.05)
        now = moved.state
    assert now.pose[0, 0].item() == pytest.approx(1.5 - 0.251, abs=2e-3) and bool(moved.collided)


def test_the_arm_stops_at_the_table():
    world, now = rooms.world(), rooms.state()
    for _ in range(25):
        moved = go(world, now, turns=(0.0, 0.05, 0.0, 0.0, 0.0, -0.02, 0.0))
        now = moved.state
        assert float(moved.depth) <= TOUCHING
    assert bool(moved.collided)
    assert float(arm_of(now).tip[0, 2]) > 0.74


def test_the_arm_does_not_enter_its_own_body_or_the_floor():
    """Joints turn in random directions. Every other arm also reaches forward and down."""
    num = 24
    world, now = rooms.world(num), rooms.state(num, pose=(-4.0, -4.0, 0.0))
    torch.manual_seed(0)
    turns = torch.rand(num, 7) * 0.1 - 0.05
    turns[::2] += torch.tensor([0.0, 0.05, 0.0, 0.02, 0.0, 0.0, 0.0])
    turns.clamp_(-0.05, 0.05)
    depth, collided, lowest = rooms.depth(world, now), torch.zeros(num, dtype=torch.bool), math.inf
    for _ in range(60):
        moved = advance(world, now, arm_of(now), depth, torch.zeros(num, 2), turns, slide=True)
        now, depth = moved.state, rooms.depth(world, moved.state)
        assert float(depth.max()) <= TOUCHING
        collided |= moved.collided
        lowest = min(lowest, float(arm_of(now).tip[:, 2].min()))
    assert -1e-3 < lowest < 0.1, "one reaches the floor"
    assert int(collided.sum()) >= 5


def test_an_object_is_taken_carried_and_falls_to_the_table():
    world, now = rooms.world(), rooms.state()
    far = grip(world, now, arm_of(now), ON)
    assert int(far.taken) == NOTHING and int(far.state.held) == NOTHING
    now = reach(world, now, (1.7, 0.0, 0.84))
    taken = grip(world, now, arm_of(now), ON)
    assert int(taken.taken) == 0 == int(taken.state.held)
    now = taken.state
    lifted = go(world, now, turns=(0.0, -0.05, 0.0, 0.0, 0.0, 0.0, 0.0)).state
    assert float(lifted.objects[0, 0, 2]) > float(now.objects[0, 0, 2]) + 0.01
    torch.testing.assert_close(lifted.objects[0, 1:], now.objects[0, 1:])
    dropped = grip(world, lifted, arm_of(lifted), OFF)
    assert int(dropped.dropped) == 0 and int(dropped.state.held) == NOTHING
    assert float(dropped.state.objects[0, 0, 2]) == pytest.approx(0.79, abs=1e-6)


def test_an_object_falls_on_another_or_to_the_floor():
    world = rooms.world()
    high = rooms.state().objects.clone()
    high[0, 0] = torch.tensor([1.7, 0.5, 1.5, 0.0])
    now = rooms.state(objects=high, held=torch.tensor([0]))
    dropped = grip(world, now, arm_of(now), OFF).state
    assert float(dropped.objects[0, 0, 2]) == pytest.approx(0.75 + 0.24 + 0.04, abs=1e-6)
    high[0, 0] = torch.tensor([0.5, 0.5, 1.5, 0.0])
    now = rooms.state(objects=high, held=torch.tensor([0]))
    assert float(grip(world, now, arm_of(now), OFF).state.objects[0, 0, 2]) == pytest.approx(0.04)


def test_an_object_under_another_is_not_taken():
    world, stacked = rooms.world(), rooms.state().objects.clone()
    stacked[0, 1] = torch.tensor([1.7, 0.0, 0.95, 0.0])
    now = rooms.state(objects=stacked, pose=(1.24, 0.0, 0.0))
    tip = arm_of(now).tip[0]
    shift = stacked[0, 0, :3] - tip + torch.tensor([-0.05, 0.0, 0.0])
    now = now._replace(objects=stacked - torch.cat((shift, torch.zeros(1))))  # both are at the tip, the cube nearest
    assert int(grip(world, now, arm_of(now), ON).taken) != 0


def test_what_is_held_hits_things():
    world, objects = rooms.world(), rooms.state().objects.clone()
    now = rooms.state(pose=(1.0, 0.5, 0.0))
    tip = arm_of(now).tip[0]
    objects[0, 1] = torch.tensor([tip[0], tip[1], tip[2] - 0.12, 0.0])
    now = now._replace(objects=objects, held=torch.tensor([1]), grasp=torch.tensor([[0.0, 0.0, -0.12, 0.0]]))
    assert float(rooms.depth(world, now)) <= TOUCHING
    for _ in range(40):
        moved = go(world, now, turns=(0.0, 0.03, 0.0, 0.0, 0.0, -0.03, 0.0))
        now = moved.state
    bottom = float(now.objects[0, 1, 2]) - 0.12
    assert bottom == pytest.approx(0.75, abs=0.03) and bottom > 0.75 - 2 * TOUCHING


def test_the_door_follows_its_handle_and_keeps_its_radius():
    world = rooms.world()
    now = rooms.state(pose=(0.4, 1.9, math.pi / 2))
    now = reach(world, now, (0.25, 2.53, 1.0), 0.02)
    taken = grip(world, now, arm_of(now), ON)
    assert int(taken.taken) == rooms.NUM_OBJECTS
    now = taken.state
    for _ in range(16):
        moved = go(world, now, forward=-0.02)
        now = moved.state
        assert float(moved.depth) <= TOUCHING
    value = float(now.values[0, 0])
    assert value > 0.2
    axis = torch.tensor([-0.3, 2.7])
    handle = handle_places(world, now.values)[0, 0]
    assert float((handle[:2] - axis).norm()) == pytest.approx(math.hypot(0.55, 0.11), abs=1e-5)
    door = moving_boxes(world, now.values)[0, 0]
    assert float(door[6]) == pytest.approx(-value)
    released = grip(world, now, arm_of(now), OFF)
    assert int(released.dropped) == rooms.NUM_OBJECTS and float(released.state.values[0, 0]) == pytest.approx(value)


def test_a_drawer_moves_with_what_lies_in_it_up_to_its_limit():
    world = rooms.world()
    now = rooms.state(pose=(-0.95, 0.27, math.pi))
    now = reach(world, now, (-1.69, 0.0, 0.63), 0.02)
    taken = grip(world, now, arm_of(now), ON)
    assert int(taken.taken) == rooms.NUM_OBJECTS + UPPER_DRAWER
    now, inside = taken.state, taken.state.objects[0, 3].clone()
    for _ in range(28):
        now = go(world, now, forward=-0.02).state
    value = float(now.values[0, UPPER_DRAWER])
    assert 0.3 < value <= 0.45
    torch.testing.assert_close(now.objects[0, 3] - inside, torch.tensor([value, 0.0, 0.0, 0.0]), atol=1e-5, rtol=0)


def test_an_object_dropped_into_an_open_drawer_lies_in_it():
    world, objects = rooms.world(), rooms.state().objects.clone()
    objects[0, 0] = torch.tensor([-1.65, 0.0, 1.2, 0.0])
    values = torch.tensor([[0.0, 0.4, 0.0]])
    now = rooms.state(objects=objects, values=values, held=torch.tensor([0]), pose=(3.0, 3.0, 0.0))
    dropped = grip(world, now, arm_of(now), OFF).state
    assert int(dropped.object_joint[0, 0]) == UPPER_DRAWER
    assert float(dropped.objects[0, 0, 2]) == pytest.approx(0.51 + 0.04)


def test_a_drawer_does_not_close_over_a_tall_object():
    world, objects = rooms.world(), rooms.state().objects.clone()
    objects[0, 1] = torch.tensor([-1.6, 0.15, 0.63, 0.0])
    now = rooms.state(
        objects=objects,
        object_joint=torch.tensor([[NOTHING, UPPER_DRAWER, NOTHING, UPPER_DRAWER]]),
        values=torch.tensor([[0.0, 0.45, 0.0]]),
        held=torch.tensor([rooms.NUM_OBJECTS + UPPER_DRAWER]),
        pose=(-0.5, 0.27, math.pi),
    )
    tip = arm_of(now).tip
    handle = handle_places(world, now.values)[:, UPPER_DRAWER]
    apart = float((handle - tip).norm())
    now = now._replace(grasp=torch.tensor([[float(0.45 - projections(world, tip)[0, 1]), apart, 0.0, 0.0]]))
    for _ in range(28):
        now = go(world, now, forward=0.02).state
    assert float(now.values[0, UPPER_DRAWER]) > 0.05, "the object would be in the cabinet's top"
    assert float(object_boxes(world, now)[0, 1, 0]) - 0.03 > -1.75 - TOUCHING
