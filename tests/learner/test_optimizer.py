"""Adam equals PyTorch's to the bit, and does not import the compiler."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

from paceline.learner.optimizer import make_adam
from paceline.session import train
from tests.integration.ranks import on_ranks
from tests.integration.test_training import tiny


def steps(optimizer: torch.optim.Optimizer, weight: torch.nn.Parameter, count: int) -> None:
    for number in range(count):
        weight.grad = torch.sin(weight.detach() + number)
        optimizer.step()


def test_steps_and_saved_moments_are_those_of_pytorch():
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    adam, plain = make_adam([ours], 0.1, eps=1e-5), torch.optim.Adam([theirs], lr=0.1, eps=1e-5, fused=True)
    steps(adam, ours, 3)
    steps(plain, theirs, 3)
    plain.load_state_dict(copy.deepcopy(adam.state_dict()))
    adam = make_adam([ours], 0.1, eps=1e-5)
    adam.load_state_dict(copy.deepcopy(plain.state_dict()))
    steps(adam, ours, 3)
    steps(plain, theirs, 3)
    assert torch.equal(ours, theirs)
    adam.zero_grad()
    assert ours.grad is None and ours.requires_grad


def test_a_step_is_not_differentiated_and_gradients_stay_enabled():
    weight = torch.nn.Parameter(torch.ones(2))
    steps(make_adam([weight], 0.1), weight, 1)
    assert weight.is_leaf and torch.is_grad_enabled()


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_does_not_import_the_compiler(tmp_path, deterministic):
    """The import takes two seconds."""

    def imported() -> bool:
        assert "torch._dynamo" not in sys.modules, "before the run"
        train(tiny(deterministic=deterministic), tmp_path)
        return "torch._dynamo" in sys.modules

    assert on_ranks(1, imported) == [False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_steps_on_a_gpu_are_those_of_pytorch():
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 7, device="cuda")) for _ in range(2))
    adam = make_adam([ours], 0.1)
    plain = torch.optim.Adam([theirs], lr=torch.tensor(0.1, device="cuda"), fused=True, capturable=True)
    steps(adam, ours, 3)
    steps(plain, theirs, 3)
    assert torch.equal(ours, theirs)
