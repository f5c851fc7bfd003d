"""Episodes of houses: objects and goals rest freely on surfaces, and the base reaches them from its starts."""

import numpy as np
import pytest
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.free_space import is_free
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.paths import Destinations, Paths
from paceline.sims.rearrangement.objects import OBJECT_KINDS
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.scenes.clearance import LARGEST_NOISE, LAST_TURNS, STAND_TURNS
from paceline.sims.rearrangement.scenes.episodes import NUM_OBJECTS, NUM_TARGETS, SCENARIOS
from paceline.sims.rearrangement.scenes.generator import HOUSE_TIERS
from paceline.sims.rearrangement.scenes.house import FRIDGE, NUM_JOINTS
from tests.sims.rearrangement import boxes

KEYS = [(tier, scenario) for tier in HOUSE_TIERS for scenario in SCENARIOS]
EXTENTS = np.array([kind.half_extents for kind in OBJECT_KINDS])


@pytest.fixture(params=KEYS, ids="-".join, scope="module")
def bank(request, banks):
    return banks[request.param]


def rows(bank):
    """The house and the values of every scene of a bank."""
    for k in range(bank.num_scenes):
        row = {name: values.astype(np.float64) for name, values in bank.row(k).items()}
        yield bank.house(k), row


def object_boxes(row, episode):
    """[O, 7]."""
    x, y, z, yaw = row["objects"][episode].T
    return np.column_stack([x, y, z, EXTENTS[row["object_kinds"][episode].astype(int)], yaw])


def goal_boxes(row, episode, yaw):
    kinds = row["object_kinds"][episode, :NUM_TARGETS].astype(int)
    return np.column_stack([row["goals"][episode], EXTENTS[kinds], np.full(NUM_TARGETS, yaw)])


def surface_below(house, box):
    """The surface that a box rests on exactly, 2 cm or more from its edge."""
    found = [
        surface
        for surface in house.surfaces
        if abs(box[2] - box[5] - surface.z) < 1e-5
        and (boxes.corners(box[None])[0] >= np.array(surface.area[:2]) + 0.02 - 1e-5).all()
        and (boxes.corners(box[None])[0] <= np.array(surface.area[2:]) - 0.02 + 1e-5).all()
    ]
    assert len(found) == 1
    return found[0]


def opened(house, surface):
    """How far a surface moves with its drawer."""
    return house.joints[surface.joint, 3:5] * 0.45 if surface.joint > FRIDGE else np.zeros(2)


def test_objects_rest_freely_on_surfaces(bank):
    for house, row in rows(bank):
        solids = boxes.of_scene(house.scene)
        for episode in range(bank.num_episodes):
            things = object_boxes(row, episode)
            for thing, joint in zip(things, row["object_joint"][episode], strict=True):
                assert surface_below(house, thing).joint == joint
            assert not np.triu(boxes.overlap(things, things), 1).any()
            assert not boxes.overlap(things, solids).any()
            assert not boxes.overlap(things, house.moving).any()


def test_objects_in_drawers_hit_nothing_while_they_open(bank):
    for house, row in rows(bank):
        solids = boxes.of_scene(house.scene)
        for episode in range(0, bank.num_episodes, 4):
            joints = row["object_joint"][episode].astype(int)
            things = object_boxes(row, episode)[joints > FRIDGE]
            for _ in range(9):
                things[:, :2] += 0.05 * house.joints[joints[joints > FRIDGE], 3:5]
                assert not boxes.overlap(things, solids).any()


def test_goals_are_free_for_every_yaw(bank):
    for house, row in rows(bank):
        solids = boxes.of_scene(house.scene)
        for episode in range(0, bank.num_episodes, 4):
            things = object_boxes(row, episode)
            for yaw in (0.0, 0.6, 1.2, 2.4):
                goals = goal_boxes(row, episode, yaw)
                for number, goal in enumerate(goals):
                    assert surface_below(house, goal) != surface_below(house, things[number])
                assert not boxes.overlap(goals, things).any()
                assert not np.triu(boxes.overlap(goals, goals), 1).any()
                assert not boxes.overlap(goals, solids).any()


def test_kinds_of_an_episode_differ(bank):
    kinds = bank.object_kinds.view(-1, NUM_OBJECTS).sort(1).values
    assert (kinds.diff(dim=1) > 0).all() and kinds.min() >= 0 and kinds.max() < len(OBJECT_KINDS)


def test_stands_are_free_within_reach_and_connected_to_the_starts(bank):
    for house, row in rows(bank):
        stands = row["stands"]
        things = [
            np.concatenate([object_boxes(row, episode)[:NUM_TARGETS], goal_boxes(row, episode, 0.0)])
            for episode in range(bank.num_episodes)
        ]
        moved = [[box[:2] + opened(house, surface_below(house, box)) for box in episode] for episode in things]
        way = np.array(moved) - stands[..., :2]
        length = np.linalg.norm(way, axis=2)
        assert (length >= 0.45 - 1e-4).all() and (length <= 0.75 + 1e-4).all()
        turned = np.cos(stands[..., 2] - np.arctan2(way[..., 1], way[..., 0]))
        assert (turned >= np.cos(max(STAND_TURNS)) - 1e-4).all() and (turned > 1.0 - 1e-4).mean() > 0.5
        places = stands[..., :2].reshape(-1, 2)
        assert is_free(house.scene, places, 0.3 - 1e-4).all()
        graph = Graph.of(house.scene)
        starts = np.concatenate([row["far_starts"].reshape(-1, 3), row["joint_starts"].reshape(-1, 3)])
        assert is_free(house.scene, starts[:, :2], 0.3 - 1e-4).all()
        assert np.isfinite(graph.between_points(starts[:, :2], places[::7])).all()


def test_stands_are_not_behind_walls_or_sides_of_furniture(bank):
    """A thin beam from the stand to the object, above its surface, hits nothing."""
    for house, row in rows(bank):
        solids = boxes.of_scene(house.scene)
        for episode in range(0, bank.num_episodes, 4):
            things = np.concatenate([object_boxes(row, episode)[:NUM_TARGETS], goal_boxes(row, episode, 0.0)])
            for box, stand in zip(things, row["stands"][episode], strict=True):
                surface = surface_below(house, box)
                target = box[:2] + opened(house, surface)
                way = target - stand[:2]
                middle = [*(target + stand[:2]) / 2, surface.z + 0.1]
                half = np.linalg.norm(way) / 2 - 0.001
                beam = np.array([[*middle, half, 0.001, 0.05, np.arctan2(way[1], way[0])]])
                assert not boxes.overlap(beam, solids).any(), (house.scene.seed, surface.kind)


def test_starts_near_objects_and_goals(bank):
    """At most 2 m away, facing them with some noise, free, outside what doors and drawers sweep, with a straight way
    to the stand. Few face elsewhere, where no other heading is clear."""
    num_stands, total = 0, 0
    facing = []
    for house, row in rows(bank):
        graph = Graph.of(house.scene)
        swept = np.concatenate([swept_boxes(house, joint) for joint in range(NUM_JOINTS)])
        for name, points, first in (("object_starts", "objects", 0), ("goal_starts", "goals", NUM_TARGETS)):
            stands = row["stands"][:, first : first + NUM_TARGETS]
            for episode in range(0, bank.num_episodes, 5):
                for number in range(NUM_TARGETS):
                    starts, stand = row[name][episode, number], stands[episode, number]
                    total += 1
                    if np.allclose(starts[:, :2], stand[:2]):
                        num_stands += 1
                        continue
                    assert is_free(house.scene, starts[:, :2], 0.3 - 1e-4).all()
                    assert (boxes.distances(starts[:, :2], swept) >= 0.25).all()
                    assert np.isfinite(graph.over_sight(starts[:, :2], stand[None, :2])).all()
                    if row["object_joint"][episode, number] > FRIDGE and name == "object_starts":
                        continue  # the open drawer is faced
                    way = row[points][episode, number, :2] - starts[:, :2]
                    assert (np.linalg.norm(way, axis=1) <= 2.0 + 1e-4).all()
                    facing += assert_faces_it_or_elsewhere(starts[:, 2] - np.arctan2(way[:, 1], way[:, 0]))
    assert num_stands <= 0.1 * total
    assert np.mean(facing) > 0.9


def swept_boxes(house, joint):
    """All boxes of a joint at many values."""
    values = np.zeros((40, NUM_JOINTS))
    values[:, joint] = np.linspace(0.0, house.joints[joint, 5], 40)
    return house.moved(values)[:, house.moving_joint == joint].reshape(-1, 7)


def test_starts_before_handles(bank):
    """At the right distance, facing the handle with some noise, outside what doors and drawers sweep. Few face
    elsewhere, where no other heading is clear of them however far they are open."""
    facing = []
    for house, row in rows(bank):
        for joint, (least, most) in enumerate(((0.85, 1.25), (0.8, 1.1), (0.8, 1.1))):
            starts, handle = row["joint_starts"][joint], house.handles[joint]
            way = handle[:2] - starts[:, :2]
            length = np.linalg.norm(way, axis=1)
            assert (length >= least - 1e-4).all() and (length <= most + 1e-4).all()
            facing += assert_faces_it_or_elsewhere(starts[:, 2] - np.arctan2(way[:, 1], way[:, 0]))
            assert (boxes.distances(starts[:, :2], swept_boxes(house, joint)) >= 0.25).all()
    assert np.mean(facing) > 0.8


def assert_faces_it_or_elsewhere(turned):
    """Which of the robots face their target, of those that are turned away from it by `turned`."""
    faces = np.cos(turned) >= np.cos(LARGEST_NOISE) - 1e-4
    elsewhere = (np.abs(np.cos(turned)[:, None] - np.cos(LAST_TURNS)) < 1e-3).any(1)
    assert (faces | elsewhere).all()
    return faces.tolist()


def test_paths_lead_to_the_stands(bank):
    """`Paths` reads the table of the bank, and agrees with the graph of the scene."""
    paths = Paths(bank)
    paths.scenes_changed()
    num = 40
    rng = np.random.default_rng(0)
    scenes = torch.from_numpy(rng.integers(bank.num_scenes, size=num))
    goals = torch.from_numpy(rng.integers(bank.num_episodes * 2 * NUM_TARGETS, size=num))
    starts = bank.far_starts.flatten(1, 2)[scenes, torch.from_numpy(rng.integers(128, size=num)), :2]
    targets = bank.stands.flatten(1, 2)[scenes, goals, None, :2]
    lengths = paths.lengths(starts, Destinations(scenes, bank.stand_distances, goals, targets))
    graphs = [Graph.of(bank.scene(k)) for k in range(bank.num_scenes)]
    for i in range(num):
        expected = graphs[scenes[i]].between_points(starts[i : i + 1].double().numpy(), targets[i].double().numpy())
        assert float(lengths[i]) == pytest.approx(expected[0, 0], abs=1e-3)


def surface_kinds(bank, name):
    """[K, E, things] of strings: where objects or goals are."""
    return np.array(
        [
            [
                [
                    surface_below(house, box).kind
                    for box in (object_boxes(row, e) if name == "objects" else goal_boxes(row, e, 0.0))
                ]
                for e in range(0, bank.num_episodes, 4)
            ]
            for house, row in rows(bank)
        ]
    )


@pytest.mark.parametrize("tier", HOUSE_TIERS)
def test_scenarios(tier, banks):
    closed = ["fridge", "drawer"]
    tidy = banks[tier, "tidy_house"]
    assert not np.isin(surface_kinds(tidy, "objects"), closed).any()
    assert not np.isin(surface_kinds(tidy, "goals"), closed).any()
    groceries = banks[tier, "prepare_groceries"]
    starts, goals = surface_kinds(groceries, "objects"), surface_kinds(groceries, "goals")
    assert (starts[..., :2] == "fridge").all() and not np.isin(starts[..., 2:], closed).any()
    assert np.isin(goals[..., :2], ["counter", "table"]).all() and (goals[..., 2] == "fridge").all()
    table = banks[tier, "set_table"]
    starts, goals = surface_kinds(table, "objects"), surface_kinds(table, "goals")
    assert (starts[..., 0] == "drawer").all() and (starts[..., 1] == "fridge").all()
    assert not np.isin(starts[..., 2:], closed).any() and (goals[..., :2] == "table").all()
    assert set(table.object_joint[..., 0].flatten().tolist()) == {1, 2}
    names = [OBJECT_KINDS[kind].name for kind in table.object_kinds[0, 0, :2].tolist()]
    assert names == ["bowl", "apple"]


def test_an_unknown_scenario_is_refused():
    with pytest.raises(UsageError, match="scenario 'party' does not exist; allowed: tidy_house, prepare_groceries"):
        HouseBank.generate("small", "val", 1, 0, "party")
