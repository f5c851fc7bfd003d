"""Baselines, the oracle as a check of the whole simulator, and the fixed list of episodes."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.evaluation.baselines import play_baseline
from paceline.sims.navigation.evaluation.episode_list import fixed_episodes, listed_episodes, play
from paceline.sims.navigation.evaluation.map_and_plan import CELL, REACH, Grid, Planner, a_star
from paceline.sims.navigation.evaluation.measures import binned, summarize
from paceline.sims.navigation.evaluation.pointnav import EVALUATION
from paceline.sims.navigation.layout import FORWARD, LEFT, RIGHT, STOP
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation
from tests.sims.navigation.rooms import room

SMALL = PointNavConfig(split="val", sensors="blind")
BRIEF = PointNavConfig(split="val", sensors="blind", max_episode_steps=120)
"""Enough steps for successful episodes, and short failures."""


def test_the_oracle_is_almost_perfect(small_bank):
    result = play_baseline(EVALUATION, "oracle", SMALL, 60, bank=small_bank)
    assert result["spl"] >= 0.97
    assert result["success"] == 1.0


def test_the_oracle_is_almost_perfect_in_large_flats(full_bank):
    result = play_baseline(
        EVALUATION, "oracle", PointNavConfig(tier="full", sensors="blind"), 8, num_envs=8, bank=full_bank
    )
    assert result["spl"] >= 0.97
    assert result["success"] == 1.0


def test_knowing_more_is_better(small_bank):
    spl = {
        name: play_baseline(EVALUATION, name, BRIEF, 36, num_envs=36, bank=small_bank)["spl"]
        for name in ("random", "forward", "goal-follower", "oracle")
    }
    assert spl["oracle"] > spl["goal-follower"] + 0.1
    assert spl["goal-follower"] > spl["random"] + 0.1
    assert spl["forward"] < 0.1


def test_mapping_and_planning_beats_following_the_goal(small_bank):
    seeing = replace(BRIEF, sensors="depth", resolution=48)
    mapped, followed = (
        play_baseline(EVALUATION, name, config, 24, num_envs=24, bank=small_bank)["spl"]
        for name, config in (("map-and-plan", seeing), ("goal-follower", BRIEF))
    )
    assert mapped > 0.75
    assert mapped > followed + 0.1


def test_simple_agents_by_hand(small_bank):
    simulator = Navigation(4, "cpu", PointNavConfig(sensors="blind"), bank=small_bank)
    near, ahead, left, right = (0.19, 1.0, 0.0), (2.0, 1.0, 0.0), (2.0, 0.0, 1.0), (2.0, 0.0, -1.0)
    obs = {"goal": torch.tensor([near, ahead, left, right])}
    began = torch.zeros(4, dtype=torch.bool)
    agents = {name: EVALUATION.baselines[name].make(simulator, 0) for name in ("forward", "goal-follower", "random")}
    act = {name: agents[name].act(obs, began).tolist() for name in ("forward", "goal-follower")}
    assert act == {"forward": [STOP, FORWARD, FORWARD, FORWARD], "goal-follower": [STOP, FORWARD, LEFT, RIGHT]}
    draws = torch.stack([agents["random"].act(obs, began) for _ in range(200)])
    assert (draws[:, 0] == STOP).all()
    assert set(draws[:, 1:].flatten().tolist()) == {FORWARD, LEFT, RIGHT}


def test_simple_agents_stop_within_the_distance_of_success(small_bank):
    simulator = Navigation(2, "cpu", PointNavConfig(sensors="blind", success_distance=0.1), bank=small_bank)
    obs = {"goal": torch.tensor([(0.15, 1.0, 0.0), (0.09, 1.0, 0.0)])}
    agent = EVALUATION.baselines["goal-follower"].make(simulator, 0)
    assert agent.act(obs, torch.zeros(2, dtype=torch.bool)).tolist() == [FORWARD, STOP]


def test_mapping_and_planning_reaches_goals_nearer_than_a_step(small_bank):
    config = replace(BRIEF, sensors="depth", resolution=32, success_distance=0.1)
    assert play_baseline(EVALUATION, "map-and-plan", config, 16, num_envs=16, bank=small_bank)["success"] > 0.8


@pytest.mark.parametrize(("success", "stop"), [(0.01, 0.005), (0.02, 0.01), (0.1, 0.09), (0.2, 0.19), (1.0, 0.19)])
def test_mapping_and_planning_stops_within_the_distance_of_success_and_not_only_at_the_very_goal(
    small_bank, success, stop
):
    config = PointNavConfig(sensors="depth", resolution=8, success_distance=success)
    agent = EVALUATION.baselines["map-and-plan"].make(Navigation(2, "cpu", config, bank=small_bank), 0)
    obs = {"depth": torch.ones(2, 1, 8, 8), "goal": torch.tensor([(stop - 1e-4, 1.0, 0.0), (stop + 1e-4, 1.0, 0.0)])}
    actions = agent.act(obs, torch.ones(2, dtype=torch.bool)).tolist()
    assert actions[0] == STOP and actions[1] != STOP


@pytest.mark.parametrize("left", [0.02, 0.1])
@pytest.mark.parametrize("ahead", [2.0, 2.06, 2.12, 2.18])
def test_a_goal_nearer_than_a_step_beside_a_wall_is_reached(left, ahead):
    """The agent cannot step to its left. It does not see the wall there."""
    planner, x, y, heading = Planner(math.radians(10), 0.25, stop_distance=0.04), 0.0, 0.0, 0.0
    far = np.ones((1, 32, 32), np.float32)
    planner.start(np.array([ahead, 1.0, 0.0]))
    for _ in range(500):
        angle = math.atan2(-y, ahead - x) - heading
        action = planner.act(far, np.array([math.hypot(ahead - x, y), math.cos(angle), math.sin(angle)]))
        if action == STOP:
            break
        heading += {LEFT: 1, RIGHT: -1}.get(action, 0) * math.radians(10)
        goes = 0.25 * (action == FORWARD)
        if y + goes * math.sin(heading) <= left:
            x, y = x + goes * math.cos(heading), y + goes * math.sin(heading)
    assert math.hypot(ahead - x, y) <= 0.041


def test_the_map_holds_the_largest_scene(small_bank):
    assert Grid.of(small_bank) == Grid()
    grid = Grid.of(SceneBank.of_scenes([room(), room(width=60.0, depth=11.0)], "full"))
    corners = 61.0 * np.array([[1.0, 0.0], [0.0, -1.0]])
    np.testing.assert_allclose(grid.middles(grid.cell_of(corners)), corners, atol=CELL)
    np.testing.assert_allclose(grid.middles(grid.cell_of(np.zeros(2))), 0.0, atol=1e-9)


def test_every_listed_episode_is_played_exactly_once(small_bank):
    simulator = Navigation(4, "cpu", PointNavConfig(sensors="blind", max_episode_steps=40), bank=small_bank)
    scenes, episodes = fixed_episodes(small_bank, 30)
    rng = torch.Generator().manual_seed(0)
    begun = []

    def act(obs, began):
        for stream in began.nonzero()[:, 0].tolist():
            begun.append((int(simulator.scenes[stream]), round(float(simulator._state[stream, 5]), 4)))
        return torch.multinomial(torch.tensor([0.05, 0.5, 0.25, 0.2]), 4, True, generator=rng)

    measures = play(simulator, act, scenes, episodes)
    want = small_bank.episodes[scenes, episodes]
    np.testing.assert_allclose(measures["geodesic"], want[:, 5].numpy(), rtol=1e-6)
    for scene, distance in zip(scenes, want[:, 5].tolist(), strict=True):
        assert (scene, round(distance, 4)) in begun


def test_far_goals_are_not_listed_where_the_task_has_none(small_bank):
    """`max_distance` limits evaluation like training. Scenes with few near goals leave out the last rounds."""
    config = PointNavConfig(sensors="blind", max_distance=2.5)
    near = small_bank.episodes[:, :, 5] <= 2.5
    counts = near.sum(1).clamp(min=1)
    assert len(set(counts.tolist())) > 1, "scenes have different numbers of near goals"
    scenes, episodes = listed_episodes(config, small_bank)
    assert sorted(zip(scenes, episodes, strict=True)) == [(s, e) for s in range(12) for e in range(int(counts[s]))]
    assert listed_episodes(config, small_bank, 12)[0] == list(range(12))
    with pytest.raises(UsageError, match=f"allowed: 1 to {int(counts.sum())}"):
        listed_episodes(config, small_bank, int(counts.sum()) + 1)
    assert listed_episodes(PointNavConfig(sensors="blind"), small_bank, 50) == fixed_episodes(small_bank, 50)


def test_the_usual_number_of_episodes_is_all_of_a_shorter_list(small_bank):
    few = {0: 3, 5: 1}
    assert len(fixed_episodes(small_bank, None, few, usual=200)[0]) == 4
    assert fixed_episodes(small_bank, None, usual=200) == fixed_episodes(small_bank, 200)
    with pytest.raises(UsageError, match="200 episodes were asked for; allowed: 1 to 4"):
        fixed_episodes(small_bank, 200, few, usual=200)


def test_the_list_does_not_depend_on_who_plays_it(small_bank):
    one = play_baseline(EVALUATION, "goal-follower", BRIEF, 20, num_envs=20, bank=small_bank)
    other = play_baseline(EVALUATION, "goal-follower", BRIEF, 20, num_envs=3, bank=small_bank)
    assert one == other
    scenes, episodes = fixed_episodes(small_bank, 100)
    assert (scenes[:30], episodes[:30]) == fixed_episodes(small_bank, 30)
    assert len(set(zip(scenes, episodes, strict=True))) == 100
    everything = fixed_episodes(small_bank, 12 * 256)
    assert len(set(zip(*everything, strict=True))) == 12 * 256


def test_summaries():
    rng = np.random.default_rng(0)
    count = 400
    measures = {name: rng.random(count) for name in ("spl", "soft_spl", "distance_to_goal", "collisions")}
    measures["success"] = (rng.random(count) < 0.7).astype(float)
    measures["geodesic"] = np.repeat([1.5, 4.0, 29.0, 7.0], 100)
    result = summarize(EVALUATION, measures)
    assert result["episodes"] == count
    assert result["success"] == pytest.approx(measures["success"].mean())
    low, high = result["success_ci95"]
    half = 1.96 * np.sqrt(0.21 / count)
    assert low == pytest.approx(result["success"] - half, abs=0.01)
    assert high == pytest.approx(result["success"] + half, abs=0.01)
    bins = [(part["from"], part["to"], part["episodes"]) for part in result["by_distance"]]
    assert bins == [(1.0, 2.0, 100), (3.0, 5.0, 100), (5.0, 8.0, 100), (25.0, 30.0, 100)]
    assert result["by_distance"][0]["spl"] == pytest.approx(measures["spl"][:100].mean())


def test_every_episode_is_in_one_bin():
    sizes = np.array([0.4, 1.0, 1.9, 2.0, 24.9, 25.0, 30.0, 41.2])
    parts = binned(EVALUATION.bins, {"geodesic": sizes})
    found = [(low, high, int(within.sum())) for low, high, within in parts]
    assert found == [(0.0, 2.0, 3), (2.0, 3.0, 1), (20.0, 25.0, 1), (25.0, 42.0, 3)]
    at_the_edge = binned(EVALUATION.bins, {"geodesic": np.array([1.0, 30.0])})
    assert [(low, high) for low, high, _ in at_the_edge] == [(1.0, 2.0), (25.0, 30.0)]


def test_a_result_has_all_measures(small_bank):
    result = play_baseline(EVALUATION, "random", BRIEF, 8, num_envs=8, bank=small_bank)
    for key in ("spl", "success", "soft_spl", "distance_to_goal", "collisions"):
        low, high = result[f"{key}_ci95"]
        assert low <= result[key] <= high
    assert result["episodes"] == 8
    assert (result["agent"], result["tier"], result["split"]) == ("random", "small", "val")


def test_the_tier_of_a_result_is_that_of_the_scenes(small_bank):
    config = replace(BRIEF, tier="full")
    assert play_baseline(EVALUATION, "random", config, 2, num_envs=2, bank=small_bank)["tier"] == "small"


def test_unknown_names_and_numbers_are_refused(small_bank):
    with pytest.raises(
        UsageError, match="agent 'genius' does not exist; allowed: random, forward, goal-follower, map-and-plan, oracle"
    ):
        play_baseline(EVALUATION, "genius", SMALL)
    with pytest.raises(UsageError, match="0 episodes.*allowed: 1 to 3072"):
        play_baseline(EVALUATION, "random", SMALL, 0, bank=small_bank)
    with pytest.raises(UsageError, match="tier is 'huge'"):
        play_baseline(EVALUATION, "random", PointNavConfig(tier="huge"))


def test_a_star_goes_around():
    kinds = np.zeros((9, 9), np.uint8)
    kinds[4, 1:7] = 1
    path = a_star(kinds, (1.0, 100.0), (2, 3), (6, 3))
    assert path[0] == (2, 3)
    assert path[-1] == (6, 3)
    assert all(kinds[cell] == 0 for cell in path)
    assert all(max(abs(a - c), abs(b - d)) == 1 for (a, b), (c, d) in pairwise(path))
    through = a_star(kinds, (1.0, 1.5), (2, 3), (6, 3))
    assert (4, 3) in through


def test_a_planner_with_two_cameras_maps_what_is_behind_it():
    planner = Planner(0.17, 0.25, bearings=(0.0, np.pi), max_depth=10.0)
    goal = np.array([5.0, 1.0, 0.0])
    planner.start(goal)
    planner.act(np.stack([np.full((8, 8), 0.2), np.full((8, 8), 0.1)]), goal)
    x = (np.flatnonzero(planner.occupied.any(1)) + 0.5) * CELL - REACH
    np.testing.assert_allclose(x, [-1.0, 2.0], atol=CELL)
