"""Camera images in rooms worked out by hand, and against a reference that casts one ray at a time."""

import math

import numpy as np
import pytest
import torch

from paceline.sims.navigation.rendering.render import (
    CAMERA_HEIGHT,
    FACE_SHADES,
    MAX_DEPTH,
    Camera,
    encode_depth,
    shade,
    trace,
)
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.scene import CEILING
from tests.sims.navigation import reference
from tests.sims.navigation.rooms import room


def look(scene, pose, side=16, surfaces=False, tier="small"):
    """The depth in metres [side, side] from one pose, and the whole view."""
    bank, camera = SceneBank.of_scenes([scene], tier), Camera(side)
    scenes, poses = torch.zeros(1, dtype=torch.long), torch.tensor([pose], dtype=torch.float32)
    view = trace(bank, camera, scenes, poses, surfaces)
    return view.depth[0] * MAX_DEPTH, bank, camera, scenes, poses, view


def test_an_empty_room():
    """4 x 4 m from its middle: the wall ahead is 2 m away in every column, floor and ceiling 1.25 m below and above."""
    side = 16
    depth = look(room(4, 4), (2, 2, 0.0), side)[0]
    up = torch.tensor([abs(2 * (row + 0.5) / side - 1) for row in range(side)])
    want = torch.minimum(torch.tensor(2.0), CAMERA_HEIGHT / up)
    torch.testing.assert_close(depth, want[:, None].expand(side, side), rtol=0, atol=1e-5)


def test_walls_at_the_sides():
    """In a corridor along x, 1 m wide, a column with direction u to the side meets a wall at depth 0.5 / u."""
    side = 16
    depth = look(room(9, 1), (0.5, 0.5, 0.0), side)[0]
    for column in range(side):
        across = abs(2 * (column + 0.5) / side - 1)
        assert float(depth[side // 2, column]) == pytest.approx(min(8.5, 0.5 / across, CAMERA_HEIGHT * side), abs=1e-4)


def test_a_low_box():
    """A box 0.5 m high, 1 m ahead and 1 m deep: its top is visible, then its front, then the floor before it."""
    side = 64
    scene = room(6, 4, boxes=[(3, 1, 4, 3, 0, 0.5)])
    depth = look(scene, (2, 2, 0.0), side)[0][:, side // 2]
    for row in range(side):
        v = 1 - 2 * (row + 0.5) / side
        height_at_front = CAMERA_HEIGHT + v * 1.0
        if v > 0:
            want = min(4.0, (CEILING - CAMERA_HEIGHT) / v)
        elif height_at_front <= 0:
            want = CAMERA_HEIGHT / -v
        elif height_at_front <= 0.5:
            want = 1.0
        else:
            on_top = (CAMERA_HEIGHT - 0.5) / -v
            want = on_top if on_top <= 2.0 else min(4.0, CAMERA_HEIGHT / -v)
        assert float(depth[row]) == pytest.approx(want, abs=1e-4), row


def test_the_view_passes_under_a_lintel():
    side = 64
    scene = room(6, 4, boxes=[(1.9, 0, 2.1, 4, 2.05, CEILING)])
    before = look(scene, (1, 2, 0.0), side)[0][:, side // 2]
    beneath = look(scene, (2, 2, 0.0), side)[0][:, side // 2]
    for row in range(side // 2):
        v = 1 - 2 * (row + 0.5) / side
        plane = min(5.0, (CEILING - CAMERA_HEIGHT) / v)
        if CAMERA_HEIGHT + 0.9 * v >= 2.05:
            plane = min(plane, 0.9)
        elif CAMERA_HEIGHT + 1.1 * v >= 2.05:
            plane = (2.05 - CAMERA_HEIGHT) / v
        assert float(before[row]) == pytest.approx(plane, abs=1e-4)
        above = (2.05 - CAMERA_HEIGHT) / v
        want = above if above <= 0.1 else min(4.0, (CEILING - CAMERA_HEIGHT) / v)
        assert float(beneath[row]) == pytest.approx(want, abs=1e-4)
    # What hangs behind the camera is not seen.
    past = look(scene, (2.5, 2, 0.0), side)[0][:, side // 2]
    assert float(past[0]) == pytest.approx(CAMERA_HEIGHT / (1 - 1 / side), abs=1e-4)


def test_turning_turns_the_view():
    """y grows to the left: for a camera that looks along y, the box at high x is on the right."""
    scene = room(6, 6, boxes=[(4.5, 4.5, 5.0, 5.0, 0, 2.0)])
    ahead = look(scene, (3, 3, math.pi / 2), 32)[0][16]
    assert float(ahead[:16].min()) == pytest.approx(3.0, abs=1e-3)
    assert float(ahead[16:].min()) == pytest.approx(1.5 / (31 / 32), abs=1e-3)  # its near side


def test_depth_ends_at_ten_metres():
    depth, *_, view = look(room(15, 2), (0.5, 1, 0.0), 31, tier="full")
    assert float(depth[15, 15]) == pytest.approx(MAX_DEPTH)
    assert float(view.depth.max()) == 1.0


@pytest.mark.parametrize("side", [9, 12])
def test_every_pixel_equals_the_ray_caster(side, small_bank, full_bank):
    rng = np.random.default_rng(0)
    camera = Camera(side)
    for bank in (small_bank, full_bank):
        scenes = torch.arange(6) % bank.num_scenes
        poses = bank.episodes[scenes, torch.from_numpy(rng.integers(0, 256, 6)), :3]
        view = trace(bank, camera, scenes, poses, surfaces=True)
        numbers = view.surfaces // 3
        for n in range(6):
            scene = bank.scene(int(scenes[n]))
            num_walls = int(bank.counts[scenes[n], 0])
            for row in range(side):
                for column in range(side):
                    if row == side - 1 - row:
                        continue  # exactly level: no number of metres to floor or ceiling
                    depth, number = reference.depth_of_ray(
                        scene.boxes, poses[n].tolist(), column, row, side, CAMERA_HEIGHT, CEILING
                    )
                    assert float(view.depth[n, row, column]) == pytest.approx(min(depth / MAX_DEPTH, 1), abs=2e-4)
                    got = int(numbers[n, row, column])
                    padded = number if number < num_walls else number - num_walls + bank.limits.max_walls
                    ends = bank.limits.max_walls + bank.limits.max_parts
                    want = {-1: ends, -2: ends + 1}.get(number, padded)
                    # At an edge, rounding decides which of two surfaces at the same depth is meant.
                    assert got == want or _depths_agree(scene, poses[n], column, row, side, depth), (n, row, column)


def _depths_agree(scene, pose, column, row, side, depth):
    """Whether a second surface is as near as the first."""
    found = [
        reference.depth_of_ray(scene.boxes[i : i + 1], pose.tolist(), column, row, side, CAMERA_HEIGHT, CEILING)[0]
        for i in range(len(scene.boxes))
    ]
    return sum(abs(other - depth) < 1e-3 for other in found) > 1


def test_colours_by_box_face_and_distance():
    side = 16
    scene = room(6, 4, boxes=[(3, 1, 4, 3, 0, 2.0)])
    _, bank, camera, scenes, poses, view = look(scene, (1, 2, 0.0), side, surfaces=True)
    image = shade(bank, camera, scenes, poses, view)
    assert image.shape == (1, 3, side, side)
    assert image.dtype == torch.uint8
    color = np.array([40, 60, 200])  # of the fifth box
    want = color * FACE_SHADES[0] * (1 - 0.45 * 0.2)
    assert image[0, :, side // 2, side // 2].tolist() == pytest.approx(want, abs=1)
    up = 1 - 1 / side
    ceiling = np.array(scene.ceiling_color) * FACE_SHADES[2] * (1 - 0.45 * 0.125 / up)
    assert image[0, :, 0, side // 2].tolist() == pytest.approx(ceiling, abs=1)
    floor = image[0, :, side - 1].float().mean(1).tolist()
    assert 0.8 < floor[0] / scene.floor_color[0] < 1.0
    _, bank, camera, scenes, poses, view = look(scene, (3.5, 0.5, math.pi / 2), side, surfaces=True)
    sideways = shade(bank, camera, scenes, poses, view)[0, :, side // 2, side // 2].tolist()
    assert sideways == pytest.approx(color * FACE_SHADES[1] * (1 - 0.45 * 0.05), abs=1)


def test_depth_dtypes():
    depth = torch.tensor([[[0.0, 0.5, 1.0]]])
    assert encode_depth(depth, torch.uint8).tolist() == [[[[0, 128, 255]]]]
    assert encode_depth(depth, torch.float16).dtype == torch.float16
    assert torch.equal(encode_depth(depth, torch.float32), depth[:, None])


def test_cameras_do_not_disturb_each_other(small_bank):
    scenes, camera = torch.arange(12), Camera(16)
    poses = small_bank.episodes[:, 7, :3]
    together = trace(small_bank, camera, scenes, poses).depth
    for n in range(12):
        assert torch.equal(trace(small_bank, camera, scenes[n : n + 1], poses[n : n + 1]).depth[0], together[n])


def test_the_range_of_a_camera_only_cuts_depth():
    scene, pose = room(14, 4), torch.tensor([[1.0, 2.0, 0.0]])
    bank, scenes = SceneBank.of_scenes([scene], "full"), torch.zeros(1, dtype=torch.long)
    near, usual, far = (
        trace(bank, Camera(16, max_depth=metres), scenes, pose).depth[0] * metres for metres in (3.0, MAX_DEPTH, 50.0)
    )
    assert float(far.max()) == pytest.approx(13.0, abs=1e-4)
    torch.testing.assert_close(usual, far.clamp(max=MAX_DEPTH), rtol=0, atol=1e-4)
    torch.testing.assert_close(near, far.clamp(max=3.0), rtol=0, atol=1e-4)
