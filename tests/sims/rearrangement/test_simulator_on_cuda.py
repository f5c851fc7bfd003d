"""On a GPU: streams equal those of the host, and a step can be captured."""

from __future__ import annotations

import pytest
import torch

from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.simulator import Rearrangement
from paceline.sims.rearrangement.tasks.table import SKILLS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TASKS = [name for name, entry in SKILLS.items() if entry.scenario in ("", "tidy_house")]


@pytest.mark.parametrize("task", TASKS)
def test_streams_equal_those_of_the_host(kitchens, task):
    config = RearrangementConfig(resolution=16, max_episode_steps=20)
    host, device = (Rearrangement(32, kind, task, config, bank=kitchens) for kind in ("cpu", "cuda"))
    first, same = host.reset(4), device.reset(4)
    for name, values in first.items():
        assert ((same[name].cpu() - values).abs() < 1e-3).float().mean() > 0.99, name
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        actions = torch.randn(32, host.actions.size, generator=generator)
        one, other = host.step(actions), device.step(actions.cuda())
        # Paths may part where rounding decides on a contact, but not many.
        assert ((one.reward - other.reward.cpu()).abs() < 1e-2).float().mean() > 0.85
        assert ((one.obs["depth"] - other.obs["depth"].cpu()).abs() < 1e-3).float().mean() > 0.85


@pytest.mark.parametrize("task", TASKS)
def test_a_step_can_be_captured(kitchens, task):
    config = RearrangementConfig(resolution=16, max_episode_steps=7)
    eager, captured = (Rearrangement(64, "cuda", task, config, bank=kitchens.to("cuda")) for _ in range(2))
    actions = torch.zeros(64, eager.actions.size, device="cuda")
    captured.reset(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            captured.step(actions)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = captured.step(actions)
    captured.reset(9)
    eager.reset(9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        actions.copy_(torch.randn(64, eager.actions.size, generator=generator))
        want = eager.step(actions)
        graph.replay()
        torch.testing.assert_close(replayed.reward, want.reward)
        for name, values in eager.last_measures.items():
            torch.testing.assert_close(captured.last_measures[name], values)
        assert torch.equal(replayed.terminated, want.terminated)
        for name, values in want.obs.items():
            torch.testing.assert_close(replayed.obs[name], values)
