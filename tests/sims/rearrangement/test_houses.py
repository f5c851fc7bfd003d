"""Houses: valid, connected, with doors and drawers that open freely, and reproducible from a seed."""

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.cells import Cells
from paceline.sims.navigation.scenes.free_space import convex_corners, is_free
from paceline.sims.navigation.scenes.generator import SPLITS, is_wall
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.scene import Rect
from paceline.sims.rearrangement.objects import OBJECT_KINDS
from paceline.sims.rearrangement.scenes.generator import HOUSE_TIERS, generate_house
from paceline.sims.rearrangement.scenes.house import FRIDGE, LOWER_DRAWER, NUM_JOINTS, NUM_MOVING, UPPER_DRAWER
from paceline.sims.rearrangement.scenes.standing import draw_joint_starts, stands_of
from tests.sims.rearrangement import boxes

SOME = {"small": slice(0, 40, 4), "full": slice(0, 40, 8)}
TIERS = pytest.mark.parametrize("tier", HOUSE_TIERS)


def footprints(scene, kinds=None):
    """The rectangles of pieces of furniture."""
    found = []
    for piece in scene.furniture:
        if kinds is None or piece.kind in kinds:
            solids = scene.boxes[list(piece.boxes)]
            found.append(Rect(*solids[:, :2].min(0), *solids[:, 2:4].max(0)))
    return found


def at_values(house, joint, count):
    """The boxes of one joint at several values from closed to open [count * boxes, 7]."""
    values = np.zeros((count, NUM_JOINTS))
    values[:, joint] = np.linspace(0.0, house.joints[joint, 5], count)
    return house.moved(values)[:, house.moving_joint == joint].reshape(-1, 7)


@TIERS
def test_a_seed_gives_the_same_house(tier):
    one, other = generate_house(tier, 7), generate_house(tier, 7)
    assert np.array_equal(one.scene.boxes, other.scene.boxes) and np.array_equal(one.scene.colors, other.scene.colors)
    for name in ("joints", "moving", "moving_joint", "moving_colors", "handles"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.surfaces == other.surfaces
    different = generate_house(tier, SPLITS["val"][7])
    assert one.scene.interior != different.scene.interior


@TIERS
def test_no_house_exceeds_the_limits(tier, houses):
    limits = HOUSE_TIERS[tier]
    for house in houses[tier]:
        walls = is_wall(house.scene.boxes)
        assert walls.sum() <= limits.max_walls and (~walls).sum() <= limits.max_parts
        assert len(house.scene.boxes) <= limits.max_boxes
        assert len(house.scene.obstacles) <= limits.max_obstacles
        assert len(convex_corners(house.scene)) <= limits.max_nodes
        assert len(house.surfaces) <= limits.max_surfaces
        assert house.moving.shape == (NUM_MOVING, 7) and house.joints.shape == (NUM_JOINTS, 6)


@TIERS
def test_no_two_boxes_overlap(tier, houses):
    for house in houses[tier][SOME[tier]]:
        solids = boxes.of_scene(house.scene)
        assert not np.triu(boxes.overlap(solids, solids), 1).any(), house.scene.seed
        assert not boxes.overlap(house.moving, solids).any(), house.scene.seed


@TIERS
def test_doors_and_drawers_open_freely(tier, houses):
    """From closed to open they hit nothing that stands still, and none of them hits another at any of its values."""
    for house in houses[tier][SOME[tier]]:
        solids = boxes.of_scene(house.scene)
        door, upper, lower = (at_values(house, joint, count) for joint, count in ((0, 24), (1, 8), (2, 8)))
        for moving in (door, upper, lower):
            assert not boxes.overlap(moving, solids).any(), house.scene.seed
        for one, other in ((door, upper), (door, lower), (upper, lower)):
            assert not boxes.overlap(one, other).any(), house.scene.seed


def test_the_reference_sees_overlaps_of_turned_boxes():
    one = np.array([[0.0, 0.0, 0.5, 1.0, 0.1, 0.5, np.pi / 4]])
    others = np.array([[0.6, 0.6, 0.5, 0.1, 0.1, 0.1, 0.0], [0.6, -0.6, 0.5, 0.1, 0.1, 0.1, 0.0]])
    assert boxes.overlap(one, others).tolist() == [[True, False]]
    assert boxes.overlap(others, one).tolist() == [[True], [False]]
    assert boxes.distances(np.array([(0.0, 1.0)]), one)[0, 0] == pytest.approx(2**-0.5 - 0.1)


@TIERS
def test_floor_before_the_fridge_and_the_drawers_is_free(tier, houses):
    """A base of 0.5 m finds place beyond the swept area, straight ahead."""
    for house in houses[tier]:
        for joint, beyond in ((FRIDGE, 0.75), (UPPER_DRAWER, 0.5), (LOWER_DRAWER, 0.5)):
            place = house.handles[joint, :2] + house.outward(joint) * (beyond + 0.35)
            middle = house.moving[house.moving_joint == joint][0, :2]
            across = house.outward(joint)[::-1] ** 2
            place = np.where(across > 0, middle, place)
            assert is_free(house.scene, place[None], 0.3).all(), (house.scene.seed, joint)


@TIERS
def test_the_free_floor_is_connected(tier, houses):
    for house in houses[tier][SOME[tier]]:
        radius = house.scene.radius
        grown = [Rect(*rect).grown(radius) for rect in house.scene.obstacles]
        assert len(Cells.of(house.scene.interior.grown(-radius), grown).parts()) == 1, house.scene.seed
        assert np.isfinite(Graph.of(house.scene).between).all()


@TIERS
def test_gaps_are_closed_or_wide_enough_for_the_robot(tier, houses):
    run = ("fridge", "cabinet", "counter")
    for house in houses[tier]:
        pieces = [(piece.kind, *footprints(house.scene, [piece.kind])) for piece in house.scene.furniture]
        assert {"fridge", "cabinet", "counter", "table"} <= {piece[0] for piece in pieces}
        furniture = footprints(house.scene)
        for area in house.scene.rooms:
            inside = [
                (rect, piece.kind)
                for rect, piece in zip(furniture, house.scene.furniture, strict=True)
                if area.grown(1e-6).contains(rect)
            ]
            for rect, kind in inside:
                if kind in run:
                    continue
                gaps = [rect.x0 - area.x0, rect.y0 - area.y0, area.x1 - rect.x1, area.y1 - rect.y1]
                gaps += [rect.gap(other) for other, _ in inside if other is not rect]
                assert not [gap for gap in gaps if 0.4 + 1e-6 < gap < 0.7 - 1e-6], house.scene.seed


@TIERS
def test_surfaces_lie_on_furniture(tier, houses):
    for house in houses[tier]:
        for surface in house.surfaces:
            area, joint = surface.area, surface.joint
            solids = house.moving[house.moving_joint == joint] if joint > FRIDGE else boxes.of_scene(house.scene)
            low, high = solids[:, :2] - solids[:, 3:5] - 1e-6, solids[:, :2] + solids[:, 3:5] + 1e-6
            below = (low <= area[:2]).all(1) & (high >= area[2:]).all(1)
            below &= np.abs(solids[:, 2] + solids[:, 5] - surface.z) < 1e-6
            assert below.any(), (house.scene.seed, surface)


@TIERS
def test_the_base_reaches_all_handles_and_important_surfaces(tier, houses):
    for house in houses[tier][SOME[tier]]:
        starts = draw_joint_starts(np.random.default_rng(1), house, 4)
        assert starts is not None
        for kind in ("fridge", "drawer", "table"):
            assert any(len(stands_of(house, surface)) for surface in house.surfaces if surface.kind == kind)
        in_the_open = [surface for surface in house.surfaces if surface.joint == -1]
        assert sum(len(stands_of(house, surface)) >= 10 for surface in in_the_open) >= 4


def test_shapes_of_appliances(houses):
    for house in (*houses["small"], *houses["full"]):
        assert house.joints[:, 0].tolist() == [0.0, 1.0, 1.0]
        assert house.joints[:, 5].tolist() == [2.2, 0.45, 0.45]
        assert abs(house.joints[FRIDGE, 3]) == 1.0 and house.joints[FRIDGE, 4] == 0.0
        assert np.linalg.norm(house.joints[1:, 3:5], axis=1).tolist() == [1.0, 1.0]
        assert 0.8 <= house.handles[FRIDGE, 2] <= 1.1
        door = house.moving[house.moving_joint == FRIDGE]
        assert min(door[0, 3:5]) == pytest.approx(0.025)
        # The door turns away from the fridge: its handle moves along `outward`.
        before, after = house.moved(np.zeros(3))[1, :2], house.moved(np.array([0.3, 0.0, 0.0]))[1, :2]
        assert (after - before) @ house.outward(FRIDGE) > 0.1


def test_houses_vary(houses):
    assert {len(house.scene.rooms) for house in houses["full"]} >= {2, 3, 4, 5, 6}
    assert {tuple(house.outward(FRIDGE)) for house in houses["small"]} == {(1, 0), (-1, 0), (0, 1), (0, -1)}
    assert {house.joints[FRIDGE, 3] for house in houses["small"]} == {1.0, -1.0}
    assert all(len(house.scene.rooms) == 1 for house in houses["small"])
    kinds = {surface.kind for house in houses["full"] for surface in house.surfaces}
    assert kinds == {"counter", "table", "fridge", "drawer", "desk", "chest", "block", "sofa", "bed"}


def test_kinds_of_objects():
    assert len(OBJECT_KINDS) == len({kind.name for kind in OBJECT_KINDS}) == 12
    assert all(0.025 <= half <= 0.14 for kind in OBJECT_KINDS for half in kind.half_extents)


def test_an_unknown_tier_is_refused():
    with pytest.raises(UsageError, match="tier 'huge' does not exist; allowed: small, full"):
        generate_house("huge", 0)
