"""What limits SPL: agents that know what they saw, and the causes of lost SPL."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from benchmarks.navigation_limits import CAUSES, Plan, Played, lost, main_table
from benchmarks.navigation_seen import (
    VIEWS,
    Knowledge,
    Pieces,
    SeenPlanner,
    WideMapper,
    convex_corners,
    cut,
    hits,
    views,
)
from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.evaluation.episode_list import fixed_episodes, play
from paceline.sims.navigation.evaluation.map_and_plan import MapAndPlan
from paceline.sims.navigation.evaluation.routes import Route
from paceline.sims.navigation.rendering.render import Camera
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.free_space import NODE
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.simulator import Navigation


@pytest.fixture(scope="module")
def bank():
    return SceneBank.generate("small", "val", 2)


def route_of(xs, distances):
    """A walk along x, and the distances after every action, of which the last is to stop."""
    poses = np.column_stack([xs, np.zeros(len(xs)), np.zeros(len(xs))])
    return Route(poses, np.zeros(len(xs), np.uint8), np.array(distances))


def test_a_detour_at_the_start_and_one_later_are_different_causes():
    # 1 m back, 3 m ahead, 1 m back and 3 m ahead: 8 m for a distance of 4 m.
    xs = np.array([0, -1, 0, 1, 2, 1, 2, 3, 4], float)
    found = lost(route_of(xs, [*(4 - xs[1:]), 0.0]), 4.0, 8.0, 0.5, 1.0)
    assert dict(zip(CAUSES, found, strict=True)) == pytest.approx(
        {"start": 0.25, "wrong way": 0.25, "sideways": 0.0, "steering": 0.0, "stop": 0.0, "failures": 0.0}
    )


def test_steps_at_an_angle_and_an_early_stop():
    # Two steps of 1 m at 60 and at 10 degrees to the shortest path, of 2 m.
    gains = np.array([0.5, math.cos(math.radians(10.0))])
    left = 2.0 - gains.cumsum()
    start, wrong, sideways, steering, stop, failures = lost(
        route_of([0.0, 1.0, 2.0], [*left, left[-1]]), 2.0, 2.0, 1.0, 1.0
    )
    assert (start, wrong, failures) == (0.0, 0.0, 0.0)
    assert sideways == pytest.approx(0.25)
    assert steering == pytest.approx((1.0 - gains[1]) / 2)
    assert stop == pytest.approx(-sideways - steering)


def test_a_failure_loses_everything():
    assert lost(route_of([0.0], [3.0]), 3.0, 0.0, 0.0, 0.0) == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_run_in_other_episodes_has_no_difference_to_the_last_agent(capsys):
    def played(label, spl, ratios):
        return Played(label, np.ones(2), np.array(spl), np.array(ratios), np.zeros((2, len(CAUSES))))

    others, same = played("others", [0.5, 0.5], [1.0, 3.0]), played("same", [0.5, 0.5], [1.0, 2.0])
    rows = main_table([others, same, played("last", [0.75, 0.75], [1.0, 2.0])]).rows
    assert [row[-1] for row in rows] == ["", "0.250 (0.250 to 0.250)", ""]


def test_an_unknown_agent_is_refused():
    with pytest.raises(UsageError, match="no agent 'map-91'; allowed: map-90, .*, oracle"):
        Plan(agents=("oracle", "map-91"))


def test_without_agents_and_runs_nothing_is_played():
    with pytest.raises(UsageError, match="nothing to evaluate: give --runs or --agents"):
        Plan(agents=())
    assert Plan(agents=(), runs=("pointnav",)).agents == ()


def test_pieces_cover_a_wall_and_have_the_corners_of_the_whole():
    wall = np.array([0.0, 0.0, 0.1, 3.4])
    pieces = cut(wall)
    assert len(pieces) == 4
    np.testing.assert_allclose(pieces[:, 3] - pieces[:, 1], 0.85)
    np.testing.assert_allclose(np.sort(convex_corners(pieces), 0), np.sort(convex_corners(wall[None]), 0), atol=1e-6)
    assert len(convex_corners(pieces[:2])) == 4  # what is beyond a seen piece counts as free
    assert convex_corners(pieces[:2]).max() == pytest.approx(1.7 + NODE, abs=1e-6)


def test_with_all_pieces_distances_are_those_of_the_scene(bank):
    scene = bank.make("small", int(bank.seeds[0]))
    start, goal = (bank.episodes[0, -1, at].double().numpy() for at in (slice(0, 2), slice(3, 5)))
    known = Knowledge(Pieces.of(scene), goal, memory=math.inf, whole_rooms=False)
    assert len(known.nodes) == 0
    known.add(start, known.pieces.rects.reshape(-1, 2, 2).mean(1), np.empty((0, 2)))
    graph = Graph.of(scene)
    np.testing.assert_allclose(
        known.distances[known.distances < 1e6].min(), graph.to_goals(goal[None]).min(), atol=0.01
    )


def test_what_is_seen_is_remembered_or_forgotten(bank):
    pieces = Pieces.of(bank.make("small", int(bank.seeds[0])))
    nothing, middle = np.empty((0, 2)), pieces.rects.reshape(-1, 2, 2).mean(1)
    far = np.array([-50.0, -50.0])
    for memory, remembered in ((math.inf, 1), (2, 0)):
        known = Knowledge(pieces, np.zeros(2), memory=memory, whole_rooms=False)
        assert known.add(far, middle[:1], nothing) and len(known.rects) == 1
        known.add(far, nothing, nothing)
        known.add(far, nothing, nothing)
        assert len(known.rects) == remembered


def test_a_room_is_known_as_a_whole(bank):
    pieces = Pieces.of(bank.make("small", int(bank.seeds[0])))
    known = Knowledge(pieces, np.zeros(2), memory=math.inf, whole_rooms=True)
    inside = bank.episodes[0, 0, :2].double().numpy()
    known.add(inside, np.empty((0, 2)), inside[None])
    room = pieces.at(pieces.rooms, inside[None])
    assert len(room) == 1
    assert len(known.rects) >= pieces.of_rooms[room[0]].sum() > 4


def test_rays_end_at_pieces(bank):
    simulator = Navigation(4, "cpu", PointNavConfig(sensors="blind"), bank=bank)
    simulator.load_episodes([0] * 4, [0, 10, 20, 30])
    images = views(bank, Camera(16, max_depth=100.0), simulator.scenes, simulator.poses, VIEWS[360]).numpy()
    pieces = Pieces.of(bank.make("small", int(bank.seeds[0])))
    for image, pose in zip(images, simulator.poses.double().numpy(), strict=True):
        solid, points = hits(image, pose, VIEWS[360])
        assert len(points) == image.size
        found = pieces.rects[pieces.at(pieces.grid, solid)]
        assert len(found) > 4
        low, high = found[:, None, :2] - 0.06, found[:, None, 2:] + 0.06
        assert ((solid >= low) & (solid <= high)).all(2).any(0).mean() > 0.99


def test_one_camera_of_its_own_sees_what_the_agent_sees(bank):
    simulator = Navigation(3, "cpu", PointNavConfig(resolution=32), bank=bank)
    obs = simulator.load_episodes([0, 1, 0], [5, 50, 100])
    wide, plain = WideMapper(simulator), MapAndPlan(simulator)
    began = torch.ones(3, dtype=torch.bool)
    for _ in range(20):
        actions = plain.act(obs, began)
        assert torch.equal(wide.act({"goal": obs["goal"]}, began), actions)
        step = simulator.step(actions)
        obs, began = step.obs, step.terminated | step.truncated


def test_who_sees_all_around_finds_the_goal_on_a_short_path(bank):
    config = PointNavConfig(sensors="blind", max_episode_steps=100)
    scenes, numbers = fixed_episodes(bank, 4)
    simulator = Navigation(4, "cpu", config, bank=bank)
    measures = play(simulator, SeenPlanner(simulator).act, scenes, numbers)
    assert measures["success"].mean() == 1.0
    assert measures["spl"].mean() > 0.9
