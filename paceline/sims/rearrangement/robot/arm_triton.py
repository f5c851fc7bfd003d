"""`arm.placed_arm` as one Triton kernel, with robots along the lanes.

Legend: N robots.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.sims.rearrangement.robot.arm import FOREARM, HAND, SHOULDER, TO_LIFT, UPPER_ARM, Arm

_BLOCK = 64
_LIFT_AHEAD, _LIFT_UP = tl.constexpr(TO_LIFT[0]), tl.constexpr(TO_LIFT[1])
_SHOULDER_X, _SHOULDER_Y, _SHOULDER_Z = (tl.constexpr(part) for part in SHOULDER)
_UPPER_ARM, _FOREARM, _HAND = tl.constexpr(UPPER_ARM), tl.constexpr(FOREARM), tl.constexpr(HAND)


def placed_arm(angles: Tensor, poses: Tensor) -> Arm:
    """See `arm.placed_arm`."""
    num = len(angles)
    points = torch.empty(4, num, 3, device=angles.device)
    _place[(triton.cdiv(num, _BLOCK),)](angles.contiguous(), poses.contiguous(), points, num, BLOCK=_BLOCK, num_warps=2)
    return Arm(*points.unbind())


@triton.jit
def _turned(ax, ay, az, bx, by, bz, angle):
    """Two axes of a frame that is turned about its third axis."""
    cos, sin = tl.cos(angle), tl.sin(angle)
    ax, bx = cos * ax + sin * bx, cos * bx - sin * ax
    ay, by = cos * ay + sin * by, cos * by - sin * ay
    az, bz = cos * az + sin * bz, cos * bz - sin * az
    return ax, ay, az, bx, by, bz


@triton.jit
def _store(points, x, y, z, pose_x, pose_y, cos, sin, there):
    tl.store(points, pose_x + cos * x - sin * y, there)
    tl.store(points + 1, pose_y + sin * x + cos * y, there)
    tl.store(points + 2, z, there)


@triton.jit(do_not_specialize=["num"])
def _place(angles, poses, points, num, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = row < num
    pose, angle, point = poses + 3 * row, angles + 7 * row, points + 3 * row
    pose_x, pose_y = tl.load(pose, there, 0.0), tl.load(pose + 1, there, 0.0)
    heading, pan = tl.load(pose + 2, there, 0.0), tl.load(angle, there, 0.0)
    cos, sin = tl.cos(heading), tl.sin(heading)
    # The axes of the arm, as in `forward_kinematics`. A turn about y goes from z to x.
    zero = tl.zeros_like(pan)
    one = zero + 1.0
    xx, xy, xz = tl.cos(pan), tl.sin(pan), zero
    yx, yy, yz = -xy, xx, zero
    zx, zy, zz = zero, zero, one
    x, y, z = xx * _LIFT_AHEAD + _SHOULDER_X, xy * _LIFT_AHEAD + _SHOULDER_Y, zero + (_LIFT_UP + _SHOULDER_Z)
    _store(point, x, y, z, pose_x, pose_y, cos, sin, there)
    zx, zy, zz, xx, xy, xz = _turned(zx, zy, zz, xx, xy, xz, tl.load(angle + 1, there, 0.0))
    x, y, z = x + xx * _UPPER_ARM, y + xy * _UPPER_ARM, z + xz * _UPPER_ARM
    _store(point + 3 * num, x, y, z, pose_x, pose_y, cos, sin, there)
    yx, yy, yz, zx, zy, zz = _turned(yx, yy, yz, zx, zy, zz, tl.load(angle + 2, there, 0.0))
    zx, zy, zz, xx, xy, xz = _turned(zx, zy, zz, xx, xy, xz, tl.load(angle + 3, there, 0.0))
    x, y, z = x + xx * _FOREARM, y + xy * _FOREARM, z + xz * _FOREARM
    _store(point + 6 * num, x, y, z, pose_x, pose_y, cos, sin, there)
    yx, yy, yz, zx, zy, zz = _turned(yx, yy, yz, zx, zy, zz, tl.load(angle + 4, there, 0.0))
    zx, zy, zz, xx, xy, xz = _turned(zx, zy, zz, xx, xy, xz, tl.load(angle + 5, there, 0.0))
    x, y, z = x + xx * _HAND, y + xy * _HAND, z + xz * _HAND
    _store(point + 9 * num, x, y, z, pose_x, pose_y, cos, sin, there)
