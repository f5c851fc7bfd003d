"""The oracle solves the skills in generated houses. A bank of few houses keeps this fast."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from paceline.sims.navigation.evaluation.episode_list import fixed_episodes, play
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.evaluation.inverse_kinematics import solve
from paceline.sims.rearrangement.evaluation.oracle.agent import RobotOracle
from paceline.sims.rearrangement.evaluation.oracle.reaching import elbow_up
from paceline.sims.rearrangement.evaluation.oracle.scripts import SCRIPTS
from paceline.sims.rearrangement.physics.world import FRIDGE, NOTHING, arm_of, handle_places, projections
from paceline.sims.rearrangement.scenes.bank import HouseBank, load_or_generate_houses
from paceline.sims.rearrangement.simulator import Rearrangement

NUM_EPISODES = 6


@pytest.fixture(scope="module")
def bank() -> HouseBank:
    return load_or_generate_houses("small", "val", 4)


def played(bank: HouseBank, task: str, steps: int) -> dict:
    """Episodes 7 to 12 of the list. More of the others fail, and those that fail take most of the time."""
    config = RearrangementConfig(sensors="blind", split="val", scenes=bank.num_scenes, max_episode_steps=steps)
    simulator = Rearrangement(NUM_EPISODES, "cpu", task, config, bank=bank)
    scenes, numbers = (part[NUM_EPISODES:] for part in fixed_episodes(bank, 2 * NUM_EPISODES))
    simulator.load_episodes = partial(simulator.load_episodes, first=NUM_EPISODES)
    return play(simulator, RobotOracle(simulator).act, scenes, numbers)


@pytest.mark.parametrize(
    ("task", "least", "steps"),
    [
        ("pick", 0.6, 118),
        ("place", 0.6, 112),
        ("navigate", 0.6, 72),
        ("open_drawer", 0.6, 129),
        ("close_drawer", 0.6, 138),
        ("open_fridge", 0.4, 120),
    ],
)
def test_the_oracle_solves_most_episodes(bank, task, least, steps):
    """In fewer steps than the limits of the tasks: episodes that are not solved would take most of the time."""
    measures = played(bank, task, steps)
    assert measures["success"].mean() >= least
    if "mistake" in measures:
        assert measures["mistake"].mean() <= 0.1


def test_actions_are_within_their_bounds(bank):
    simulator = Rearrangement(4, "cpu", "pick", RearrangementConfig(sensors="blind", scenes=bank.num_scenes), bank=bank)
    oracle, began = RobotOracle(simulator), torch.ones(4, dtype=torch.bool)
    obs = simulator.reset(0)
    for _ in range(5):
        actions = oracle.act(obs, began)
        assert actions.shape == (4, simulator.actions.size)
        assert actions.abs().max() <= 1.0
        step = simulator.step(actions)
        obs, began = step.obs, step.terminated | step.truncated


def test_a_robot_begins_its_script_with_its_episode(bank):
    simulator = Rearrangement(2, "cpu", "pick", RearrangementConfig(sensors="blind", scenes=bank.num_scenes), bank=bank)
    oracle = RobotOracle(simulator)
    obs = simulator.reset(0)
    oracle.skill.phases.fill_(3)
    oracle.act(obs, torch.tensor([True, False]))
    assert oracle.skill.phases.tolist() == [0, 3]


def test_a_hand_that_lets_go_of_a_door_can_leave_it(bank):
    """While it pulls a door, the hand may be inside it. After that, it may only get less deep."""
    config = RearrangementConfig(sensors="blind", scenes=bank.num_scenes)
    simulator = Rearrangement(1, "cpu", "open_fridge", config, bank=bank)
    simulator.reset(0)
    state, world = simulator._stream.state, simulator.world()
    state.values[0, FRIDGE] = 1.2
    handle = handle_places(world, state.values)[:, FRIDGE]
    hinge = world.joints[0, FRIDGE, 1:3]
    along = (handle[0, :2] - hinge) / (handle[0, :2] - hinge).norm()
    outward = torch.stack((-along[1], along[0])) * world.joints[0, FRIDGE, 3]
    # The robot stands in front of the open door, and its tip is 8 cm behind the handle.
    state.pose[0, :2] = handle[0, :2] + 0.6 * outward
    state.pose[0, 2] = torch.atan2(-outward[1], -outward[0])
    target = torch.tensor([[0.68, 0.0, float(handle[0, 2])]])
    state.angles.copy_(solve(target, torch.tensor([[1.0, 0.0, 0.0]]), elbow_up(target)))
    tip = arm_of(state).tip
    state.held.fill_(world.extents.shape[1] + FRIDGE)
    state.grasp[:, 0] = state.values[:, FRIDGE] - projections(world, tip)[:, FRIDGE]
    state.grasp[:, 1] = (handle - tip).norm(dim=1)
    simulator._stream.depth.zero_()
    release = torch.zeros(1, simulator.actions.size)
    release[:, 7] = -1.0
    simulator.step(release)
    assert simulator.stream.state.held.tolist() == [NOTHING]
    assert simulator.stream.depth[0] > 0.01


@pytest.mark.parametrize(("turn_step", "steps"), [(0.075, 50), (0.025, 150)])
def test_a_robot_that_turns_slowly_waits_longer_before_it_gives_up_a_stand(bank, turn_step, steps):
    """A turn by 180 degrees takes 42 steps of 0.075 radians."""
    config = RearrangementConfig(sensors="blind", scenes=bank.num_scenes, turn_step=turn_step)
    simulator = Rearrangement(1, "cpu", "navigate", config, bank=bank)
    simulator.reset(0)
    skill, began = RobotOracle(simulator).skill, torch.ones(1, dtype=torch.bool)
    stream = simulator.stream
    attempts = []
    for number in range(steps + 2):
        # It turns on the spot, so it is not stuck.
        stream.state.pose[0, 2] = 0.01 * number
        skill.act(stream, stream.columns, began, torch.ones(1, dtype=torch.bool))
        began = torch.zeros(1, dtype=torch.bool)
        attempts.append(int(skill._notes.attempt[0]))
    assert attempts == [0] * (steps + 1) + [1]


def test_every_skill_has_a_script():
    skills = {"navigate", "pick", "place", "open_fridge", "close_fridge", "open_drawer", "close_drawer"}
    assert set(SCRIPTS) >= skills
