"""Classes of failed episodes."""

from __future__ import annotations

import pytest
import torch

from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.episode_record import EpisodeRecord, Happened, OngoingRecord, StreamSnapshot
from paceline.sims.rearrangement.evaluation.failures import WINDOW, RobotFailure, distances, robot_failure
from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.simulator import Rearrangement

QUIET = Happened(NOTHING, NOTHING, False, False)
FAR_AWAY = torch.tensor([50.0, 50.0, 0.5])


def standing(kitchens, task: str, steps: int = 100) -> EpisodeRecord:
    """A robot that never moves, far from everything."""
    config = RearrangementConfig(sensors="blind")
    simulator = Rearrangement(1, "cpu", task, config, bank=kitchens)
    simulator.reset(3)
    snapshot = StreamSnapshot.of(simulator, simulator.stream)
    record = OngoingRecord(0, snapshot)
    for _ in range(steps):
        record.add(QUIET, snapshot)
    episode = record.record()
    episode.states.pose[:, :2] += 30.0
    return episode


def ending(episode: EpisodeRecord, **last) -> EpisodeRecord:
    return episode._replace(steps=[*episode.steps[:-1], QUIET._replace(**last)])


@pytest.mark.parametrize("task", ["pick", "place", "open_fridge", "close_drawer"])
def test_another_thing(task, kitchens):
    episode = standing(kitchens, task)
    other = (episode.wanted + 1) % 5
    assert robot_failure(task, kitchens, ending(episode, taken=other)) is RobotFailure.WRONG_THING


def test_letting_go_is_dropping_or_placing_wrong(kitchens):
    for task, failure in (("pick", RobotFailure.DROPPED), ("place", RobotFailure.PLACED_WRONG)):
        episode = standing(kitchens, task)
        assert robot_failure(task, kitchens, ending(episode, dropped=episode.wanted)) is failure


def test_a_stop_counts_only_near_the_target(kitchens):
    episode = standing(kitchens, "navigate")
    assert robot_failure("navigate", kitchens, ending(episode, stopped=True)) is RobotFailure.NEVER_REACHED
    episode.states.pose[-1, :2] = torch.tensor(episode.targets[-1, :2] + (1.7, 0.0)).float()
    assert robot_failure("navigate", kitchens, ending(episode, stopped=True)) is RobotFailure.STOPPED_WRONG


def test_collisions_at_the_end(kitchens):
    episode = standing(kitchens, "pick")
    hits = [QUIET._replace(collided=True)] * (WINDOW // 2 + 1)
    pushing = episode._replace(steps=[*episode.steps[: -len(hits)], *hits])
    assert robot_failure("pick", kitchens, pushing) is RobotFailure.COLLIDED
    earlier = episode._replace(steps=[*hits, *episode.steps[: -len(hits)]])
    assert robot_failure("pick", kitchens, earlier) is RobotFailure.NEVER_REACHED


def test_reached_but_not_grasped_and_grasped_but_out_of_steps(kitchens):
    episode = standing(kitchens, "pick")
    assert distances("pick", kitchens, episode).min() > 10.0
    episode.states.objects[40, episode.wanted, :3] = torch.tensor(episode.tips[40]).float() - torch.tensor([0, 0, 0.1])
    assert distances("pick", kitchens, episode).argmin() == 40
    assert robot_failure("pick", kitchens, episode) is RobotFailure.NOT_GRASPED
    taken = [*episode.steps[:39], QUIET._replace(taken=episode.wanted), *episode.steps[40:]]
    assert robot_failure("pick", kitchens, episode._replace(steps=taken)) is RobotFailure.OUT_OF_STEPS


def test_at_the_goal_but_not_released(kitchens):
    episode = standing(kitchens, "place")
    assert robot_failure("place", kitchens, episode) is RobotFailure.NEVER_REACHED
    episode.states.objects[50, episode.wanted, :3] = torch.tensor(episode.targets[50]).float()
    assert robot_failure("place", kitchens, episode) is RobotFailure.NOT_RELEASED


def test_an_object_put_at_its_goal_in_the_last_step_is_not_placed_wrong(kitchens):
    episode = standing(kitchens, "place")
    episode.states.objects[-1, episode.wanted, :3] = torch.tensor(episode.targets[-1]).float()
    assert robot_failure("place", kitchens, ending(episode, dropped=episode.wanted)) is RobotFailure.OUT_OF_STEPS


def test_handles_are_where_the_door_is(kitchens):
    """The distance is that to the handle of the door as it is, not of the closed one."""
    episode = standing(kitchens, "close_fridge")
    at_start = distances("close_fridge", kitchens, episode)
    episode.states.values[60, episode.wanted] = 0.0
    moved = distances("close_fridge", kitchens, episode)
    assert moved[60] != at_start[60] and moved[59] == at_start[59]


def test_a_scenario_is_judged_by_what_was_taken(kitchens):
    episode = standing(kitchens, "tidy_house")
    assert robot_failure("tidy_house", kitchens, episode) is RobotFailure.NEVER_REACHED
    taken = episode._replace(steps=[QUIET._replace(taken=1), *episode.steps[1:]])
    taken.states.objects[-1, 1, :3] = FAR_AWAY
    assert robot_failure("tidy_house", kitchens, taken) is RobotFailure.PLACED_WRONG
    taken.states.held[-1] = 7
    assert robot_failure("tidy_house", kitchens, taken) is RobotFailure.WRONG_THING
    taken.states.held[-1] = 1
    taken.states.objects[5, 1, :3] = torch.tensor(taken.tips[5]).float()
    assert robot_failure("tidy_house", kitchens, taken) is RobotFailure.OUT_OF_STEPS
