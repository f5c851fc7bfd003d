"""Shortest paths: exact, finite at every reachable pose, and never changing by more than a step."""

import numpy as np
import pytest
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.layout import PATH
from paceline.sims.navigation.scenes.free_space import NODE, convex_corners, is_free
from paceline.sims.navigation.scenes.generator import generate_scene
from paceline.sims.navigation.scenes.geodesic import Graph, query, shortest_path
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.navigation.tasks.pointnav import DISTANCE
from tests.sims.navigation import reference
from tests.sims.navigation.rooms import divided_room, room


def distance(scene, start, goal):
    return Graph.of(scene).between_points(np.array([start], float), np.array([goal], float))[0, 0]


def free_pairs(scene, count, seed=0, cell=None):
    """Starts and goals; with `cell`, whole numbers of cells apart."""
    rng = np.random.default_rng(seed)
    low, high = np.array(scene.interior[:2]) + 0.15, np.array(scene.interior[2:]) - 0.15
    pairs = []
    while len(pairs) < count:
        start, goal = rng.uniform(low, high, (2, 2))
        if cell is not None:
            goal = start + np.round((goal - start) / cell) * cell
        if is_free(scene, np.stack([start, goal]), 0.13).all():
            pairs.append((start, goal))
    return pairs


def test_around_a_wall_by_hand():
    # From (1, 1) up to the corners (2.8, 3.1) and (3.2, 3.1) of the grown wall, and down again.
    corner = np.hypot(1.8, 2.1)
    assert distance(divided_room(), (1, 1), (5, 1)) == pytest.approx(2 * corner + 0.4, abs=2e-3)
    assert distance(divided_room(), (1, 1), (2, 1)) == pytest.approx(1.0)
    assert distance(divided_room(), (1, 3.5), (5, 3.5)) == pytest.approx(4.0)


def test_the_path_has_its_bends_at_the_corners():
    path = shortest_path(divided_room(), (1, 1), (5, 1))
    assert path.tolist() == pytest.approx(np.array([(1, 1), (2.8, 3.1), (3.2, 3.1), (5, 1)]), abs=1e-3)
    straight = shortest_path(divided_room(), (1, 1), (2, 1))
    assert straight.tolist() == [[1, 1], [2, 1]]


@pytest.mark.parametrize(("tier", "seeds"), [("small", range(30)), ("full", [3, 12])])
def test_distances_equal_those_over_all_corners(tier, seeds):
    for seed in seeds:
        scene = generate_scene(tier, seed)
        for start, goal in free_pairs(scene, 3 if tier == "small" else 2, seed):
            want = reference.shortest_by_corners(start, goal, scene.obstacles, scene.interior)
            assert distance(scene, start, goal) == pytest.approx(want, abs=0.005), (seed, start, goal)


@pytest.mark.parametrize("seed", [1, 5, 8])
def test_distances_are_within_5_cm_of_a_fine_grid(seed):
    scene = generate_scene("small", seed)
    for start, goal in free_pairs(scene, 2, seed, cell=0.05):
        walked = reference.shortest_by_grid(start, goal, scene.obstacles, scene.interior)
        exact = distance(scene, start, goal)
        assert exact <= walked + 1e-3  # the grid's way can be walked, so the shortest is no longer
        assert walked <= exact + 0.05, (seed, start, goal)


@pytest.mark.parametrize("tier", ["small", "full"])
def test_paths_are_as_long_as_distances_and_free(tier):
    scene = generate_scene(tier, 7)
    for start, goal in free_pairs(scene, 10):
        path = shortest_path(scene, tuple(start), tuple(goal))
        steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
        assert steps.sum() == pytest.approx(distance(scene, start, goal), abs=1e-9)
        for p, q in zip(path[:-1].tolist(), path[1:].tolist(), strict=True):
            assert reference.sees(p, q, reference.grown(scene.obstacles, 0.1 - 1e-6))


def test_nodes_are_the_convex_corners():
    # Two flush boxes of different depths: six corners, of which the inner one is none; and a box in the room's corner.
    scene = room(boxes=[(2, 1, 3, 2, 0, 1), (3, 1, 4, 1.5, 0, 1), (0, 3, 1, 4, 0, 1)])
    got = {tuple(np.round(node, 4)) for node in convex_corners(scene)}
    n = NODE
    want = [(2 - n, 1 - n), (2 - n, 2 + n), (3 + n, 2 + n), (4 + n, 1.5 + n), (4 + n, 1 - n), (1 + n, 3 - n)]
    assert got == {tuple(np.round(node, 4)) for node in want}


def test_boxes_that_share_a_corner_have_it_once():
    scene = room(boxes=[(2, 1, 3, 2, 0, 1), (2.5, 0.5, 3, 2, 0, 1)])
    corners = [tuple(np.round(node, 3)) for node in convex_corners(scene)]
    assert corners.count((round(3 + NODE, 3), round(2 + NODE, 3))) == 1
    assert len(corners) == len(set(corners)) == 5


def test_batched_queries_equal_the_graph(small_bank, full_bank):
    for bank in (small_bank, full_bank):
        num = 40
        rng = torch.Generator().manual_seed(0)
        scenes = torch.randint(bank.num_scenes, (num,), generator=rng)
        episodes = torch.randint(bank.num_episodes, (num,), generator=rng)
        rows, at = bank.episodes[scenes, episodes], bank.episode_goals[scenes, episodes]
        goals, distances = rows[:, None, 3:5], bank.node_distances[scenes, at]
        got = query(rows[:, :2], bank.nodes[scenes], distances, goals, bank.sight[scenes])
        for i in range(num):
            scene = bank.scene(int(scenes[i]))
            assert float(got[i]) == pytest.approx(
                distance(scene, rows[i, :2].tolist(), rows[i, 3:5].tolist()), abs=1e-4
            )
            assert float(got[i]) == pytest.approx(float(rows[i, 5]), abs=1e-4)


WALKS = [
    ("small", {"slide": True}),
    ("small", {"slide": False}),
    ("small", {"slide": True, "actuation_noise": 0.5}),
    ("full", {"slide": True}),
]


@pytest.fixture(scope="module", params=WALKS, ids=str)
def walks(request, small_bank, full_bank):
    """A bank, and the states before and after each step of random walks, without the steps that end episodes."""
    tier, options = request.param
    num, bank = (256, small_bank) if tier == "small" else (48, full_bank)
    simulator = Navigation(num, "cpu", PointNavConfig(tier=tier, sensors="blind", **options), bank=bank)
    simulator.reset(3)
    rng, steps = torch.Generator().manual_seed(0), []
    chances = torch.tensor([0.0, 0.7, 0.16, 0.14])
    for _ in range(120):
        before = simulator._state.clone()
        step = simulator.step(torch.multinomial(chances, num, True, generator=rng))
        steps.append((before, simulator._state.clone(), ~(step.terminated | step.truncated)))
    return bank, steps


def test_every_pose_that_is_reached_has_a_finite_distance(walks):
    bank, steps = walks
    longest = (bank.interior[:, 2] + bank.interior[:, 3]).max() * 4
    num_collisions = 0.0
    for _, after, _ in steps:
        assert (after[:, DISTANCE] < longest).all()
        num_collisions = float(after[:, 8].sum())
    assert num_collisions > 1000  # walls were touched


def test_no_step_changes_the_distance_by_more_than_its_length(walks):
    for before, after, went_on in walks[1]:
        change = (after[:, DISTANCE] - before[:, DISTANCE]).abs()
        travelled = after[:, PATH] - before[:, PATH]
        assert (change <= travelled + 1e-3)[went_on].all()


def test_a_goal_that_cannot_be_reached_is_an_error():
    cut = room(boxes=[(2.9, 0.0, 3.1, 4.0, 0.0, 2.5)])
    with pytest.raises(UsageError, match=r"goal \(5, 1\) cannot be reached from \(1, 1\)"):
        shortest_path(cut, (1, 1), (5, 1))
    assert not np.isfinite(distance(cut, (1, 1), (5, 1)))
    with pytest.raises(UsageError, match="goal .* is outside the scene or too close"):
        shortest_path(divided_room(), (1, 1), (3.0, 1.0))
    with pytest.raises(UsageError, match="start .* is outside"):
        shortest_path(divided_room(), (-1, 1), (1, 1))
