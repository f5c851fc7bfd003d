"""Flee: distances from the start against slow shortest paths, and the reward that follows from them."""

import math

import numpy as np
import pytest
import torch

from paceline.sims.navigation.config import FleeConfig
from paceline.sims.navigation.evaluation.baselines import play_baseline
from paceline.sims.navigation.evaluation.flee import EVALUATION
from paceline.sims.navigation.layout import FORWARD, STOP
from paceline.sims.navigation.scenes.farthest import floor_corners
from paceline.sims.navigation.scenes.free_space import NODE, is_free
from paceline.sims.navigation.scenes.geodesic import Graph, shortest_path
from paceline.sims.navigation.simulator import Navigation
from tests.sims.navigation.rooms import bank_of_one, divided_room, random_steps, room


def length(path):
    return float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum())


def test_the_distance_is_that_of_the_shortest_path_to_the_start(small_bank, full_bank):
    for bank in (small_bank, full_bank):
        simulator = Navigation(6, "cpu", FleeConfig(sensors="blind", max_episode_steps=40), bank=bank)
        simulator.reset(0)
        starts = simulator.poses[:, :2]
        for turn, _ in enumerate(random_steps(simulator, 39, stop=0.0)):
            if turn % 13:
                continue
            for stream in range(6):
                scene = bank.scene(int(simulator.scenes[stream]))
                here = tuple(simulator.last_poses[stream, :2].tolist())
                want = length(shortest_path(scene, here, tuple(starts[stream].tolist())))
                got = float(simulator.last_measures["distance_from_start"][stream])
                assert got == pytest.approx(want, abs=1e-3)


def test_the_return_is_five_times_the_share_at_the_end(small_bank):
    simulator = Navigation(8, "cpu", FleeConfig(sensors="blind", max_episode_steps=30), bank=small_bank)
    simulator.reset(1)
    total, num_ends = torch.zeros(8), 0
    for step in random_steps(simulator, 120):
        total += step.reward
        ended = step.terminated | step.truncated
        fled = simulator.last_measures["fled"]
        torch.testing.assert_close(total[ended], 5.0 * fled[ended], rtol=0, atol=2e-5)
        assert (fled >= 0).all() and (fled <= 1.01).all()
        total[ended], num_ends = 0.0, num_ends + int(ended.sum())
    assert num_ends > 16


def test_an_episode_by_hand():
    """In an empty room of 6 x 4 m, the farthest place from (1, 2) is a corner on the right."""
    bank = bank_of_one(room(), start=(3.0, 3.0), heading=0.0, goal=(1.0, 2.0))
    far = math.hypot(5.0 - NODE, 2.0 - NODE)
    bank.farthest[0, 0] = torch.tensor([6.0 - NODE, NODE, far])
    simulator = Navigation(1, "cpu", FleeConfig(sensors="blind"), bank=bank)
    simulator.reset(0)
    assert simulator.poses[0].tolist() == [1.0, 2.0, 0.0]
    for action in (FORWARD, FORWARD):
        step = simulator.step(torch.tensor([action]))
        assert float(step.reward) == pytest.approx(5 * 0.25 / far, abs=1e-5)
    step = simulator.step(torch.tensor([STOP]))
    assert bool(step.terminated) and float(step.reward) == 0.0
    measures = {name: float(values[0]) for name, values in simulator.last_measures.items()}
    assert measures == pytest.approx(
        {
            "fled": 0.5 / far,
            "distance_from_start": 0.5,
            "largest_distance": far,
            "collisions": 0,
            "path_length": 0.5,
            "steps": 3,
        },
        abs=1e-5,
    )
    assert set(step.obs) == {"previous_action"}


def test_no_place_is_farther_than_the_farthest(small_bank, full_bank):
    """Against all places of a fine grid."""
    for bank, spacing in ((small_bank, 0.07), (full_bank, 0.31)):
        for number in range(0, bank.num_scenes, 3):
            scene = bank.scene(number)
            x0, y0, x1, y1 = scene.interior
            x, y = np.meshgrid(np.arange(x0, x1, spacing), np.arange(y0, y1, spacing))
            points = np.column_stack([x.ravel(), y.ravel()])
            points = points[is_free(scene, points, NODE)]
            at = int(bank.episode_goals[number, 0])
            goal = bank.episodes[number, 0, 3:5].double().numpy()
            distances = Graph.of(scene).between_points(points, goal[None])[:, 0]
            x, y, farthest = bank.farthest[number, at].tolist()
            assert distances[np.isfinite(distances)].max() <= 1.005 * farthest
            assert length(shortest_path(scene, tuple(goal), (x, y))) == pytest.approx(farthest, abs=1e-3)


def test_baselines_of_flee(small_bank):
    config = FleeConfig(split="val", sensors="blind", max_episode_steps=150)
    fled = {
        name: play_baseline(EVALUATION, name, config, 24, num_envs=24, bank=small_bank)["fled"]
        for name in ("random", "forward", "oracle")
    }
    assert fled["oracle"] > 0.97 > 0.8 > max(fled["random"], fled["forward"])


def test_corners_of_the_floor():
    """A room with a wall in it: four corners of the room, two where the wall begins, and its two free ends."""
    got = {tuple(point) for point in np.round(floor_corners(divided_room()), 2).tolist()}
    assert got == {(0.1, 0.1), (0.1, 3.9), (5.9, 0.1), (5.9, 3.9), (2.8, 0.1), (3.2, 0.1), (2.8, 3.1), (3.2, 3.1)}
