"""`contact.depths` as one Triton kernel: a program computes the depth of one robot in registers.

The boxes lie along the lanes. Doors, drawers, objects and the robot's own body are one vector. Static boxes come in
blocks. Where no box of a block is near a link of the arm, the program skips the exact distances.

Legend: R rows, W worlds, S static boxes, J joints, M boxes of doors and drawers, O objects.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.sims.constants import constant
from paceline.sims.rearrangement.physics.world import NUM_JOINTS, State, World
from paceline.sims.rearrangement.robot.arm import HAND, LINK_RADII, Arm
from paceline.sims.rearrangement.robot.body import HEIGHT, OWN_BODY, RADIUS

BLOCK = 32
"""Static boxes at a time."""
NUM_WARPS = 1
_UPPER_RADIUS, _FOREARM_RADIUS, _HAND_RADIUS = (tl.constexpr(radius) for radius in LINK_RADII)
_HAND_END = tl.constexpr(LINK_RADII[2] / HAND)
_BASE_RADIUS, _BASE_HEIGHT = tl.constexpr(RADIUS), tl.constexpr(HEIGHT)
_JOINTS, _BODIES = tl.constexpr(NUM_JOINTS), tl.constexpr(len(OWN_BODY))
_TINY = tl.constexpr(1e-9)


def depths(world: World, state: State, arm: Arm, slack: float, only: Tensor | None) -> Tensor:
    """See `contact.depths`. A handle may be `slack` metres from the place where it is held."""
    num = len(state.pose)
    result = torch.empty(num, device=state.pose.device)
    num_moving, num_objects = world.moving.shape[1], world.extents.shape[1]
    _depths[(num,)](
        *(part.contiguous() for part in world if part is not world.contact),
        *(part.contiguous() for part in state if part is not state.angles),
        *(point.contiguous() for point in arm),
        constant(OWN_BODY, state.pose),
        only if only is not None else result,
        result,
        len(world.static),
        slack,
        HAS_ONLY=only is not None,
        NUM_STATIC=world.static.shape[1],
        NUM_MOVING=num_moving,
        NUM_OBJECTS=num_objects,
        THINGS=triton.next_power_of_2(num_moving + num_objects + len(OWN_BODY)),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return result


@triton.jit
def _turned(x, y, cos, sin):
    """A vector in a frame that is turned."""
    return cos * x + sin * y, cos * y - sin * x


@triton.jit
def _outside(offset, extent):
    """See `shapes`."""
    return offset - tl.minimum(tl.maximum(offset, -extent), extent)


@triton.jit
def _length(x, y, z):
    return tl.sqrt(x * x + y * y + z * z)


@triton.jit
def _slope(x, y, z, dx, dy, dz, ex, ey, ez, time):
    """See `shapes`."""
    slope = dx * _outside(x + time * dx, ex) + dy * _outside(y + time * dy, ey)
    return slope + dz * _outside(z + time * dz, ez)


@triton.jit
def _narrowed(x, y, z, dx, dy, dz, ex, ey, ez, place, step, low, slope_low, high, slope_high):
    """The piece of a segment with the minimum, cut where the segment crosses a plane `place` ahead."""
    step = tl.where(tl.abs(step) < _TINY, _TINY, step)
    time = tl.minimum(tl.maximum(place / step, 0.0), 1.0)
    slope = _slope(x, y, z, dx, dy, dz, ex, ey, ez, time)
    later, earlier = (slope <= 0.0) & (time > low), (slope > 0.0) & (time < high)
    low, slope_low = tl.where(later, time, low), tl.where(later, slope, slope_low)
    high, slope_high = tl.where(earlier, time, high), tl.where(earlier, slope, slope_high)
    return low, slope_low, high, slope_high


@triton.jit
def _nearest(x, y, z, dx, dy, dz, ex, ey, ez):
    """See `shapes`: least distances on segments in the frames of boxes."""
    low = tl.zeros_like(x)
    high = low + 1.0
    at_start = _slope(x, y, z, dx, dy, dz, ex, ey, ez, low)
    at_end = _slope(x, y, z, dx, dy, dz, ex, ey, ez, high)
    a, b, c, d = low, at_start, high, at_end
    a, b, c, d = _narrowed(x, y, z, dx, dy, dz, ex, ey, ez, -ex - x, dx, a, b, c, d)
    a, b, c, d = _narrowed(x, y, z, dx, dy, dz, ex, ey, ez, ex - x, dx, a, b, c, d)
    a, b, c, d = _narrowed(x, y, z, dx, dy, dz, ex, ey, ez, -ey - y, dy, a, b, c, d)
    a, b, c, d = _narrowed(x, y, z, dx, dy, dz, ex, ey, ez, ey - y, dy, a, b, c, d)
    a, b, c, d = _narrowed(x, y, z, dx, dy, dz, ex, ey, ez, -ez - z, dz, a, b, c, d)
    a, b, c, d = _narrowed(x, y, z, dx, dy, dz, ex, ey, ez, ez - z, dz, a, b, c, d)
    time = a - b * (c - a) / tl.maximum(d - b, _TINY)
    time = tl.where(at_end <= 0.0, 1.0, tl.where(at_start >= 0.0, 0.0, time))
    return _length(_outside(x + time * dx, ex), _outside(y + time * dy, ey), _outside(z + time * dz, ez))


@triton.jit
def _of_link(ax, ay, az, bx, by, bz, radius, x, y, z, ex, ey, ez, cos, sin, counted):
    """How deep a capsule is in each of the boxes that are `counted`, at least 0."""
    wx, wy, wz = bx - ax, by - ay, bz - az
    mx, my = _turned((ax + bx) * 0.5 - x, (ay + by) * 0.5 - y, cos, sin)
    reach = _length(_outside(mx, ex), _outside(my, ey), _outside((az + bz) * 0.5 - z, ez))
    near = (reach < radius + 0.5 * _length(wx, wy, wz)) & counted
    depth = tl.zeros_like(x)
    if tl.max(near.to(tl.int32), axis=0) > 0:
        fx, fy = _turned(ax - x, ay - y, cos, sin)
        dx, dy = _turned(wx, wy, cos, sin)
        depth = radius - _nearest(fx, fy, az - z, dx, dy, tl.zeros_like(x) + wz, ex, ey, ez)
        depth = tl.where(near, tl.maximum(depth, 0.0), 0.0)
    return depth


@triton.jit
def _of_box(bx, by, bz, bex, bey, bez, bcos, bsin, x, y, z, ex, ey, ez, cos, sin, counted):
    """How deep one box is in the others that are `counted`, at least 0. See `shapes.gaps`."""
    dx, dy = x - bx, y - by
    along, across = tl.abs(cos * bcos + sin * bsin), tl.abs(sin * bcos - cos * bsin)
    one_x, one_y = _turned(dx, dy, bcos, bsin)
    other_x, other_y = _turned(dx, dy, cos, sin)
    gap = tl.maximum(tl.abs(one_x) - bex - (ex * along + ey * across), tl.abs(one_y) - bey - (ex * across + ey * along))
    gap = tl.maximum(gap, tl.abs(other_x) - ex - (bex * along + bey * across))
    gap = tl.maximum(gap, tl.abs(other_y) - ey - (bex * across + bey * along))
    gap = tl.maximum(gap, tl.abs(z - bz) - ez - bez)
    return tl.where(counted, tl.maximum(-gap, 0.0), 0.0)


@triton.jit
def _static_boxes(static, first, NUM_STATIC: tl.constexpr, BLOCK: tl.constexpr):
    """A block of static boxes by centre, half extents, cosine and sine of the yaw (0), and which of them there are."""
    lane = first + tl.arange(0, BLOCK)
    there = lane < NUM_STATIC
    box = static + lane * 7
    x, y, z = tl.load(box, there, 0.0), tl.load(box + 1, there, 0.0), tl.load(box + 2, there, 0.0)
    ex, ey, ez = tl.load(box + 3, there, 0.0), tl.load(box + 4, there, 0.0), tl.load(box + 5, there, 0.0)
    sin = tl.zeros_like(x)
    return x, y, z, ex, ey, ez, sin + 1.0, sin, there


@triton.jit
def _of_box_in_static(bx, by, bz, bex, bey, bez, bcos, bsin, static, NUM_STATIC: tl.constexpr, BLOCK: tl.constexpr):
    deepest = tl.zeros([BLOCK], tl.float32)
    for first in range(0, NUM_STATIC, BLOCK):
        x, y, z, ex, ey, ez, cos, sin, there = _static_boxes(static, first, NUM_STATIC, BLOCK)
        depth = _of_box(bx, by, bz, bex, bey, bez, bcos, bsin, x, y, z, ex, ey, ez, cos, sin, there)
        deepest = tl.maximum(deepest, depth)
    return tl.max(deepest, axis=0)


@triton.jit
def _of_link_in_static(ax, ay, az, bx, by, bz, radius, static, NUM_STATIC: tl.constexpr, BLOCK: tl.constexpr):
    deepest = tl.zeros([BLOCK], tl.float32)
    for first in range(0, NUM_STATIC, BLOCK):
        x, y, z, ex, ey, ez, cos, sin, there = _static_boxes(static, first, NUM_STATIC, BLOCK)
        depth = _of_link(ax, ay, az, bx, by, bz, radius, x, y, z, ex, ey, ez, cos, sin, there)
        deepest = tl.maximum(deepest, depth)
    return tl.max(deepest, axis=0)


@triton.jit
def _opened(x, y, joint, value, mask):
    """A point of a door or drawer that is opened by `value`, and how far it has turned."""
    slides = tl.load(joint, mask, 1.0) > 0.5
    axis_x, axis_y = tl.load(joint + 1, mask, 0.0), tl.load(joint + 2, mask, 0.0)
    way_x, way_y = tl.load(joint + 3, mask, 0.0), tl.load(joint + 4, mask, 0.0)
    turn = tl.where(slides, 0.0, way_x * value)
    cos, sin = tl.cos(turn), tl.sin(turn)
    away_x, away_y = x - axis_x, y - axis_y
    opened_x = tl.where(slides, x + way_x * value, axis_x + cos * away_x - sin * away_y)
    opened_y = tl.where(slides, y + way_y * value, axis_y + sin * away_x + cos * away_y)
    return opened_x, opened_y, turn


@triton.jit
def _strain(handles, joints, values, grasp, tip, joint, slack):
    """How much too far the tip is from the handle of a joint."""
    handle = handles + joint * 3
    x, y, _ = _opened(tl.load(handle), tl.load(handle + 1), joints + joint * 6, tl.load(values + joint), True)
    away_z = tl.load(handle + 2) - tl.load(tip + 2)
    return _length(x - tl.load(tip), y - tl.load(tip + 1), away_z) - tl.load(grasp + 1) - slack


@triton.jit
def _of_lane(values, is_it):
    """The value of the one lane that `is_it`."""
    return tl.sum(tl.where(is_it, values, 0.0), axis=0)


@triton.jit
def _point(points, row):
    return tl.load(points + 3 * row), tl.load(points + 3 * row + 1), tl.load(points + 3 * row + 2)


@triton.jit(do_not_specialize=["num_worlds"])
def _depths(
    static,
    joints,
    moving,
    moving_joint,
    handles,
    extents,
    poses,
    values,
    objects,
    object_joint,
    held,
    grasp,
    shoulder,
    elbow,
    wrist,
    tip,
    own,
    only,
    result,
    num_worlds,
    slack,
    HAS_ONLY: tl.constexpr,
    NUM_STATIC: tl.constexpr,
    NUM_MOVING: tl.constexpr,
    NUM_OBJECTS: tl.constexpr,
    THINGS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if HAS_ONLY:  # noqa: SIM102
        if tl.load(only + row) == 0:
            tl.store(result + row, 0.0)
            return
    world = row % num_worlds
    static += world * NUM_STATIC * 7
    joints += world * _JOINTS * 6
    moving += world * NUM_MOVING * 7
    handles += world * _JOINTS * 3
    extents += world * NUM_OBJECTS * 3
    values += row * _JOINTS
    objects += row * NUM_OBJECTS * 4
    hold = tl.load(held + row).to(tl.int32)
    px, py, heading = _point(poses, row)

    # All that moves: doors and drawers, then objects, then the robot's body.
    lane = tl.arange(0, THINGS)
    number, body = lane - NUM_MOVING, lane - NUM_MOVING - NUM_OBJECTS
    is_moving, is_object = lane < NUM_MOVING, (number >= 0) & (number < NUM_OBJECTS)
    is_body = (body >= 0) & (body < _BODIES)
    joint = tl.load(moving_joint + world * NUM_MOVING + lane, is_moving, 0).to(tl.int32)
    opened_by = tl.load(values + joint, is_moving, 0.0)
    box, thing, size, part = moving + lane * 7, objects + number * 4, extents + number * 3, own + body * 7
    x, y = tl.load(box, is_moving, 0.0), tl.load(box + 1, is_moving, 0.0)
    x, y, turn = _opened(x, y, joints + joint * 6, opened_by, is_moving)
    yaw = tl.load(box + 6, is_moving, 0.0) + turn + tl.load(thing + 3, is_object, 0.0)
    yaw = tl.where(is_body, heading, yaw)
    cos, sin = tl.cos(yaw), tl.sin(yaw)
    ahead = tl.load(part, is_body, 0.0)
    x = tl.where(is_body, px + cos * ahead, tl.where(is_object, tl.load(thing, is_object, 0.0), x))
    y = tl.where(is_body, py + sin * ahead, tl.where(is_object, tl.load(thing + 1, is_object, 0.0), y))
    z = tl.load(box + 2, is_moving, 0.0) + tl.load(thing + 2, is_object, 0.0) + tl.load(part + 2, is_body, 0.0)
    ex = tl.load(box + 3, is_moving, 0.0) + tl.load(size, is_object, 0.0) + tl.load(part + 3, is_body, 0.0)
    ey = tl.load(box + 4, is_moving, 0.0) + tl.load(size + 1, is_object, 0.0) + tl.load(part + 4, is_body, 0.0)
    ez = tl.load(box + 5, is_moving, 0.0) + tl.load(size + 2, is_object, 0.0) + tl.load(part + 5, is_body, 0.0)
    not_held = is_moving | (is_object & (number != hold))

    # The base.
    from_x, from_y = _turned(px - x, py - y, cos, sin)
    inside = _BASE_RADIUS - _length(_outside(from_x, ex), _outside(from_y, ey), 0.0)
    depth = tl.where(not_held & (z - ez < _BASE_HEIGHT), tl.maximum(inside, 0.0), 0.0)
    deepest = tl.max(depth, axis=0)

    # The arm. The hand touches the door or drawer that it pulls, and the upper arm the robot's body.
    not_pulled = joint + NUM_OBJECTS != hold
    shoulder_x, shoulder_y, shoulder_z = _point(shoulder, row)
    elbow_x, elbow_y, elbow_z = _point(elbow, row)
    wrist_x, wrist_y, wrist_z = _point(wrist, row)
    tip_x, tip_y, tip_z = _point(tip, row)
    for link in range(3):
        is_upper, is_hand = link == 0, link == 2
        ax = tl.where(is_upper, shoulder_x, tl.where(is_hand, wrist_x, elbow_x))
        ay = tl.where(is_upper, shoulder_y, tl.where(is_hand, wrist_y, elbow_y))
        az = tl.where(is_upper, shoulder_z, tl.where(is_hand, wrist_z, elbow_z))
        bx = tl.where(is_upper, elbow_x, tl.where(is_hand, tip_x + (wrist_x - tip_x) * _HAND_END, wrist_x))
        by = tl.where(is_upper, elbow_y, tl.where(is_hand, tip_y + (wrist_y - tip_y) * _HAND_END, wrist_y))
        bz = tl.where(is_upper, elbow_z, tl.where(is_hand, tip_z + (wrist_z - tip_z) * _HAND_END, wrist_z))
        radius = tl.where(is_upper, _UPPER_RADIUS, tl.where(is_hand, _HAND_RADIUS, _FOREARM_RADIUS))
        counted = (not_held & (not_pulled | is_object | (link < 2))) | (is_body & (link > 0))
        depth = _of_link(ax, ay, az, bx, by, bz, radius, x, y, z, ex, ey, ez, cos, sin, counted)
        deepest = tl.maximum(deepest, tl.max(depth, axis=0))
        in_static = _of_link_in_static(ax, ay, az, bx, by, bz, radius, static, NUM_STATIC, BLOCK)
        deepest = tl.maximum(deepest, tl.maximum(in_static, radius - tl.minimum(az, bz)))

    # What is in the hand: an object, or a door or drawer with all objects that it can hit or that ride in it.
    pulls = hold >= NUM_OBJECTS
    mine = hold - NUM_OBJECTS
    if pulls:
        strain = _strain(handles, joints, values, grasp + 4 * row, tip + 3 * row, mine, slack)
        deepest = tl.maximum(deepest, strain)
    begin, end = tl.where(pulls, 0, tl.maximum(hold, 0)), tl.where(pulls, NUM_OBJECTS, hold + 1)
    for index in range(begin, end):
        is_it = is_object & (number == index)
        bx, by, bz = _of_lane(x, is_it), _of_lane(y, is_it), _of_lane(z, is_it)
        bex, bey, bez = _of_lane(ex, is_it), _of_lane(ey, is_it), _of_lane(ez, is_it)
        bcos, bsin = _of_lane(cos, is_it), _of_lane(sin, is_it)
        # An object in the drawer can hit the cabinet, any other one the drawer or door.
        rides = (tl.load(object_joint + row * NUM_OBJECTS + index) == mine) & (mine > 0)
        counted = tl.where(pulls, is_moving & ((joint == mine) != rides), not_held | is_body)
        depth = _of_box(bx, by, bz, bex, bey, bez, bcos, bsin, x, y, z, ex, ey, ez, cos, sin, counted)
        deepest = tl.maximum(deepest, tl.max(depth, axis=0))
        if rides | (hold < NUM_OBJECTS):
            in_static = _of_box_in_static(bx, by, bz, bex, bey, bez, bcos, bsin, static, NUM_STATIC, BLOCK)
            deepest = tl.maximum(deepest, in_static)
        if hold < NUM_OBJECTS:
            deepest = tl.maximum(deepest, bez - bz)
    tl.store(result + row, deepest)
