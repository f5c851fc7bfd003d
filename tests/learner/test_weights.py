"""Readers get all published weights, whatever their types."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from paceline.learner.publication import Publication

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


def network() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module.register_buffer("version", torch.zeros((), dtype=torch.int64))
    module.register_buffer("count", torch.zeros(5, dtype=torch.float64))
    return module


def change(module: nn.Module) -> None:
    with torch.no_grad():
        for value in module.state_dict().values():
            value += 1 + torch.arange(value.numel(), device=value.device).view(value.shape)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_what_is_published_is_picked_up_whatever_its_type(device, precision):
    """The acting copy may keep matrices in bfloat16."""
    learned = network().to(device)
    acting = copy.deepcopy(learned)
    acting[1].weight.data = acting[1].weight.data.to(precision)
    publication = Publication(learned)
    reader = publication.reader(acting)
    assert reader.refresh() == 0
    for number in (1, 2):
        before = {name: value.clone() for name, value in acting.state_dict().items()}
        change(learned)
        assert reader.refresh() == number - 1, "nothing is new before it is published"
        assert all(torch.equal(value, before[name]) for name, value in acting.state_dict().items())
        publication.publish()
        assert reader.refresh() == reader.refresh() == number
        for name, value in learned.state_dict().items():
            picked_up = acting.state_dict()[name]
            assert torch.equal(picked_up, value.to(picked_up.dtype)), name
