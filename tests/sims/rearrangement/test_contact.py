"""Depths of some rows, of several rows for each robot, and by the kernel of a GPU in Triton's interpreter."""

import pytest
import torch

from paceline.sims.rearrangement.physics.contact import SLACK, depths, tensor_depths
from paceline.sims.rearrangement.physics.world import State, World, arm_of, moved
from paceline.sims.rearrangement.robot.arm import forward_kinematics
from tests.sims.rearrangement import rooms
from tests.sims.rearrangement.random_states import random_states


def test_rows_outside_only_are_zero(kitchens):
    world, state = random_states(kitchens, 30)
    arm, only = arm_of(state), torch.arange(30) % 3 == 0
    every = depths(world, state, arm)
    assert (every[only] > 0.0).any() and (every[~only] > 0.0).any()
    torch.testing.assert_close(depths(world, state, arm, only=only), torch.where(only, every, 0.0))
    assert not depths(world, state, arm, only=torch.zeros(30, dtype=torch.bool)).any()


def test_several_rows_for_each_robot(kitchens):
    world, state = random_states(kitchens, 30)
    few = World(*(part[:10] for part in world))
    states = State(*(part[:10].repeat(3, *[1] * (part.dim() - 1)) for part in state))._replace(angles=state.angles)
    arm, only = arm_of(states), torch.arange(30) % 4 == 0
    worlds = World(*(part.repeat(3, *[1] * (part.dim() - 1)) for part in few))
    want = tensor_depths(worlds, states, arm)
    torch.testing.assert_close(depths(few, states, arm), want)
    torch.testing.assert_close(depths(few, states, arm, only=only), torch.where(only, want, 0.0))


def test_candidates_of_a_motion_are_those_of_single_motions(kitchens):
    world, state = random_states(kitchens, 28)
    poses = state.pose + torch.tensor([0.1, -0.2])[:, None, None]
    angles = state.angles - torch.tensor([0.1, 0.3])[:, None, None]
    both, arms = moved(world, state, poses, angles)
    for number in range(2):
        one, arm = moved(world, state, poses[number], angles[number])
        rows = slice(28 * number, 28 * (number + 1))
        for part, want in zip((*both, *arms), (*one, *arm), strict=True):
            torch.testing.assert_close(part[rows], want)


@pytest.fixture(scope="module")
def interpreted():
    """The kernels, run by Triton's interpreter."""
    if torch.cuda.is_available():
        pytest.skip("the kernels themselves are tested on this machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton")
        from paceline.sims.rearrangement.physics import contact_triton
        from paceline.sims.rearrangement.robot import arm_triton

        yield contact_triton, arm_triton


@pytest.mark.parametrize("scenario", ["tidy_house", "prepare_groceries", "set_table"])
def test_the_kernel_equals_the_tensors(interpreted, banks, scenario):
    bank = banks["small", scenario]
    world, state = random_states(bank, 14)
    arm, only = arm_of(state), torch.arange(14) != 2
    got = interpreted[0].depths(world, state, arm, SLACK, only)
    torch.testing.assert_close(got, torch.where(only, tensor_depths(world, state, arm), 0.0), rtol=0.0, atol=1e-5)


def test_the_kernel_knows_several_rows_of_a_robot(interpreted):
    world, states = rooms.world(), rooms.state(2)._replace(held=torch.tensor([1, -1]))
    arm = arm_of(states)
    got = interpreted[0].depths(world, states, arm, SLACK, None)
    torch.testing.assert_close(got, tensor_depths(world, states, arm), rtol=0.0, atol=1e-5)


def test_the_kernel_places_the_arm_as_the_tensors_do(interpreted):
    torch.manual_seed(0)
    angles, poses = 2.0 * torch.randn(77, 7), 5.0 * torch.randn(77, 3)
    for got, want in zip(
        interpreted[1].placed_arm(angles, poses), forward_kinematics(angles).placed(poses), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=0.0, atol=1e-5)
