"""ObjectNav: objects of scenes, distances to them, what is in view, and episodes worked out by hand."""

import math

import numpy as np
import pytest
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.config import ObjectNavConfig
from paceline.sims.navigation.evaluation.baselines import play_baseline
from paceline.sims.navigation.evaluation.episode_list import play
from paceline.sims.navigation.evaluation.frontier import FrontierAgent
from paceline.sims.navigation.evaluation.objectnav import EVALUATION
from paceline.sims.navigation.evaluation.policy_episodes import PlayedEpisodes
from paceline.sims.navigation.evaluation.report_failures import failures
from paceline.sims.navigation.evaluation.routes import Recorder
from paceline.sims.navigation.layout import FORWARD, LEFT, RIGHT, STOP
from paceline.sims.navigation.rendering.render import CAMERA_HEIGHT
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.free_space import NODE, is_free
from paceline.sims.navigation.scenes.furniture import CATEGORIES
from paceline.sims.navigation.scenes.generator import generate_scene
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.objects import MIN_DISTANCE, Objects
from paceline.sims.navigation.scenes.scene import CEILING
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.navigation.tasks.objectnav import VIEW
from tests.sims.navigation import reference
from tests.sims.navigation.rooms import random_steps, room

CHEST = (4.0, 1.5, 4.5, 2.5, 0.0, 0.9)


def one(scene, start, heading, category, **options):
    """A simulator whose episodes all begin at `start` and ask for `category`."""
    bank = SceneBank.of_scenes([scene], "small")
    number = CATEGORIES.index(category)
    objects = Objects.of(scene)
    distance = objects.by_category(Graph.of(scene).to_rects(objects.footprints, np.array([start])))[0, number]
    bank.object_episodes[0] = torch.tensor([*start, heading, number, distance])
    options = {"sensors": "blind", "turn_angle": 10.0, **options}
    simulator = Navigation(1, "cpu", ObjectNavConfig(**options), bank=bank)
    simulator.reset(0)
    return simulator


def act(simulator, *actions):
    steps = [simulator.step(torch.tensor([action])) for action in actions]
    return [round(float(step.reward), 4) for step in steps]


def test_walk_to_a_chest_and_stop():
    """3 m to its side: success is possible after 2 m."""
    simulator = one(room(boxes=[CHEST], furniture=["chest"]), (1.0, 2.0), 0.0, "chest")
    first = simulator.reset(0)
    assert first["category"].tolist() == [[float(kind == "chest") for kind in CATEGORIES]]
    assert first["gps"].tolist() == [[0, 0, 1, 0]]
    assert act(simulator, *[FORWARD] * 8, FORWARD) == pytest.approx([0.249] * 8 + [-0.001], abs=1e-3)
    assert act(simulator, STOP) == pytest.approx([2.499])
    measures = {name: float(values[0]) for name, values in simulator.last_measures.items()}
    assert measures["success"] == 1 and measures["distance_to_goal"] == 0
    assert measures["geodesic"] == pytest.approx(2.0, abs=1e-3)
    assert measures["spl"] == pytest.approx(2.0 / 2.25, abs=1e-3)


def test_too_far_or_looking_away_is_no_success():
    scene = room(boxes=[CHEST], furniture=["chest"])
    assert act(one(scene, (1.0, 2.0), 0.0, "chest"), *[FORWARD] * 7, STOP)[-1] == pytest.approx(-0.001)
    away = one(scene, (1.0, 2.0), 0.0, "chest")
    assert act(away, *[FORWARD] * 9, *[LEFT] * 10, STOP)[-1] == pytest.approx(-0.001)
    aside = one(scene, (1.0, 2.0), 0.0, "chest")
    assert act(aside, *[FORWARD] * 9, *[LEFT] * 5, STOP)[-1] == pytest.approx(2.499)


def test_an_object_behind_a_wall_or_of_another_category_is_no_success():
    hidden = room(boxes=[CHEST, (3.5, 1.0, 3.6, 3.0, 0.0, CEILING)], furniture=["chest"])
    simulator = one(hidden, (1.0, 2.0), 0.0, "chest")
    act(simulator, *[FORWARD] * 12, STOP)
    assert float(simulator.last_measures["success"]) == 0
    assert float(simulator.last_measures["distance_to_goal"]) > 0.5  # around the wall
    two = room(boxes=[CHEST, (1.0, 3.4, 2.0, 4.0, 0.0, 0.9)], furniture=["chest", "counter"])
    assert act(one(two, (1.0, 2.0), 0.0, "counter"), *[FORWARD] * 9, STOP)[-1] < 0


@pytest.mark.parametrize("tier", ["small", "full"])
def test_objects_in_view_are_those_that_rays_meet(tier, small_bank, full_bank):
    bank = small_bank if tier == "small" else full_bank
    count = 12 if tier == "small" else 6
    simulator = Navigation(count, "cpu", ObjectNavConfig(tier=tier, sensors="blind"), bank=bank)
    simulator.reset(0)
    list(random_steps(simulator, 7, stop=0.0))
    poses, scenes = simulator.poses, simulator.scenes.tolist()
    got = simulator.task.in_view(poses, torch.ones(count, dtype=torch.bool))
    num_seen = 0
    for stream in range(count):
        scene = bank.scene(scenes[stream])
        owners = {box: number for number, piece in enumerate(scene.furniture) for box in piece.boxes}
        rays = ((column, row) for column in range(VIEW) for row in range(VIEW))
        pose = poses[stream].tolist()
        met = {reference.depth_of_ray(scene.boxes, pose, *ray, VIEW, CAMERA_HEIGHT, CEILING)[1] for ray in rays}
        want = {owners[box] for box in met if box in owners}
        assert set(got[stream].nonzero()[:, 0].tolist()) == want
        num_seen += len(want)
    assert num_seen > 1
    half = torch.arange(count) % 2 == 0
    some = simulator.task.in_view(poses, half)
    assert torch.equal(some[half], got[half]) and not some[~half].any()


def edge_points(rect, spacing=0.01):
    """Points along the border of a rectangle where the agent touches it."""
    x0, y0, x1, y1 = rect + np.array([-1, -1, 1, 1]) * NODE
    along_x, along_y = np.arange(x0, x1, spacing), np.arange(y0, y1, spacing)
    sides = [(along_x, np.full_like(along_x, y)) for y in (y0, y1)]
    sides += [(np.full_like(along_y, x), along_y) for x in (x0, x1)]
    return np.concatenate([np.column_stack(side) for side in sides])


@pytest.mark.parametrize("tier", ["small", "full"])
def test_distances_are_those_to_the_nearest_point_of_the_border(tier, small_bank, full_bank):
    """Against the distances to very many points around the objects."""
    bank = small_bank if tier == "small" else full_bank
    simulator = Navigation(6, "cpu", ObjectNavConfig(tier=tier, sensors="blind"), bank=bank)
    simulator.reset(3)
    list(random_steps(simulator, 5, stop=0.0))
    got = simulator.task.distances(simulator.columns, simulator.poses[:, :2]).tolist()
    for stream in range(6):
        scene = bank.scene(int(simulator.scenes[stream]))
        kind = CATEGORIES[int(simulator.columns[stream, 0])]
        objects = Objects.of(scene)
        rects = objects.footprints[[piece.kind == kind for piece in scene.furniture]]
        points = np.concatenate([edge_points(rect) for rect in rects])
        points = points[is_free(scene, points, NODE)]
        here = simulator.poses[stream, :2].double().numpy()
        want = Graph.of(scene).between_points(here[None], points).min()
        assert want - 0.02 < got[stream] < want + 1e-3


def test_scenes_know_their_furniture(full_bank):
    kinds = set()
    for number in range(full_bank.num_scenes):
        made, kept = generate_scene("full", int(full_bank.seeds[number])), full_bank.scene(number)
        wanted = [piece for piece in made.furniture if piece.kind in CATEGORIES]
        assert [piece.kind for piece in wanted] == [piece.kind for piece in kept.furniture]
        for piece, same in zip(wanted, kept.furniture, strict=True):
            np.testing.assert_allclose(kept.boxes[list(same.boxes)], made.boxes[list(piece.boxes)], atol=1e-5)
            kinds.add(piece.kind)
    assert kinds == set(CATEGORIES)


def test_episodes_begin_far_from_objects_that_can_be_reached(small_bank, full_bank):
    for bank in (small_bank, full_bank):
        for number in range(bank.num_scenes):
            rows, categories = bank.object_episodes[number], set(bank.categories[number].tolist())
            if rows[0, 3] < 0:
                continue
            assert (rows[:, 4] >= MIN_DISTANCE).all() and (rows[:, 4] < 100).all()
            assert set(rows[:, 3].long().tolist()) <= categories


def test_scenes_without_objects_have_no_episodes():
    bare, furnished = room(), room(boxes=[CHEST], furniture=["chest"])
    with pytest.raises(
        UsageError, match="objectnav: .* no episode of this task in 1 scene; allowed: scenes with furniture"
    ):
        Navigation(1, config=ObjectNavConfig(), bank=SceneBank.of_scenes([bare], "small"))
    bank = SceneBank.of_scenes([bare, furnished, furnished], "small")
    simulator = Navigation(32, "cpu", ObjectNavConfig(sensors="blind"), bank=bank)
    simulator.reset(0)
    assert simulator.scenes_in_use() == {1, 2}
    bank.retire(2)
    simulator.reset(0)
    assert simulator.scenes_in_use() == {1} == set(simulator.playable_episodes())
    with pytest.raises(
        UsageError, match="objectnav: there is no episode of this task in 1 scene; allowed: scenes with"
    ):
        bank.retire(1)
    assert bank.retired.tolist() == [False, False, True] and list(simulator.playable_episodes()) == [1]


def test_bad_furniture_and_options_are_refused():
    with pytest.raises(UsageError, match="a piece of furniture has no boxes, or unknown ones; allowed: 0 to 3"):
        room(furniture=["bed"])
    with pytest.raises(UsageError, match=r"objectnav: success_distance is 3; allowed: 0.1 to 1.5"):
        ObjectNavConfig(success_distance=3)


def test_the_oracle_finds_objects(small_bank, full_bank):
    for bank in (small_bank, full_bank):
        config = ObjectNavConfig(tier=bank.tier, split="val", sensors="blind", max_episode_steps=120)
        result = play_baseline(EVALUATION, "oracle", config, 12, num_envs=12, bank=bank)
        assert result["success"] > 0.9 and result["spl"] > 0.75
    assert play_baseline(EVALUATION, "random", config, 24, num_envs=24, bank=full_bank)["success"] < 0.3


def test_a_frontier_explorer_finds_what_it_cannot_see_at_first():
    """The chest is in the other half of a room, behind a wall that is open only at one end."""
    scene = room(boxes=[(5.4, 0.4, 6.0, 1.4, 0.0, 0.9), (2.9, 0.0, 3.1, 3.0, 0.0, CEILING)], furniture=["chest"])
    simulator = one(scene, (1.0, 1.0), math.pi, "chest", sensors="depth", resolution=32, turn_angle=30.0)
    obs, began = simulator.reset(0), torch.ones(1, dtype=torch.bool)
    assert not simulator.task.in_view(simulator.poses, began).any()
    agent = FrontierAgent(simulator)
    for _ in range(150):
        step = simulator.step(agent.act(obs, began))
        obs, began = step.obs, step.terminated | step.truncated
        if began:
            break
    assert float(simulator.last_measures["success"]) == 1 and float(simulator.last_measures["spl"]) > 0.5


def test_a_frontier_explorer_finds_what_is_far_away():
    hall = room(width=30.0, depth=1.0, boxes=[(29.0, 0.0, 30.0, 1.0, 0.0, 0.9)], furniture=["chest"])
    simulator = one(hall, (0.5, 0.5), 0.0, "chest", sensors="depth", resolution=8, forward_step=1.0)
    obs, began = simulator.reset(0), torch.ones(1, dtype=torch.bool)
    agent = FrontierAgent(simulator)
    for _ in range(60):
        step = simulator.step(agent.act(obs, began))
        obs, began = step.obs, step.terminated | step.truncated
        if began:
            break
    assert float(simulator.last_measures["success"]) == 1


def test_a_frontier_explorer_that_sees_nothing_turns():
    simulator = one(room(boxes=[CHEST], furniture=["chest"]), (1.0, 2.0), math.pi, "chest", sensors="depth")
    obs, began = simulator.reset(0), torch.ones(1, dtype=torch.bool)
    actions = FrontierAgent(simulator).act({**obs, "depth": torch.zeros_like(obs["depth"])}, began)
    assert int(actions[0]) in (FORWARD, LEFT, RIGHT)


@pytest.mark.parametrize(("aside", "kind"), [(0.73, "Stopped early"), (0.6, "Not recognised")])
def test_failures_near_a_corner_go_by_the_straight_distance(aside, kind):
    """A stop 1.03 m or 0.85 m from the corner of a chest, looking away. Both are within 1 m by the path."""
    simulator = one(room(boxes=[CHEST], furniture=["chest"]), (4.0 - aside, 1.5 - aside), math.pi, "chest")
    recorder = Recorder(simulator, lambda obs, began: torch.tensor([STOP]))
    measures = play(simulator, recorder.act, [0], [0])
    assert measures["distance_to_goal"] == 0 and measures["success"] == 0
    played = PlayedEpisodes(
        config=simulator.config,
        bank=simulator.bank,
        scenes=[0],
        numbers=[0],
        measures=measures,
        marks=simulator.task.marks,
        routes=recorder.routes(1),
    )
    assert f"{kind}</h3>" in failures(EVALUATION, played)[0]


def test_gps_is_relative_to_the_start():
    simulator = one(room(boxes=[CHEST], furniture=["chest"]), (1.0, 1.0), math.pi / 2, "chest")
    for action, want in ((FORWARD, [0.25, 0, 1, 0]), (LEFT, [0.25, 0, math.cos(math.pi / 18), math.sin(math.pi / 18)])):
        step = simulator.step(torch.tensor([action]))
        assert step.obs["gps"][0].tolist() == pytest.approx(want, abs=1e-5)
    assert "gps" not in one(room(boxes=[CHEST], furniture=["chest"]), (1.0, 1.0), 0.0, "chest", gps=False).reset(0)
