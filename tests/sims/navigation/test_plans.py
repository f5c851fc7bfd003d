"""Floor plans: the file format, the checks against slow oracles, and episodes in the plans of a user."""

import dataclasses
import io
import json
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from paceline.cli.main import _run as paceline
from paceline.config import Config
from paceline.envs import resolve
from paceline.errors import PacelineError, UsageError
from paceline.evaluation.evaluate import evaluate
from paceline.evaluation.evaluators import EvaluationOptions, evaluate_baseline
from paceline.learner.config import PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.run_records import scenes_label_of
from paceline.session import Session, train
from paceline.sims.navigation.evaluation.pointnav import EVALUATOR
from paceline.sims.navigation.evaluation.policy_episodes import env_config, env_id_of, split_config
from paceline.sims.navigation.plans.bank import check_episodes, longest_path, plan_bank, tier_of
from paceline.sims.navigation.plans.check import check_plan, free_area, free_cells, sound_scene
from paceline.sims.navigation.plans.examples import EXAMPLES, plan_text
from paceline.sims.navigation.plans.plan import Plan, PlanBox, PlanDoor, PlanWall, plan_of
from paceline.sims.navigation.plans.reading import parse_plan, plan_files, read_plan
from paceline.sims.navigation.rendering.maps import MARK
from paceline.sims.navigation.scenes.cells import Cells
from paceline.sims.navigation.scenes.furniture import CATEGORIES
from paceline.sims.navigation.scenes.generator import TIERS, generate_scene
from paceline.sims.navigation.scenes.objects import Objects
from paceline.sims.navigation.scenes.scene import Piece, Rect
from paceline.sims.navigation.simulator import load_bank
from tests.sims.navigation.rooms import room

ROOM = {"version": 1, "size": [4, 3]}
WALL = {"from": [2, 0], "to": [2, 3]}
DOOR = {"at": 1, "width": 0.9}
BOX = {"area": [1, 1, 2, 2], "heights": [0, 1]}


def problems(content):
    plan, found = parse_plan(content)
    return [str(problem) for problem in (found or check_plan(plan, plan.scene()))]


@pytest.fixture
def plan_file(tmp_path):
    def write(content, name="home.json"):
        file = tmp_path / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    return write


def test_a_plan_becomes_boxes():
    plan, found = parse_plan(
        {
            **ROOM,
            "outer_walls": {"thickness": 0.3, "color": [1, 2, 3]},
            "walls": [{**WALL, "thickness": 0.2, "color": [4, 5, 6], "doors": [{**DOOR, "height": 2.1}]}],
            "furniture": [{**BOX, "category": "bed", "color": [7, 8, 9]}],
            "rooms": [{"name": "kitchen", "area": [0, 0, 1.9, 3]}],
            "floor_color": [10, 11, 12],
        }
    )
    assert not found
    scene = plan.scene()
    assert scene.interior == (0, 0, 4, 3) and scene.rooms == ((0, 0, 1.9, 3),) and scene.floor_color == (10, 11, 12)
    assert scene.boxes[:4].tolist() == [
        [-0.3, -0.3, 0, 3.3, 0, 2.5],
        [4, -0.3, 4.3, 3.3, 0, 2.5],
        [0, -0.3, 4, 0, 0, 2.5],
        [0, 3, 4, 3.3, 0, 2.5],
    ]
    assert scene.boxes[4:].tolist() == [
        [1.9, 0, 2.1, 1, 0, 2.5],
        [1.9, 1.9, 2.1, 3, 0, 2.5],
        [1.9, 1, 2.1, 1.9, 2.1, 2.5],
        [1, 1, 2, 2, 0, 1],
    ]
    assert scene.colors.tolist() == [[1, 2, 3]] * 4 + [[4, 5, 6]] * 3 + [[7, 8, 9]]


def test_walls_run_both_ways_and_doors_reach_to_the_ceiling():
    doors = (PlanDoor(at=0.5, width=1.0, height=2.5),)
    wall = PlanWall(start=(3.0, 2.0), end=(0.0, 2.0), thickness=0.2, doors=doors)
    assert wall.solids() == [((2.5, 1.9, 3.0, 2.1), 0.0, 2.5), ((0.0, 1.9, 1.5, 2.1), 0.0, 2.5)]


@pytest.mark.parametrize("tier", TIERS)
def test_generated_scenes_survive_the_round_trip(tier, plan_file):
    for seed in range(12):
        scene = generate_scene(tier, seed)
        plan, found = read_plan(plan_file(plan_text(f"{tier}:{seed}")))
        assert not found and not [*check_plan(plan, plan.scene())]
        again = dataclasses.asdict(plan.scene())
        assert again.pop("furniture") == dataclasses.asdict(scene)["furniture"]
        for name, value in dataclasses.asdict(scene).items():
            if name not in ("seed", "furniture"):  # a scene made by hand has no seed
                np.testing.assert_array_equal(again[name], value)
        assert plan == plan_of(scene)


def test_only_scenes_with_outer_walls_at_the_origin_have_a_plan():
    assert plan_of(room()).size == (6.0, 4.0)
    with pytest.raises(UsageError, match="four outer walls first"):
        plan_of(dataclasses.replace(room(), interior=Rect(0.0, 0.0, 5.0, 4.0)))


def random_plan(rng):
    """Walls and furniture with all edges at multiples of 5 cm, many of them across each other."""

    def length(least, most):
        return round(0.05 * int(rng.integers(least / 0.05, most / 0.05 + 1)), 2)

    size = (length(2, 4), length(2, 4))
    walls, boxes = [], []
    for _ in range(rng.integers(4)):
        axis = int(rng.integers(2))
        at = length(0.2, size[axis] - 0.2)
        start, end = ((at, 0.0), (at, size[1])) if axis == 0 else ((0.0, at), (size[0], at))
        doors = [PlanDoor(at=length(0, size[1 - axis] - 0.5), width=0.45)] if rng.random() < 0.5 else []
        walls.append(PlanWall(start=start, end=end, thickness=0.1, doors=tuple(doors)))
    for _ in range(rng.integers(12)):
        x, y, width, depth = length(0, size[0] - 0.1), length(0, size[1] - 0.1), length(0.1, 1.5), length(0.1, 1.5)
        area = Rect(x, y, min(round(x + width, 2), size[0]), min(round(y + depth, 2), size[1]))
        boxes.append(PlanBox(area=area, heights=(0.0, 1.0) if rng.random() < 0.8 else (1.6, 2.0)))
    return Plan(size=size, walls=tuple(walls), furniture=tuple(boxes))


def flood_parts(scene, cell=0.05, radius=0.1):
    """The areas of the connected parts of the free floor, by a flood fill over small squares."""
    counts = [round(side / cell) for side in scene.interior[2:]]
    free = set()
    for i in range(counts[0]):
        for j in range(counts[1]):
            x, y = (i + 0.5) * cell, (j + 0.5) * cell
            inside = radius < x < scene.interior.x1 - radius and radius < y < scene.interior.y1 - radius
            boxes = [box for box in scene.boxes[4:].tolist() if box[4] < 1.5]
            if inside and not any(
                x0 - radius < x < x1 + radius and y0 - radius < y < y1 + radius for x0, y0, x1, y1, *_ in boxes
            ):
                free.add((i, j))
    areas = []
    while free:
        front, count = [free.pop()], 0
        while front:
            i, j = front.pop()
            count += 1
            near = {(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)} & free
            free -= near
            front += near
        areas.append(count * cell**2)
    return sorted(areas, reverse=True)


def test_free_floor_and_unreachable_parts_are_those_of_a_flood_fill():
    rng, num_parts = np.random.default_rng(0), []
    for _ in range(40):
        plan = random_plan(rng)
        scene = plan.scene()
        areas = flood_parts(scene)
        assert free_area(scene) == pytest.approx(sum(areas), abs=1e-6)
        said = [problem for problem in check_plan(plan, scene) if "cannot be reached" in problem.message]
        assert [sum(area.width * area.depth for area in problem.areas) for problem in said] == pytest.approx(areas[1:])
        num_parts.append(len(areas))
    assert {1, 2, 3} <= set(num_parts)


def test_plans_without_doubtful_gaps_look_the_same_to_slightly_larger_agents():
    rng, num_doubtful = np.random.default_rng(1), 0
    for _ in range(120):
        plan = random_plan(rng)
        # Not multiples of 5 cm any more, so that some gaps are near the width of the agent and others exactly that.
        shift = rng.choice([0.0, 0.002, 0.004, 0.006, 0.02, 0.04], len(plan.furniture))
        areas = [
            Rect(b.area.x0 + s, b.area.y0, b.area.x1 + s, b.area.y1) for b, s in zip(plan.furniture, shift, strict=True)
        ]
        boxes = [dataclasses.replace(box, area=area) for box, area in zip(plan.furniture, areas, strict=True)]
        plan = dataclasses.replace(plan, furniture=tuple(boxes))
        scene = plan.scene()
        if any("as wide as the agent" in problem.message for problem in check_plan(plan, scene)):
            num_doubtful += 1
            continue
        counts = set()
        for radius in (0.098, 0.1, 0.102):
            grown = [Rect(*row).grown(radius) for row in scene.obstacles.tolist()]
            counts.add(len(Cells.of(scene.interior.grown(-radius), grown).parts()))
        assert len(counts) == 1
    assert 20 < num_doubtful < 100


def test_a_gap_that_a_wall_fills_is_no_gap():
    """Furniture on both sides of a wall as thick as the agent is wide."""
    wall = {"from": [2, 0], "to": [2, 3], "thickness": 0.2, "doors": [{"at": 2, "width": 0.9}]}
    sides = [{"area": [1, 0.5, 1.9, 1.5], "heights": [0, 1]}, {"area": [2.1, 0.5, 3, 1.5], "heights": [0, 1]}]
    assert problems({**ROOM, "walls": [wall], "furniture": sides}) == []
    assert len(problems({**ROOM, "furniture": sides})) == 1


def with_doors(*doors, **wall):
    return {**ROOM, "walls": [{**WALL, "doors": list(doors), **wall}]}


def with_box(**box):
    return {**ROOM, "furniture": [{**BOX, **box}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "[] is not allowed; allowed: an object"),
        ({}, "version: the field is missing; needed: version, size"),
        ({**ROOM, "version": 2}, "version: 2 is not allowed; allowed: 1"),
        ({**ROOM, "version": True}, "version: true is not allowed"),
        ({"version": 1}, "size: the field is missing"),
        ({**ROOM, "size": [4]}, "size: [4] is not allowed; allowed: a list of 2 numbers"),
        ({**ROOM, "size": [4, 0.1]}, "size: [4, 0.1] is not allowed; allowed: a list of 2 numbers from 0.5 to 100"),
        ({**ROOM, "size": [4, float("nan")]}, "size: [4, NaN] is not allowed"),
        ({**ROOM, "size": [4, 10**400]}, "size: [4, 1000"),
        ({**ROOM, "wals": []}, "wals: there is no such field, did you mean 'walls'?; allowed: version, size"),
        ({**ROOM, "walls": {}}, "walls: {} is not allowed; allowed: a list"),
        ({**ROOM, "walls": [3]}, "walls[0]: 3 is not allowed; allowed: an object"),
        ({**ROOM, "walls": [{"from": [0, 0]}]}, "walls[0].to: the field is missing; needed: from, to"),
        ({**ROOM, "walls": [{**WALL, "to": [3, 3]}]}, "walls[0].to: the wall from [2.0, 0.0] to [3.0, 3.0] is"),
        ({**ROOM, "walls": [{**WALL, "to": [2, 0]}]}, "walls[0].to: the wall from [2.0, 0.0] to [2.0, 0.0] has"),
        ({**ROOM, "walls": [{**WALL, "thickness": 0}]}, "walls[0].thickness: 0 is not allowed; allowed: a number"),
        ({**ROOM, "walls": [{**WALL, "color": [0, 0, 256]}]}, "walls[0].color: [0, 0, 256] is not allowed"),
        ({**ROOM, "walls": [{**WALL, "to": [2, 4]}]}, "walls[0] at (2.00, 2.00): its area [1.95, 0, 2.05, 4] is not"),
        ({**ROOM, "outer_walls": {"colour": 1}}, "outer_walls.colour: there is no such field, did you mean 'color'"),
        (with_doors({"at": 1}), "walls[0].doors[0].width: the field is missing"),
        (with_doors({**DOOR, "height": 1}), "walls[0].doors[0].height: 1 is not allowed; allowed: a number from 1.5"),
        (with_doors({**DOOR, "at": 2.5}), "walls[0].doors[0] at (2.00, 2.75): the door from 2.5 to 3.4 m is not in"),
        (with_doors({**DOOR, "at": -0.5}), "walls[0].doors[0] at (2.00, 0.20): the door from -0.5 to 0.4 m is not"),
        (with_doors({**DOOR, "at": 5}), "walls[0].doors[0] at (2.00, 1.50): the door from 5 to 5.9 m is not in"),
        (with_doors({"at": 0, "width": 4}), "the door is 4 m wide; allowed: up to 3 m, the length of its wall"),
        (
            with_doors({"at": 1, "width": 0.15}),
            "the door is 0.15 m wide; allowed: more than 0.2 m, the width of the agent",
        ),
        (with_doors(DOOR, {"at": 1.5, "width": 1}), "walls[0].doors[1] at (2.00, 1.70): the door overlaps the door"),
        (with_doors({"at": 1, "width": 0.203}), "walls[0] at (2.00, 1.10): a gap of 0.203 m to walls[0] is as wide"),
        (
            {**ROOM, "walls": [{**WALL, "doors": [DOOR]}, {"from": [0, 1.4], "to": [3, 1.4]}]},
            "walls[1] at (2.00, 1.40): it stands in the door walls[0].doors[0]",
        ),
        (
            with_box(area=[1, 1, 1, 2]),
            "furniture[0].area: [1, 1, 1, 2] is not allowed; allowed: [x0, y0, x1, y1], where",
        ),
        (with_box(heights=[1, 1]), "furniture[0].heights: [1.0, 1.0] is not allowed; allowed: [low, high] with 0"),
        (with_box(heights=[0, 3]), "furniture[0].heights: [0.0, 3.0] is not allowed"),
        (with_box(heights="low"), 'furniture[0].heights: "low" is not allowed; allowed: a list of 2 numbers'),
        (with_box(category="bad"), 'furniture[0].category: "bad" is not allowed; allowed: table, block'),
        (with_box(area=[3.5, 1, 4.5, 2]), "furniture[0] at (4.00, 1.50): its area [3.5, 1, 4.5, 2] is not within"),
        (with_box(area=[1, 0.2, 2, 2]), "furniture[0] at (1.50, 0.10): a gap of 0.200 m to the outer wall at low y is"),
        (with_box(area=[0, 0, 4, 3]), "there is no free floor"),
        (
            {**with_doors(DOOR), "furniture": [{"area": [1.5, 1.5, 2.5, 2.5], "heights": [0, 1]}]},
            "furniture[0] at (2.00, 1.70): it stands in the door walls[0].doors[0]",
        ),
        ({**ROOM, "rooms": [{"area": [0, 0, 9, 3]}]}, "rooms[0] at (4.50, 1.50): its area"),
        ({**ROOM, "rooms": [{"area": [0, 0, 4, 3], "name": 7}]}, "rooms[0].name: 7 is not allowed; allowed: a text"),
        (
            {**ROOM, "rooms": [{"area": [0, 0, 4, 3], "name": "\ud800"}]},
            'rooms[0].name: "\\ud800" is not allowed; allowed: a text of printable characters',
        ),
        ({**ROOM, "\ud800": 1}, '"\\ud800": there is no such field'),
        ({**ROOM, "size": [600, 400]}, "size: [600, 400] is not allowed; allowed: a list of 2 numbers from 0.5"),
        (with_doors({"at": 2.9999999, "width": 0.5}), "walls[0].doors[0] at (2.00, 1.50): the door from 3 to 3.5"),
        (
            with_doors({"at": -0.4999999, "width": 0.5}),
            "walls[0].doors[0] at (2.00, 1.50): the door from -0.5 to 1e-07",
        ),
        (with_doors({"at": 2, "width": 0.9999999}, {"at": 5, "width": 1}), "walls[0].doors[1] at (2.00, 1.50): the"),
    ],
)
def test_a_problem_is_one_line_with_its_place(content, message):
    found = problems(content)
    assert all("\n" not in line and ("; allowed" in line or "; needed: " in line) for line in found)
    matching = [line for line in found if message in line]
    assert len(matching) == 1, found
    if message.startswith(("walls", "furniture[0] ", "rooms", "size", "version", "outer")):
        assert matching[0].startswith(message)


def test_an_unreachable_part_has_a_place_and_an_area():
    (line,) = problems({**ROOM, "walls": [{**WALL, "from": [3, 0], "to": [3, 3]}]})
    assert line.startswith(
        "(3.52, 1.50): 2.1 m² of free floor cannot be reached from the largest part; allowed: a door"
    )


def test_too_many_boxes():
    boxes = [{"area": [0.5 * i, 0, 0.5 * i + 0.1, 0.1], "heights": [0, 1]} for i in range(100)]
    found = problems({"version": 1, "size": [60, 3], "furniture": boxes})
    assert "the plan has 100 other boxes, which are furniture and walls above doors; allowed: 64 or fewer" in found
    assert "the plan has 100 obstacles; allowed: 72 or fewer" in found
    assert any("corners where shortest paths can bend; allowed: 160" in line for line in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 1,\n "size" [4, 3]}', "no valid JSON: line 2, column 9: "),
        ('{"version": 1, "version": 1}', "an object has the field 'version' twice"),
        ("[" * 100_000, "the file cannot be read: "),
    ],
)
def test_files_that_are_no_json(text, message, plan_file):
    plan, (problem,) = read_plan(plan_file(text))
    assert plan is None and str(problem).startswith(("no valid", "the file cannot")) and message in str(problem)


def test_files_in_other_encodings(plan_file):
    file = plan_file(ROOM)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_plan(file)[1] == []
    file.write_bytes(b"\xff\xfe{}")
    assert "cannot be read" in str(read_plan(file)[1][0])


def test_pieces_of_furniture_decide_the_tier(plan_file):
    """Wardrobes up to the ceiling count as walls among the boxes."""
    chests = [{"category": "chest", "area": [x, 0, x + 0.5, 0.5], "heights": [0, 1]} for x in range(5)]
    wardrobes = [{"category": "wardrobe", "area": [x, 3, x + 0.5, 3.5], "heights": [0, 2.5]} for x in range(2)]
    file = plan_file({"version": 1, "size": [5, 3.5], "furniture": chests + wardrobes})
    assert tier_of([sound_scene(file)]) == "full"
    assert plan_bank(file).num_scenes == 1


def test_a_plan_too_small_for_an_episode():
    plan, _ = parse_plan({"version": 1, "size": [0.8, 0.8]})
    assert "no goal was found at 1 to 10 m of path from a start; allowed: a larger" in str(
        check_episodes(plan.scene())[0]
    )


def test_the_tier_holds_boxes_and_distances():
    studio, flat = (sound_scene(file) for file in (EXAMPLES["studio"], EXAMPLES["flat"]))
    assert (tier_of([studio]), tier_of([flat]), tier_of([studio, flat])) == ("small", "full", "full")
    hall, _ = parse_plan({"version": 1, "size": [20, 3]})
    assert longest_path(hall.scene()) == pytest.approx(np.hypot(19.8, 2.8), abs=1e-3)
    assert tier_of([hall.scene()]) == "full"


@pytest.mark.parametrize("name", ["studio", "flat"])
def test_the_oracle_walks_through_the_examples(name):
    options = EvaluationOptions(env=f"pointnav?plans={EXAMPLES[name]}", episodes=32)
    _, result = evaluate_baseline("oracle", options)
    assert result["success"] == 1.0 and result["spl"] > 0.95


@pytest.mark.parametrize("name", ["studio", "flat"])
def test_an_episode_as_a_gymnasium_environment(name):
    env = gymnasium.make("paceline/PointNav-v0", bank=plan_bank(EXAMPLES[name]), sensors="depth+rgb", resolution=16)
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    for action in (2, 1, 3, 1, 0):
        obs, _, terminated, _, info = env.step(action)
        assert env.observation_space.contains(obs)
    assert terminated and info["steps"] == 5 and info["geodesic"] >= 1.0


def test_a_folder_of_plans_in_a_pool(plan_file, tmp_path):
    for name in EXAMPLES:
        plan_file(plan_text(name), f"{name}.json")
    with make_pool(f"pointnav?plans={tmp_path}&resolution=8", PoolConfig(num_envs=6), seed=1) as pool:
        assert pool.recv(None).obs["depth"].shape == (6, 1, 8, 8)
    bank = plan_bank(str(tmp_path))
    assert bank.num_scenes == len(EXAMPLES)
    stored, drawn = (sorted(scene.boxes.tolist()) for scene in (bank.scene(0), sound_scene(EXAMPLES["flat"])))
    np.testing.assert_allclose(stored, drawn, atol=1e-6)


def test_a_state_belongs_to_the_plans(plan_file):
    env = f"pointnav?plans={plan_file(ROOM)}&resolution=8"
    played, same = (resolve(env).single.make(0) for _ in range(2))
    played.reset(seed=1)
    same.set_state(played.get_state())
    plan_file({**ROOM, "size": [4, 3.5]})
    with pytest.raises(UsageError, match="saved over the scenes"):
        resolve(env).single.make(0).set_state(played.get_state())


def test_an_id_with_plans_names_their_bank(plan_file):
    env = f"pointnav?plans={plan_file(plan_text('studio'))}&resolution=8"
    assert resolve(env).label == env  # a run stores the plans, and not the file in the cache
    for config in (resolve(env).make.config, resolve(env).single.make.config, env_config(env)):
        assert config.resolution == 8 and load_bank(config).label == plan_bank(EXAMPLES["studio"]).label
    assert resolve(f"pointnav?plans={EXAMPLES['flat']}").make.config.tier == "full"


def test_wrong_plans_are_refused_before_anything_starts(plan_file, tmp_path):
    (tmp_path / "empty").mkdir()
    broken = plan_file(with_doors({**DOOR, "at": 2.5}, {**DOOR, "at": 5}))
    for plans, message in (
        ("nowhere", "there is no floor plan '.*nowhere'; allowed: a .json file, or a folder"),
        (tmp_path / "empty", "has no .json files"),
        (broken, r"home.json': walls\[0\].doors\[0\] at \(2.00, 2.75\): .* \(and 1 more: `paceline plan check"),
    ):
        with pytest.raises(UsageError, match=message):
            resolve(f"pointnav?plans={plans}")
    with pytest.raises(UsageError, match="plans and bank_file are both given"):
        resolve("pointnav?plans=a.json&bank_file=b")


@pytest.mark.parametrize(
    ("env", "unread"),
    [
        ("pointnav:small?plans=home", "tier"),
        ("pointnav?plans=home&split=val", "split"),
        ("pointnav?scenes=4&plans=home", "scenes"),
        ("pointnav?bank_file=scenes.safetensors&bank_seed=1", "bank_seed"),
    ],
)
def test_options_that_plans_replace_are_refused(env, unread):
    with pytest.raises(UsageError, match=f"^{unread} has no effect in '.*', because .* names the scenes; allowed:"):
        resolve(env)


def test_a_gymnasium_environment_of_plans_has_no_tier():
    with pytest.raises(UsageError, match="tier has no effect in 'paceline/PointNav-v0', because plans names"):
        gymnasium.make("paceline/PointNav-v0", plans=str(EXAMPLES["flat"]), tier="full")


def test_plans_have_no_splits():
    options = EvaluationOptions(env=f"pointnav?plans={EXAMPLES['studio']}", episodes=1, split="test")
    with pytest.raises(UsageError, match="^--split test has no effect in 'pointnav.plans=.*allowed: an --env without"):
        evaluate_baseline("oracle", options)


@pytest.mark.parametrize(("names", "count"), [(["flat"], "1 floor plan"), (["flat", "studio"], "2 floor plans")])
def test_results_name_the_plans(names, count, plan_file, tmp_path, capsys):
    for name in names:
        plan_file(plan_text(name), f"{name}.json")
    env = f"pointnav?plans={tmp_path}&resolution=8&max_episode_steps=20"
    assert paceline(["eval", "--agent", "random", "--env", env, "--episodes", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["plans"], result["split"], result["scenes"]) == (str(tmp_path), None, len(names))
    shown = Console(width=200, file=io.StringIO())
    shown.print(EVALUATOR.table(result))
    assert shown.file.getvalue().startswith(f"1 episode of {count} from {tmp_path}: random\n")


@pytest.mark.parametrize(
    ("env", "stored"),
    [
        ("pointnav?plans=home&sensors=depth+rgb", "pointnav?plans={}/home&sensors=depth+rgb"),
        ("flee?resolution=8&plans=../home", "flee?resolution=8&plans={}/home"),
        ("objectnav?bank_file='2024'", "objectnav?bank_file={}/2024"),
        ("pointnav?plans=~/home", "pointnav?plans={}/home"),
        ("pointnav:small?sensors=depth%2Brgb", "pointnav:small?sensors=depth%2Brgb"),
        ("pointnav?plans=", "pointnav?plans="),
    ],
)
def test_a_run_and_an_evaluation_remember_whole_paths(env, stored, tmp_path, monkeypatch):
    """So that another folder's plans are not used without a word."""
    folder = tmp_path / "inner" if ".." in env else tmp_path
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path.resolve()))
    stored = stored.format(tmp_path.resolve())
    assert Session(Config(env=env), tmp_path / "run").config.env == stored
    assert EvaluationOptions(env=env).env == stored


def test_a_population_remembers_whole_paths(plan_file, tmp_path, monkeypatch):
    plan_file(ROOM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.cli.population._train", lambda *_: 0)
    words = ["--env", "pointnav?plans=home.json&resolution=36", "--pbt.every", "100", "--run-dir", "all"]
    assert paceline(["population", *words]) == 0
    stored = Config.load(tmp_path / "all" / "config.json").env
    assert stored == f"pointnav?plans={tmp_path.resolve()}/home.json&resolution=36"


def test_a_run_whose_plans_were_edited_says_so(plan_file, tmp_path, monkeypatch, caplog):
    (tmp_path / "home").mkdir()
    plan_file(ROOM, "home/home.json")
    monkeypatch.chdir(tmp_path)
    config = Config(
        env="pointnav?plans=home&sensors=blind&max_episode_steps=5",
        steps=16,
        rollout_steps=8,
        device="cpu",
        pool=PoolConfig(num_envs=2),
        policy=PolicyConfig(hidden=(8,)),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )
    train(config, tmp_path / "run")
    assert scenes_label_of(tmp_path / "run") == plan_bank("home").label
    (tmp_path / "other" / "home").mkdir(parents=True)
    plan_file({**ROOM, "size": [3, 3]}, "other/home/home.json")
    monkeypatch.chdir(tmp_path / "other")
    same = evaluate(tmp_path / "run", episodes=1)
    assert same["scenes_label"] == scenes_label_of(tmp_path / "run") and same["plans"] == str(tmp_path / "home")
    assert "have changed since" not in caplog.text
    plan_file({**ROOM, "size": [3, 3]}, "home/home.json")
    edited = evaluate(tmp_path / "run", episodes=1)
    assert edited["scenes_label"] == plan_bank("home").label != same["scenes_label"]
    assert caplog.text.count("have changed since") == 1
    caplog.clear()
    evaluate(tmp_path / "run", episodes=1, env="pointnav?plans=home&sensors=blind")
    assert "have changed since" not in caplog.text, "these are not the run's own"


def test_a_result_of_a_baseline_names_the_whole_environment(plan_file, capsys):
    env = f"pointnav?plans={plan_file(ROOM)}&resolution=8&max_distance=2.0"
    assert paceline(["eval", "--agent", "oracle", "--env", env, "--episodes", "1", "--json"]) == 0
    assert env_config(json.loads(capsys.readouterr().out)["env"]) == env_config(env)


def test_the_id_of_plans_names_no_other_scenes(plan_file):
    env = f"pointnav?plans={plan_file(ROOM)}&resolution=8"
    assert env_id_of(env_config(env)) == env


def test_plans_without_a_cache(plan_file, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    make = resolve(f"pointnav?plans={plan_file(ROOM)}").make
    assert make(2).bank.num_scenes == 1


def test_boxes_that_touch_are_one_piece():
    def box(category: str, x: float) -> PlanBox:
        return PlanBox(area=Rect(x, 1.0, x + 0.5, 2.0), heights=(0.0, 0.5), category=category)

    boxes = (box("bed", 0.0), box("bed", 0.5), box("bed", 2.0), box("", 2.5), box("bed", 3.0), box("sofa", 3.5))
    plan = Plan(size=(6.0, 4.0), furniture=boxes)
    assert plan.scene().furniture == (
        Piece("bed", (4, 5)),
        Piece("bed", (6,)),
        Piece("bed", (8,)),
        Piece("sofa", (9,)),
    )


def test_counters_along_three_walls_are_three_pieces():
    areas = ([0, 0, 6, 0.6], [5.4, 0.6, 6, 5], [0, 4.4, 5.4, 5])
    counters = tuple(PlanBox(area=Rect(*area), heights=(0.0, 0.9), category="counter") for area in areas)
    scene = Plan(size=(6.0, 5.0), furniture=counters).scene()
    np.testing.assert_array_equal(Objects.of(scene).footprints, areas)


def test_a_back_and_a_leg_belong_to_their_piece():
    areas = ([0, 0, 2, 0.9], [0, 0, 2, 0.2], [3, 1, 4, 2], [3.4, 1.4, 3.6, 1.6])
    boxes = [
        PlanBox(area=Rect(*area), heights=(0.0, 0.5), category=kind)
        for area, kind in zip(areas, ["sofa", "sofa", "table", "table"], strict=True)
    ]
    assert Plan(size=(6.0, 4.0), furniture=tuple(boxes)).scene().furniture == (
        Piece("sofa", (4, 5)),
        Piece("table", (6, 7)),
    )


def test_objects_of_plans_are_goals_of_objectnav():
    env = gymnasium.make("paceline/ObjectNav-v0", plans=str(EXAMPLES["flat"]), resolution=8)
    kinds = {piece.kind for piece in sound_scene(EXAMPLES["flat"]).furniture}
    for seed in range(6):
        obs, _ = env.reset(seed=seed)
        assert CATEGORIES[int(obs["category"].argmax())] in kinds


def test_a_run_on_plans_is_evaluated_there(plan_file):
    config = resolve(f"pointnav?plans={plan_file(ROOM)}&resolution=8").make.config
    assert split_config(config) == config
    assert split_config(config, "test").plans == "" and split_config(config, "test").split == "test"


def test_the_checker_prints_problems_or_a_summary(plan_file, tmp_path, capsys):
    picture = tmp_path / "home.png"
    good = plan_file(plan_text("flat"))
    assert paceline(["plan", "check", str(good), "--picture", str(picture)]) == 0
    assert re.fullmatch(
        r".*home.json: 3 rooms \(living room, kitchen, bedroom\), \d+\.\d m² of free floor, 17 obstacles, "
        r"longest shortest path \d+\.\d m, tier full\n",
        capsys.readouterr().out,
    )
    assert not (np.array(Image.open(picture)) == MARK).all(2).any()
    broken = plan_file({**ROOM, "walls": [WALL]})
    with pytest.raises(UsageError, match="1 of 1 floor plan cannot be used"):
        paceline(["plan", "check", str(broken), "--picture", str(picture)])
    assert "cannot be reached" in capsys.readouterr().out
    image = np.array(Image.open(picture)).astype(int)
    red = (image[..., 0] - image[..., 1] > 100).mean(0)
    assert (red > 0.5).mean() == pytest.approx(1.65 / 4.4, abs=0.05)  # one of the two halves


def test_a_summary_counts_in_plain_english(plan_file, capsys):
    rooms = [{"area": [0, 0, 4, 3]}]
    assert paceline(["plan", "check", str(plan_file({**ROOM, "rooms": rooms, "furniture": [BOX]}))]) == 0
    assert "home.json: 1 room, " in (text := capsys.readouterr().out) and ", 1 obstacle, " in text


def test_the_checker_names_each_plan(plan_file, capsys):
    files = [
        plan_file(ROOM, "a.json"),
        plan_file([], "b.json"),
        plan_file({"version": 1, "size": [0.8, 0.8]}, "c.json"),
    ]
    with pytest.raises(UsageError, match="2 of 3"):
        paceline(["plan", "check", *map(str, files)])
    names = [Path(line.partition(": ")[0]).name for line in capsys.readouterr().out.splitlines()]
    assert names == ["a.json", "b.json", "c.json"]
    with pytest.raises(UsageError, match="--picture draws one plan, and 3 were given"):
        paceline(["plan", "check", *map(str, files), "--picture", "x.png"])
    for picture in ("x.jpg", "nowhere/x.png"):
        with pytest.raises(UsageError, match=f"--picture {picture} cannot be written; allowed: a .png file"):
            paceline(["plan", "check", str(files[0]), "--picture", picture])
    with pytest.raises(UsageError, match="no floor plan was given"):
        paceline(["plan", "check"])


@pytest.mark.parametrize("what", ["studio", "flat", "small:3"])
def test_exported_plans_are_sound(what, tmp_path, capsys):
    file = tmp_path / "new.json"
    assert paceline(["plan", "export", what, str(file)]) == 0
    assert len(free_cells(sound_scene(file)).parts()) == 1
    with pytest.raises(UsageError, match="new.json exists; allowed: a new file"):
        paceline(["plan", "export", what, str(file)])


def test_hidden_files_of_a_folder_are_no_plans(plan_file, tmp_path):
    """macOS writes ._home.json beside home.json on other file systems."""
    plans = [plan_file(ROOM, name) for name in ("OTHER.JSON", "home.json")]
    plan_file("\0\5\x16\7", "._home.json")
    plan_file("about", "read.me")
    assert plan_files(tmp_path) == plans


def test_files_that_cannot_be_written_or_read_are_one_line(plan_file, tmp_path):
    plan, folder, long = str(plan_file(ROOM)), tmp_path / "map.png", "a" * 300
    folder.mkdir()
    for command, message in (
        (["check", plan, "--picture", str(folder)], r"--picture .*map.png cannot be written; allowed: a .png file"),
        (["check", plan, "--picture", str(tmp_path / f"{long}.png")], "a.png cannot be written: File name too long"),
        (["check", str(tmp_path / long)], "there is no floor plan '.*a'; allowed: a .json file, or a folder"),
        (["export", "flat", str(tmp_path / f"{long}.json")], "a.json cannot be written: File name too long"),
        (["export", "flat", "/proc/x.json"], "^/proc/x.json cannot be written: No such file or directory$"),
    ):
        with pytest.raises(PacelineError, match=message):
            paceline(["plan", *command])


def test_exports_of_unknown_plans(tmp_path):
    with pytest.raises(
        UsageError, match="there is no floor plan 'studi', did you mean 'studio'.*allowed: flat, studio"
    ):
        paceline(["plan", "export", "studi", str(tmp_path / "new.json")])
    with pytest.raises(UsageError, match="does not exist"):
        paceline(["plan", "export", "studio", str(tmp_path / "no" / "new.json")])
