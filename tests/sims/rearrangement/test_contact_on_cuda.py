"""On a GPU: the kernels compute what the tensors compute, for batches of any size, and can be captured."""

import pytest
import torch

from paceline.sims.rearrangement.physics.contact import depths, tensor_depths
from paceline.sims.rearrangement.physics.world import State, World, arm_of
from paceline.sims.rearrangement.robot.arm import Arm, forward_kinematics, placed_arm
from paceline.sims.rearrangement.scenes.episodes import SCENARIOS
from tests.sims.rearrangement.random_states import on, random_states

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("tier", ["small", "full"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_kernel_equals_the_tensors(banks, tier, scenario):
    world, state = random_states(banks[tier, scenario], 280)
    want = tensor_depths(world, state, arm_of(state))
    assert (want == 0.0).any() and (want > 0.0).any()
    there, now = on("cuda", world), on("cuda", state)
    arm = arm_of(now)
    got = depths(there, now, arm)
    torch.testing.assert_close(got.cpu(), want, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(got, tensor_depths(there, now, arm), rtol=0.0, atol=1e-5)


def test_rows_do_not_depend_on_the_batch(kitchens):
    world, state = (on("cuda", parts) for parts in random_states(kitchens, 56))
    arm, only = arm_of(state), torch.arange(56, device="cuda") % 3 == 0
    every = depths(world, state, arm)
    assert torch.equal(depths(world, state, arm, only=only), torch.where(only, every, 0.0))
    few = (World(*(part[:5] for part in world)), State(*(part[:5] for part in state)), Arm(*(part[:5] for part in arm)))
    assert torch.equal(depths(*few), every[:5])
    states = State(*(part.repeat(3, *[1] * (part.dim() - 1)) for part in state))
    assert torch.equal(depths(world, states, arm_of(states)), every.repeat(3))


def test_the_kernel_places_the_arm_as_the_tensors_do():
    torch.manual_seed(0)
    angles, poses = 2.0 * torch.randn(777, 7, device="cuda"), 5.0 * torch.randn(777, 3, device="cuda")
    for got, want in zip(placed_arm(angles, poses), forward_kinematics(angles).placed(poses), strict=True):
        torch.testing.assert_close(got, want, rtol=0.0, atol=1e-5)


def test_the_kernel_can_be_captured(kitchens):
    first, second = ([on("cuda", parts) for parts in random_states(kitchens, 28, seed)] for seed in (0, 1))
    world, state = (type(parts)(*(part.clone() for part in parts)) for parts in first)
    only = torch.ones(28, dtype=torch.bool, device="cuda")
    depths(world, state, arm_of(state), only=only)  # compiles the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = depths(world, state, arm_of(state), only=only)
    for around, now in (first, second):
        for part, new in zip((*world, *state), (*around, *now), strict=True):
            part.copy_(new)
        graph.replay()
        assert torch.equal(replayed, depths(around, now, arm_of(now)))
