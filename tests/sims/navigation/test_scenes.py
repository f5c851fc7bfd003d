"""Apartments: valid, connected, varied, and reproducible from a seed."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.sims.navigation import config
from paceline.sims.navigation.scenes.free_space import convex_corners, is_free
from paceline.sims.navigation.scenes.furniture import NAVIGATION_GAPS, Gaps, furnish, is_connected
from paceline.sims.navigation.scenes.generator import SPLITS, TIERS, generate_scene, is_wall, scene_seeds
from paceline.sims.navigation.scenes.geodesic import Graph, shortest_path
from paceline.sims.navigation.scenes.scene import AGENT_RADIUS, CEILING, Rect, Scene
from tests.sims.navigation.rooms import divided_room, room

SEEDS = {"small": range(0, 400, 4), "full": range(0, 60, 2)}


def flood(scene, cell=0.05):
    """bool: the free points of a fine grid, and those that can be reached from one of them."""
    x0, y0, x1, y1 = scene.interior
    xs, ys = np.arange(x0 + 0.13, x1 - 0.1, cell), np.arange(y0 + 0.13, y1 - 0.1, cell)
    points = np.stack(np.meshgrid(xs, ys, indexing="ij"), 2)
    free = is_free(scene, points.reshape(-1, 2), AGENT_RADIUS + 0.005).reshape(points.shape[:2])
    reached = np.zeros_like(free)
    reached[tuple(np.argwhere(free)[0])] = True
    while True:
        grown = reached.copy()
        grown[1:] |= reached[:-1]
        grown[:-1] |= reached[1:]
        grown[:, 1:] |= reached[:, :-1]
        grown[:, :-1] |= reached[:, 1:]
        grown &= free
        if (grown == reached).all():
            return points, free, reached
        reached = grown


@pytest.mark.parametrize("tier", TIERS)
def test_all_free_ground_is_connected(tier):
    """By a flood fill on a grid, and by the graph of shortest paths."""
    for seed in list(SEEDS[tier])[:: 1 if tier == "small" else 4]:
        scene = generate_scene(tier, seed)
        points, free, reached = flood(scene)
        assert (free == reached).all(), (tier, seed, points[free & ~reached][:3])
        for area in scene.rooms:
            inside = (points >= area[:2]).all(2) & (points <= area[2:]).all(2)
            assert (free & inside).sum() > 50, (tier, seed, area)
        assert np.isfinite(Graph.of(scene).between).all()


@pytest.mark.parametrize("tier", TIERS)
def test_scenes_are_valid(tier):
    for seed in SEEDS[tier]:
        scene = generate_scene(tier, seed)
        limits, walls = TIERS[tier], is_wall(scene.boxes)
        assert len(scene.boxes) <= TIERS[tier].max_boxes
        assert walls.sum() <= limits.max_walls
        assert (~walls).sum() <= limits.max_parts
        assert len(scene.obstacles) <= limits.max_obstacles
        assert (scene.boxes[:, 4] >= 0).all()
        assert (scene.boxes[:, 5] <= CEILING).all()
        width, depth = scene.interior.width, scene.interior.depth
        assert (width <= 7.01 and depth <= 7.01) if tier == "small" else (width <= 20 and depth <= 15.01)


def test_gaps_are_either_closed_or_passable():
    """Between pieces of furniture of one room, and between them and its walls."""
    for seed in SEEDS["full"]:
        scene = generate_scene("full", seed)
        furniture = [Rect(*rect) for rect in scene.obstacles]  # walls are not inside of rooms
        for area in scene.rooms:
            inside = [rect for rect in furniture if area.grown(1e-6).contains(rect)]
            for rect in inside:
                gaps = [rect.x0 - area.x0, rect.y0 - area.y0, area.x1 - rect.x1, area.y1 - rect.y1]
                gaps += [rect.gap(other) for other in inside if other is not rect]
                assert not [
                    gap for gap in gaps if NAVIGATION_GAPS.merged + 1e-6 < gap < NAVIGATION_GAPS.passable - 1e-6
                ]


def test_a_wider_agent_does_not_pass_a_narrow_gap():
    scene = room(boxes=[(2.9, 0.0, 3.1, 1.0, 0.0, CEILING), (2.9, 1.4, 3.1, 4.0, 0.0, CEILING)])
    assert len(shortest_path(scene, (1.0, 2.0), (5.0, 2.0))) > 2
    wide = replace(scene, radius=0.25)
    with pytest.raises(UsageError, match="cannot be reached"):
        shortest_path(wide, (1.0, 2.0), (5.0, 2.0))
    point = np.array([(2.7, 2.0)])
    assert is_free(scene, point).all() and not is_free(wide, point).any()
    corners = convex_corners(replace(room(boxes=[(2.0, 1.0, 3.0, 2.0, 0.0, 1.0)]), radius=0.25))
    assert np.abs(corners - (2.5, 1.5)).max() == pytest.approx(0.75, abs=1e-3)
    with pytest.raises(UsageError, match=r"wider than 0.5 m both ways"):
        replace(room(0.45, 4.0), radius=0.25)


def test_furniture_leaves_gaps_for_a_wider_agent():
    gaps, area = Gaps(radius=0.25, merged=0.4, passable=0.7), Rect(0.0, 0.0, 6.0, 5.0)
    there = Rect(2.0, 2.0, 4.0, 3.0)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        pieces = furnish(rng, area, [], ["chest", "block"], 12, 99, gaps=gaps, others=[there])
        found = [there, *(solids[0][0] for _, solids in pieces)]
        assert len(found) > 3
        for rect in found[1:]:
            distances = [rect.gap(other) for other in found if other is not rect]
            assert not [gap for gap in distances if gap < 0 or 0.4 + 1e-6 < gap < 0.7 - 1e-6]
        assert is_connected(area.grown(-0.25), [rect.grown(0.25) for rect in found])


def test_scenes_differ_in_size_and_in_furniture():
    scenes = [generate_scene("full", seed) for seed in range(60)]
    rooms = {len(scene.rooms) for scene in scenes}
    assert min(rooms) == 1
    assert max(rooms) >= 11
    areas = [scene.interior.width * scene.interior.depth for scene in scenes]
    assert min(areas) < 30
    assert max(areas) > 180
    tops = np.concatenate([scene.boxes[~is_wall(scene.boxes)][:, 5] for scene in scenes])
    for low, high in ((0.3, 0.51), (0.69, 0.8), (1.5, 2.3)):
        assert ((tops >= low) & (tops <= high)).mean() > 0.05


def test_doors_have_lintels_above_the_agent():
    for seed in range(20):
        scene = generate_scene("full", seed)
        hanging = scene.boxes[scene.boxes[:, 4] > 1.0]
        if len(scene.rooms) > 1:
            assert len(hanging)
        assert ((hanging[:, 4] >= 2.0) & (hanging[:, 4] <= 2.1) & (hanging[:, 5] == CEILING)).all()
        # They do not block.
        for rect in hanging[:, :4]:
            assert not (scene.obstacles == rect).all(1).any()


@pytest.mark.parametrize("tier", TIERS)
def test_the_same_seed_gives_the_same_scene(tier):
    one, same, other = generate_scene(tier, 5), generate_scene(tier, 5), generate_scene(tier, 6)
    assert np.array_equal(one.boxes, same.boxes)
    assert np.array_equal(one.colors, same.colors)
    assert one.floor_color == same.floor_color
    assert not np.array_equal(one.boxes, other.boxes)


def test_splits_are_disjoint():
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not set(SPLITS[one]) & set(SPLITS[other])
        assert not set(scene_seeds(one, 500, 3)) & set(scene_seeds(other, 500, 3))
    assert not set(scene_seeds("train", 64, 0)) & set(scene_seeds("train", 64, 1))
    assert set(scene_seeds("val", 64, 5)) <= set(SPLITS["val"])
    assert set(scene_seeds("test", 1000, 5000)) <= set(SPLITS["test"])


def test_options_name_what_exists():
    assert tuple(TIERS) == config.TIERS
    assert tuple(SPLITS) == config.SPLITS


def test_bad_names_say_what_is_allowed():
    with pytest.raises(UsageError, match="tier 'tiny' does not exist; allowed: small, full"):
        generate_scene("tiny", 0)
    with pytest.raises(UsageError, match="split 'dev' does not exist; allowed: train, val, test"):
        scene_seeds("dev", 4)
    with pytest.raises(UsageError, match="0 scenes.*allowed: 1 to 100000"):
        scene_seeds("val", 0)


def test_scenes_by_hand_are_checked():
    with pytest.raises(UsageError, match="no extent"):
        room(boxes=[(1, 1, 1, 2, 0, 1)])
    with pytest.raises(UsageError, match=r"shape \(2, 5\)"):
        Scene(boxes=np.zeros((2, 5)), colors=np.zeros((2, 3)), interior=Rect(0, 0, 1, 1))
    with pytest.raises(UsageError, match="colours"):
        Scene(boxes=divided_room().boxes, colors=np.zeros((2, 3)), interior=Rect(0, 0, 1, 1))
    with pytest.raises(UsageError, match="narrower than the agent"):
        Scene(boxes=np.zeros((0, 6)), colors=np.zeros((0, 3)), interior=Rect(0, 0, 0.1, 5))


def test_obstacles_are_the_outermost_footprints_that_block():
    scene = room(
        boxes=[(1, 1, 2, 2, 0.7, 0.75), (1.4, 1.4, 1.6, 1.6, 0, 0.7), (3, 0, 3.2, 4, 2.0, 2.5), (4, 1, 5, 2, 0, 0.3)]
    )
    assert scene.obstacles.tolist() == [[1, 1, 2, 2], [4, 1, 5, 2]]


def test_is_connected():
    floor = Rect(0, 0, 4, 4)
    assert is_connected(floor, [Rect(1, 1, 2, 2)])
    assert not is_connected(floor, [Rect(1, 0, 2, 4)])
    assert is_connected(floor, [Rect(1, 0, 2, 3.9)])
    assert not is_connected(floor, [Rect(1, 0, 2, 3), Rect(1.5, 2, 1.7, 5)])
    assert not is_connected(floor, [floor])
    ring = [Rect(1, 1, 3, 1.2), Rect(1, 2.8, 3, 3), Rect(1, 1, 1.2, 3), Rect(2.8, 1, 3, 3)]
    assert not is_connected(floor, ring)
    assert is_connected(floor, ring[:3])
