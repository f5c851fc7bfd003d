"""Images of moving boxes and capsules: worked out by hand, and against an oracle that casts one ray at a time."""

import itertools
import math
from functools import partial

import pytest
import torch

from paceline.sims.navigation.rendering import render as navigation_render
from paceline.sims.navigation.rendering.render import FACE_SHADES, MAX_DEPTH, Camera
from paceline.sims.navigation.scenes.scene import CEILING
from paceline.sims.rearrangement.rendering import render
from paceline.sims.rearrangement.rendering.head import HEAD_FORWARD, HEAD_HEIGHT, HEAD_SHIFT, camera_poses, head_camera
from paceline.sims.rearrangement.rendering.render import ARM_COLOR, shade, trace
from tests.sims.rearrangement.moving_things import FAR_AWAY, random_views, static_boxes
from tests.sims.rearrangement.ray_oracle import depth_of_box, depth_of_capsule, ray_of_pixel

NO_BOXES, NO_CAPSULES = torch.zeros(1, 0, 7), torch.zeros(1, 0, 7)
EMPTY_ROOM = torch.tensor([2])  # 9 x 7 m
POSE = torch.tensor([[1.0, 3.5, 0.0]])


@pytest.fixture(scope="module")
def static():
    return static_boxes()[1]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def look(static, boxes=NO_BOXES, capsules=NO_CAPSULES, side=32, pose=POSE, surfaces=False):
    """The depth in metres [side, side] in the empty room, and the surfaces."""
    view = trace(static, head_camera(side), EMPTY_ROOM, pose, boxes, capsules, surfaces)
    return view.depth[0] * MAX_DEPTH, None if view.surfaces is None else view.surfaces[0]


def pixel_of(point, pose, side):
    """The row and the column that show a point."""
    x, y = point[0] - pose[0], point[1] - pose[1]
    ahead = x * math.cos(pose[2]) + y * math.sin(pose[2])
    u = (x * math.sin(pose[2]) - y * math.cos(pose[2])) / ahead
    v = (point[2] - HEAD_HEIGHT) / ahead
    return math.floor((HEAD_SHIFT + 1 - v) * side / 2), math.floor((u + 1) * side / 2), ahead


def test_the_head_is_before_the_base():
    poses = camera_poses(torch.tensor([[1.0, 2.0, math.pi / 2], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(poses, torch.tensor([[1.0, 2.0 + HEAD_FORWARD, math.pi / 2], [HEAD_FORWARD, 0.0, 0.0]]))


def test_the_lens_shift_moves_the_rows():
    camera, plain = head_camera(64), Camera(64)
    assert camera.up[0].item() == pytest.approx(0.35 - 1 / 64)
    assert camera.up[-1].item() == pytest.approx(-1.65 + 1 / 64)
    torch.testing.assert_close(camera.up, plain.up + HEAD_SHIFT)
    assert torch.equal(camera.right, plain.right)
    torch.testing.assert_close(camera.row_of(camera.up), torch.arange(64.0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("point", [(2.0, 3.2, 0.9), (3.0, 4.4, 0.4), (4.0, 3.5, 1.3), (1.6, 3.9, 0.8)])
def test_a_known_point_is_in_the_right_pixel(point, static):
    """Also seen by a turned camera: the thing is at the pixel where it belongs, and nowhere else."""
    side = 64
    for pose in ((1.0, 3.5, 0.0), (2.0, 3.0, 0.3)):
        row, column, ahead = pixel_of(point, pose, side)
        if ahead < 0.3 or not (0 <= row < side and 0 <= column < side):
            continue
        size = 1.5 * ahead / side  # half of the width of 1.5 pixels
        box = torch.tensor([[[*point, size, size, size, 0.4]]])
        ball = torch.tensor([[[*point, *point, size]]])
        empty = look(static, side=side, pose=torch.tensor([pose]))[0]
        for things in ({"boxes": box}, {"capsules": ball}):
            depth = look(static, side=side, pose=torch.tensor([pose]), **things)[0]
            rows, columns = (depth < empty).nonzero().unbind(1)
            assert float(depth[row, column]) == pytest.approx(ahead, abs=2 * size)
            assert (rows - row).abs().max() <= 3 and (columns - column).abs().max() <= 3


def test_without_moving_things_it_is_the_view_of_navigation():
    bank, static = static_boxes()
    scenes, poses, boxes, capsules = random_views(12)
    for camera in (Camera(24), head_camera(31)):
        want = navigation_render.trace(bank, camera, scenes, poses, surfaces=True)
        got = trace(static, camera, scenes, poses, boxes[:, :0], capsules[:, :0], surfaces=True)
        assert torch.equal(got.depth, want.depth)
        assert torch.equal(got.surfaces, want.surfaces)


def test_a_turned_box(static):
    """A cube of 1 m, 2 m ahead: its side is 1.5 m away. Turned by 45 degrees, its edge is nearer."""
    side = 33
    row, column = 13, side // 2  # level with the cube
    for yaw, want in ((0.0, 1.5), (math.pi / 2, 1.5), (math.pi / 4, 2.0 - math.sqrt(0.5)), (-0.75 * math.pi, 1.2929)):
        box = torch.tensor([[[3.0, 3.5, 0.5, 0.5, 0.5, 0.5, yaw]]])
        depth, seen = look(static, box, side=side, surfaces=True)
        assert float(depth[row, column]) == pytest.approx(want, abs=1e-4)
        assert int(seen[row, column]) // 3 == static.first_moving


def test_a_capsule_across_the_view(static):
    """A pole across the view, 1 m ahead and as high as the camera, reaches from -0.5 to 0.5 and has round ends."""
    side = 65
    pole = torch.tensor([[[2.0, 3.0, HEAD_HEIGHT, 2.0, 4.0, HEAD_HEIGHT, 0.1]]])
    depth, seen = look(static, capsules=pole, side=side, surfaces=True)
    camera = head_camera(side)
    row = int(camera.up.abs().argmin())
    inside = camera.right.abs() < 0.5
    v = float(camera.up[row])
    # In the plane of a column, the pole is a circle of radius 0.1 at depth 1.
    want = (1 - math.sqrt(1 - (1 + v * v) * (1 - 0.01))) / (1 + v * v)
    torch.testing.assert_close(depth[row, inside], torch.full((int(inside.sum()),), want), rtol=0, atol=1e-4)
    first = static.first_moving
    assert seen[row, inside].unique().tolist() == [3 * first]
    assert (seen[row, camera.right.abs() > 0.65] != 3 * first).all()


def test_the_camera_in_a_thing_sees_depth_zero(static):
    ball = torch.tensor([[[1.0, 3.5, HEAD_HEIGHT - 0.05, 1.1, 3.5, HEAD_HEIGHT - 0.05, 0.2]]])
    assert look(static, capsules=ball)[0].eq(0).all()
    box = torch.tensor([[[1.0, 3.5, HEAD_HEIGHT - 0.05, 0.2, 0.3, 0.2, 0.5]]])
    assert look(static, box)[0].eq(0).all()


def test_what_is_behind_the_camera_is_not_seen(static):
    empty = look(static)[0]
    ball = torch.tensor([[[0.5, 3.5, 1.2, 0.6, 3.6, 1.2, 0.2]]])
    assert torch.equal(look(static, capsules=ball)[0], empty)
    box = torch.tensor([[[0.5, 3.5, 1.2, 0.2, 0.3, 0.2, 0.5]]])
    assert torch.equal(look(static, box)[0], empty)
    padding = torch.tensor([[FAR_AWAY]])
    assert torch.equal(look(static, padding, padding)[0], empty)


def things(bank, scene, boxes, capsules):
    """The depth of each thing on a ray, as functions by the thing's number."""
    most, count = bank.limits.max_walls, bank.footprints.shape[1]
    found = {
        count: lambda origin, direction: -origin[2] / direction[2] if direction[2] < 0 else math.inf,
        count + 1: lambda origin, direction: (CEILING - origin[2]) / direction[2] if direction[2] > 0 else math.inf,
    }
    num_walls = int(bank.counts[scene, 0])
    for number, (x0, y0, x1, y1, z0, z1) in enumerate(bank.scene(scene).boxes.tolist()):
        box = ((x0 + x1) / 2, (y0 + y1) / 2, (z0 + z1) / 2, (x1 - x0) / 2, (y1 - y0) / 2, (z1 - z0) / 2, 0.0)
        found[number if number < num_walls else number - num_walls + most] = partial(depth_of_box, box=box)
    for number, box in enumerate(boxes.tolist()):
        found[count + 2 + number] = partial(depth_of_box, box=box)
    for number, capsule in enumerate(capsules.tolist()):
        found[count + 2 + len(boxes) + number] = partial(depth_of_capsule, capsule=capsule)
    return found


def wrong_pixels(bank, static, camera, scenes, poses, boxes, capsules):
    """How many pixels show another depth or another thing than the oracle's."""
    view = trace(static, camera, scenes, poses, boxes, capsules, surfaces=True)
    wrong, side = 0, camera.resolution
    for n, row, column in itertools.product(range(len(scenes)), range(side), range(side)):
        if row == column == 0:
            all_things = things(bank, int(scenes[n]), boxes[n], capsules[n])
        ray = ray_of_pixel(poses[n].tolist(), camera.height, camera.shift, column, row, side)
        depths = {number: depth_of(*ray) for number, depth_of in all_things.items()}
        nearest = min(depths, key=depths.get)
        close = abs(float(view.depth[n, row, column]) - min(depths[nearest] / MAX_DEPTH, 1.0)) < 1e-5
        wrong += not close or int(view.surfaces[n, row, column]) // 3 != nearest
    return wrong


@pytest.mark.parametrize("seed", range(3))
def test_every_pixel_equals_the_oracle(seed):
    bank, static = static_boxes()
    # At an edge, rounding decides whether a ray hits.
    assert wrong_pixels(bank, static, head_camera(9), *random_views(4, seed, num_boxes=12)) <= 1


def test_capsules_along_the_view_equal_the_oracle():
    """Rays almost along the axis, capsules without a length, and capsules that pass under the camera."""
    bank, static = static_boxes()
    scenes, poses, boxes, _ = random_views(1, 1, num_boxes=0)
    x, y, heading = poses[0].tolist()
    capsules = []
    for ahead, aside, above, end_ahead, end_aside, end_above in (
        (0.3, 0.0, -0.15, 1.3, 0.02, -0.65),
        (0.6, 0.3, -0.4, 0.6, 0.3, -0.4),
        (-0.2, -0.1, -0.3, 0.5, -0.2, -0.5),
        (1.0, -0.7, -0.4, 0.4, -0.2, -0.1),
    ):
        ends = ((ahead, aside, above), (end_ahead, end_aside, end_above))
        turned = [
            (
                x + a * math.cos(heading) - b * math.sin(heading),
                y + a * math.sin(heading) + b * math.cos(heading),
                HEAD_HEIGHT + c,
            )
            for a, b, c in ends
        ]
        capsules.append((*turned[0], *turned[1], 0.07))
    assert wrong_pixels(bank, static, head_camera(24), scenes, poses, boxes, torch.tensor([capsules])) <= 1


def test_capsules_close_to_the_camera_equal_the_oracle():
    """They pass beside the camera, above and below it, or around it."""
    bank, static = static_boxes()
    rng = torch.Generator().manual_seed(0)
    scenes, poses, boxes, _ = random_views(12, num_boxes=0)
    heads = torch.cat((poses[:, :2], torch.full((12, 1), HEAD_HEIGHT)), 1)[:, None].repeat(1, 2, 2)
    ends = heads + 0.5 * torch.rand(12, 2, 6, generator=rng) - 0.25
    capsules = torch.cat((ends, 0.02 + 0.1 * torch.rand(12, 2, 1, generator=rng)), 2)
    assert wrong_pixels(bank, static, head_camera(12), scenes, poses, boxes, capsules) <= 1


def test_everything_is_seen_somewhere():
    """The random scenes show all kinds of things."""
    _, static = static_boxes()
    scenes, poses, boxes, capsules = random_views(32)
    seen = trace(static, head_camera(32), scenes, poses, boxes, capsules, surfaces=True).surfaces
    numbers, first = seen.unique() // 3, static.first_moving
    assert {f"{kind}" for kind, low, high in _kinds(static, first) if ((numbers >= low) & (numbers < high)).any()} == {
        "wall",
        "part",
        "floor",
        "ceiling",
        "box",
        "capsule",
    }
    assert set((seen[(seen >= 3 * first) & (seen < 3 * (first + 24))] % 3).tolist()) == {0, 1, 2}
    assert set((seen[seen >= 3 * (first + 24)] % 3).tolist()) == {0}


def _kinds(static, first):
    return (
        ("wall", 0, static.max_walls),
        ("part", static.max_walls, static.max_boxes),
        ("floor", static.max_boxes, static.max_boxes + 1),
        ("ceiling", static.max_boxes + 1, first),
        ("box", first, first + 24),
        ("capsule", first + 24, first + 28),
    )


@pytest.mark.parametrize("surfaces", [False, True])
def test_cameras_do_not_disturb_each_other(surfaces, static, monkeypatch):
    scenes, poses, boxes, capsules = random_views(9)
    camera = head_camera(16)
    together = trace(static, camera, scenes, poses, boxes, capsules, surfaces)
    monkeypatch.setattr(render, "_PIXELS_AT_ONCE", 4 * 16**2)
    parts = trace(static, camera, scenes, poses, boxes, capsules, surfaces)
    for n in range(9):
        one = slice(n, n + 1)
        alone = trace(static, camera, scenes[one], poses[one], boxes[one], capsules[one], surfaces)
        assert torch.equal(alone.depth[0], together.depth[n])
        assert torch.equal(alone.depth[0], parts.depth[n])
        if surfaces:
            assert torch.equal(alone.surfaces[0], together.surfaces[n])
            assert torch.equal(alone.surfaces[0], parts.surfaces[n])


def test_surfaces_do_not_change_the_depth(static):
    scenes, poses, boxes, capsules = random_views(9)
    camera = head_camera(20)
    plain = trace(static, camera, scenes, poses, boxes, capsules)
    assert plain.surfaces is None
    assert torch.equal(plain.depth, trace(static, camera, scenes, poses, boxes, capsules, surfaces=True).depth)


def test_arguments_are_not_changed(static):
    arguments = random_views(3)
    before = [values.clone() for values in arguments]
    trace(static, head_camera(16), *arguments, surfaces=True)
    assert all(torch.equal(values, old) for values, old in zip(arguments, before, strict=True))


def test_colours_of_boxes_and_of_the_arm(static):
    side = 33
    box = torch.tensor([[[3.0, 4.2, 0.5, 0.5, 0.5, 0.5, 0.0], [*FAR_AWAY]]])
    arm = torch.tensor([[[2.0, 2.8, 0.5, 2.0, 2.8, 1.0, 0.1]]])
    camera = head_camera(side)
    view = trace(static, camera, EMPTY_ROOM, POSE, box, arm, surfaces=True)
    colors = torch.tensor([[[200, 40, 10], [1, 2, 3]]], dtype=torch.uint8)
    image = shade(static, camera, EMPTY_ROOM, POSE, view, colors, num_capsules=1)
    assert image.shape == (1, 3, side, side) and image.dtype == torch.uint8
    for number, color in ((0, (200, 40, 10)), (2, ARM_COLOR)):
        row, column = (view.surfaces[0] == 3 * (static.first_moving + number)).nonzero()[0].tolist()
        light = FACE_SHADES[0] * (1 - 0.45 * float(view.depth[0, row, column]))
        assert image[0, :, row, column].tolist() == pytest.approx([light * value for value in color], abs=1)
    bare = trace(static, camera, EMPTY_ROOM, POSE, box[:, :0], arm[:, :0], surfaces=True)
    empty = shade(static, camera, EMPTY_ROOM, POSE, bare, colors[:, :0], num_capsules=0)
    same = (view.surfaces == bare.surfaces)[:, None].expand_as(image)
    assert torch.equal(image[same], empty[same]) and not torch.equal(image, empty)
