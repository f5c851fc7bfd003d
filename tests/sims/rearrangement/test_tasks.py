"""Rewards, ends and measures against formulas for one robot at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.physics.world import NOTHING, arm_of, handle_places
from paceline.sims.rearrangement.robot.arm import REST_ANGLES, forward_kinematics
from paceline.sims.rearrangement.simulator import Rearrangement, Stream
from paceline.sims.rearrangement.tasks.protocol import Facts

BLIND = RearrangementConfig(sensors="blind")
REST = forward_kinematics(torch.tensor([REST_ANGLES])).tip[0]


def simulator_of(bank, task: str, num: int = 8, **options) -> Rearrangement:
    simulator = Rearrangement(num, "cpu", task, RearrangementConfig(sensors="blind", **options), bank=bank)
    simulator.reset(3)
    return simulator


def facts_of(simulator: Rearrangement, stream: Stream, **happened) -> Facts:
    return simulator.facts_of(stream)._replace(**happened)


def with_state(stream: Stream, **changes) -> Stream:
    return stream._replace(state=stream.state._replace(**changes))


def from_rest(stream: Stream, robot: int) -> float:
    x, y, heading = stream.state.pose[robot].tolist()
    tip = arm_of(stream.state).tip[robot]
    cos, sin = math.cos(heading), math.sin(heading)
    dx, dy = float(tip[0]) - x, float(tip[1]) - y
    return math.dist((cos * dx + sin * dy, cos * dy - sin * dx, float(tip[2])), REST.tolist())


def moved_arm(stream: Stream, size: float = 0.3) -> Stream:
    turns = torch.randn(stream.state.angles.shape, generator=torch.Generator().manual_seed(1)) * size
    return with_state(stream, angles=stream.state.angles + turns)


def test_the_distance_from_rest_is_that_in_the_base_frame(kitchens):
    simulator = simulator_of(kitchens, "pick")
    stream = moved_arm(simulator.stream)
    found = simulator.facts_of(stream).rest_distance
    assert found.tolist() == pytest.approx([from_rest(stream, robot) for robot in range(8)], abs=1e-5)
    assert simulator.facts_of(simulator.stream).rest_distance.max() < 1e-5


def test_pick_rewards_the_way_to_the_object_and_then_to_rest(kitchens):
    simulator = simulator_of(kitchens, "pick")
    before = simulator.stream
    targets = before.columns[:, 0].long()
    objects = before.state.objects[torch.arange(8), targets, :3]
    old = (arm_of(before.state).tip - objects).norm(dim=1)
    assert before.columns[:, 1].tolist() == pytest.approx(old.tolist())
    after = moved_arm(before)
    new = (arm_of(after.state).tip - objects).norm(dim=1)
    judged = simulator.task.judge(before.columns, facts_of(simulator, after))
    assert judged.reward.tolist() == pytest.approx((2 * (old - new) - 0.005).tolist(), abs=1e-5)
    assert not judged.terminated.any()
    hit = simulator.task.judge(before.columns, facts_of(simulator, after, collided=torch.ones(8, dtype=torch.bool)))
    assert (judged.reward - hit.reward).tolist() == pytest.approx([0.01] * 8, abs=1e-6)
    held = with_state(after, held=targets)
    taken = simulator.task.judge(judged.columns, facts_of(simulator, held, taken=targets))
    at_rest = torch.tensor([from_rest(held, robot) < 0.15 for robot in range(8)])
    assert taken.reward.tolist() == pytest.approx((2.0 - 0.005 + 10.0 * at_rest).tolist(), abs=1e-5)
    home = with_state(held, angles=before.state.angles)
    done = simulator.task.judge(taken.columns, facts_of(simulator, home))
    way = [2 * from_rest(held, robot) - 0.005 + 10.0 for robot in range(8)]
    assert done.reward.tolist() == pytest.approx(way, abs=1e-4)
    assert done.terminated.all() and (done.measures["success"] == 1).all()


def test_pick_ends_with_a_mistake(kitchens):
    simulator = simulator_of(kitchens, "pick")
    stream = simulator.stream
    targets = stream.columns[:, 0].long()
    num = stream.state.objects.shape[1]
    for other in ((targets + 1) % num, torch.full_like(targets, num)):
        facts = facts_of(simulator, with_state(stream, held=other), taken=other)
        judged = simulator.task.judge(stream.columns, facts)
        assert judged.terminated.all() and judged.reward.tolist() == pytest.approx([-0.505] * 8, abs=1e-5)
        assert (judged.measures["mistake"] == 1).all() and (judged.measures["success"] == 0).all()
    held = with_state(moved_arm(stream, 1.0), held=targets)
    columns = simulator.task.judge(stream.columns, facts_of(simulator, held, taken=targets)).columns
    lost = simulator.task.judge(columns, facts_of(simulator, moved_arm(stream, 1.0), dropped=targets))
    assert lost.terminated.all() and (lost.measures["mistake"] == 1).all()


def test_place_rewards_the_way_to_the_goal_the_release_there_and_the_way_to_rest(kitchens):
    simulator = simulator_of(kitchens, "place")
    stream = simulator.stream
    targets, each = stream.columns[:, 0].long(), torch.arange(8)
    goals = kitchens.goals[stream.scenes, stream.episodes, targets]
    objects = stream.state.objects.clone()
    start = (objects[each, targets, :3] - goals).norm(dim=1).clamp(min=0.15)
    objects[each, targets, :3] = goals + torch.tensor([0.3, 0.0, 0.4])
    near = with_state(moved_arm(stream, 0.6), objects=objects)
    judged = simulator.task.judge(stream.columns, facts_of(simulator, near))
    assert judged.reward.tolist() == pytest.approx((2 * (start - 0.5) - 0.005).tolist(), abs=1e-4)
    wrong = simulator.task.judge(judged.columns, facts_of(simulator, near, dropped=targets))
    assert wrong.terminated.all() and wrong.reward.tolist() == pytest.approx([-0.505] * 8, abs=1e-4)
    objects[each, targets, :3] = goals + torch.tensor([0.1, 0.0, 0.0])
    put = with_state(near, objects=objects, held=torch.full_like(targets, NOTHING))
    placed = simulator.task.judge(judged.columns, facts_of(simulator, put, dropped=targets))
    far = torch.tensor([from_rest(put, robot) >= 0.15 for robot in range(8)])
    assert far.any()
    assert placed.reward[far].tolist() == pytest.approx([4.995] * int(far.sum()), abs=1e-4)
    home = with_state(put, angles=stream.state.angles)
    done = simulator.task.judge(placed.columns, facts_of(simulator, home))
    assert done.terminated.all() and (done.measures["success"] == 1).all()
    way = torch.tensor([2 * from_rest(put, robot) + 9.995 for robot in range(8)])
    assert done.reward[far].tolist() == pytest.approx(way[far].tolist(), abs=1e-4)


def test_the_last_centimetres_to_a_goal_are_not_rewarded(kitchens):
    simulator = simulator_of(kitchens, "place")
    stream, each = simulator.stream, torch.arange(8)
    targets = stream.columns[:, 0].long()
    goals = kitchens.goals[stream.scenes, stream.episodes, targets]
    columns = stream.columns
    for distance in (0.14, 0.02, 0.1):
        objects = stream.state.objects.clone()
        objects[each, targets, :3] = goals + torch.tensor([distance, 0.0, 0.0])
        judged = simulator.task.judge(columns, facts_of(simulator, with_state(moved_arm(stream), objects=objects)))
        if distance < 0.14:
            assert judged.reward.tolist() == pytest.approx([-0.005] * 8, abs=1e-5)
        columns = judged.columns


def test_navigate_needs_a_stop_near_the_target_that_faces_it(kitchens):
    simulator = simulator_of(kitchens, "navigate")
    stream = simulator.stream
    target = simulator.task.target(stream.columns, simulator.facts_of(stream))
    stopped = torch.ones(8, dtype=torch.bool)
    for distance, turn, ends, success in (
        (1.2, 0.2, True, True),
        (1.2, 0.3, True, False),
        (1.8, 0.0, True, False),
        (2.5, 0.0, False, False),
    ):
        heading = 0.7
        place = target[:, :2] - distance * torch.tensor([math.cos(heading), math.sin(heading)])
        pose = torch.cat((place, torch.full((8, 1), heading + turn)), 1)
        judged = simulator.task.judge(
            stream.columns, facts_of(simulator, with_state(stream, pose=pose), stopped=stopped)
        )
        assert judged.terminated.tolist() == [ends] * 8
        assert judged.measures["success"].tolist() == [float(success)] * 8
        assert judged.measures["distance"].tolist() == pytest.approx([distance] * 8, abs=1e-4)


def test_navigate_rewards_a_shorter_path_to_the_stand(kitchens):
    """From one of the other stands, whose path lengths the bank's table gives independently of the query."""
    simulator = simulator_of(kitchens, "navigate")
    stream = simulator.stream
    number = stream.columns[:, 0].long()
    stands = kitchens.stands[stream.scenes, stream.episodes, number]
    at_stand = with_state(stream, pose=stands)
    judged = simulator.task.judge(stream.columns, facts_of(simulator, at_stand))
    assert judged.columns[:, 1].abs().max() < 1e-3, "no way is left"
    assert (stream.columns[:, 1] + 1e-3 >= (stands[:, :2] - stream.state.pose[:, :2]).norm(dim=1)).all()


@pytest.mark.parametrize("task", ["open_fridge", "close_fridge", "open_drawer", "close_drawer"])
def test_doors_and_drawers(kitchens, task):
    simulator = simulator_of(kitchens, task)
    stream, each = simulator.stream, torch.arange(8)
    joint = stream.columns[:, 0].long()
    fridge, opens = "fridge" in task, "open" in task
    assert (joint == 0).all() if fridge else ((joint == 1) | (joint == 2)).all()
    values = stream.state.values[each, joint]
    assert (values == 0).all() if opens else (values > (0.7 if fridge else 0.39)).all()
    handle = joint + stream.state.objects.shape[1]
    after = moved_arm(stream, 0.4)
    places = handle_places(simulator.world_of(stream), stream.state.values)[each, joint]
    nearer = (arm_of(stream.state).tip - places).norm(dim=1) - (arm_of(after.state).tip - places).norm(dim=1)
    judged = simulator.task.judge(stream.columns, facts_of(simulator, after))
    assert judged.reward.tolist() == pytest.approx(nearer.tolist(), abs=1e-4)
    grasped = simulator.task.judge(judged.columns, facts_of(simulator, with_state(after, held=handle), taken=handle))
    assert grasped.reward.tolist() == pytest.approx([5.0] * 8, abs=1e-4)
    wanted = (1.2208 if fridge else 0.45) if opens else 0.0
    final = stream.state.values.clone()
    final[each, joint] = wanted
    pulled = simulator.task.judge(grasped.columns, facts_of(simulator, with_state(after, held=handle, values=final)))
    way = (wanted - values).abs()
    assert pulled.reward.tolist() == pytest.approx((10.0 * way + 5.0).tolist(), abs=1e-4)
    assert not pulled.terminated.any() and (pulled.measures["reached"] == 1).all()
    home = with_state(stream, values=final)
    done = simulator.task.judge(pulled.columns, facts_of(simulator, home))
    weight = 1.0 if fridge else 10.0
    expected = [weight * from_rest(after, robot) + 10.0 for robot in range(8)]
    assert done.reward.tolist() == pytest.approx(expected, abs=1e-3)
    assert done.terminated.all() and (done.measures["success"] == 1).all()
    wrong = simulator.task.judge(judged.columns, facts_of(simulator, after, taken=torch.zeros_like(joint)))
    assert wrong.terminated.all() and (wrong.measures["mistake"] == 1).all()


def test_a_scenario_counts_each_object_once_and_ends_when_all_are_placed(kitchens):
    simulator = simulator_of(kitchens, "tidy_house", num=2)
    stream = simulator.stream
    objects, goals = stream.state.objects.clone(), kitchens.goals[stream.scenes, stream.episodes]
    columns, total = stream.columns, torch.zeros(2)
    for number in range(5):
        first = simulator.task.target(columns, facts_of(simulator, with_state(stream, objects=objects)))
        torch.testing.assert_close(first, kitchens.objects[stream.scenes, stream.episodes, number, :3])
        held = with_state(stream, objects=objects, held=torch.full((2,), number))
        torch.testing.assert_close(simulator.task.target(columns, facts_of(simulator, held)), goals[:, number])
        for _ in range(2):  # held for two steps, counted once
            judged = simulator.task.judge(columns, facts_of(simulator, held))
            columns, total = judged.columns, total + judged.reward
        objects[:, number, :3] = goals[:, number]
        judged = simulator.task.judge(columns, facts_of(simulator, with_state(stream, objects=objects)))
        columns, total = judged.columns, total + judged.reward
        assert judged.terminated.tolist() == [number == 4] * 2
        assert judged.measures["placed"].tolist() == pytest.approx([(number + 1) / 5] * 2)
    assert total.tolist() == pytest.approx([5 + 5 + 100 - 15 * 0.01] * 2, abs=1e-3)


def test_episodes_are_truncated_after_the_steps_of_the_task(kitchens):
    simulator = simulator_of(kitchens, "pick", num=2, max_episode_steps=3)
    flags = [simulator.step(torch.zeros(2, simulator.actions.size)).truncated.tolist() for _ in range(3)]
    assert flags == [[False] * 2, [False] * 2, [True] * 2]
    assert np.array_equal(simulator.last_measures["steps"].numpy(), [3, 3])
