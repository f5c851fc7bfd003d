"""On a GPU: the CPU's results, no forward pass waits for the device, and sampling works inside a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.nets.config import CoreConfig, HeadConfig
from paceline.nets.cores import Core
from paceline.nets.encoders import ImpalaResNet, NatureCNN, SampleFactoryConv, VectorEncoder
from paceline.nets.heads import ActionHead
from paceline.nets.normalizer import ObservationNormalizer, ReturnNormalizer
from paceline.nets.resnet import ResNetEncoder, VERResNetEncoder
from paceline.pool.spaces import leaves

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SPACE = spaces.Dict(
    arm=spaces.Box(-1, 1, (2,), np.float32),
    gear=spaces.Discrete(4),
    keys=spaces.MultiBinary(3),
    stick=spaces.MultiDiscrete([3, 2]),
)


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


@contextmanager
def no_waiting() -> Iterator[None]:
    """Any wait of the host for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "encoder",
    [
        lambda: NatureCNN((3, 64, 64), hidden=16),
        lambda: SampleFactoryConv((3, 64, 64), hidden=16),
        lambda: ImpalaResNet((3, 64, 64), hidden=16),
        lambda: VectorEncoder((3 * 64 * 64,), hidden_sizes=(16,)),
        lambda: ResNetEncoder((3, 64, 64), "resnet18", hidden=16),
        lambda: ResNetEncoder((3, 64, 64), "se_resnext50", hidden=16),
        lambda: VERResNetEncoder((3, 64, 64), hidden=16),
    ],
)
def test_encoders(encoder):
    torch.manual_seed(0)
    module = encoder()
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    expected = module(images)
    module, images = module.cuda(), images.cuda()
    with no_waiting():
        features = module(images)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            halved = module(images)
    torch.testing.assert_close(features.cpu(), expected, atol=1e-3, rtol=1e-3)
    assert (halved.float().cpu() - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2])
def test_cores(kind, layers):
    core = Core(6, CoreConfig(kind=kind, hidden=8, layers=layers))
    x, batch_sizes, state = torch.randn(9, 6), torch.tensor([4, 3, 2]), torch.randn(4, core.state_size)
    expected_out, expected_state = core.step(x[:4], state)
    expected_sequence = core.sequence(x, batch_sizes, state)
    core, x, state = core.cuda(), x.cuda(), state.cuda()
    with no_waiting():
        out, after = core.step(x[:4], state)
        sequence = core.sequence(x, batch_sizes, state)
    torch.testing.assert_close(out.cpu(), expected_out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after.cpu(), expected_state, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sequence.cpu(), expected_sequence, atol=1e-5, rtol=1e-5)
    with torch.autocast("cuda", torch.bfloat16):
        out, after = core.step(x[:4], state)
        rows = core.sequence(x, batch_sizes, state)
    assert after.dtype == torch.float32
    torch.testing.assert_close(out.float().cpu(), expected_out, atol=0.05, rtol=0.05)
    torch.testing.assert_close(rows.float().cpu(), expected_sequence, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("squash", [False, True])
def test_heads(squash):
    head = ActionHead(leaves(SPACE, "action"), 5, HeadConfig(squash=squash))
    torch.nn.init.normal_(head.linear.weight)
    x, mask = torch.randn(64, 5), {"gear": torch.tensor([True, False, True, True]).expand(64, 4)}
    expected = head(x, mask)
    actions = head.sample(expected)
    expected_log_prob, expected_env = head.log_prob(expected, actions), head.env_actions(actions)
    head, x = head.cuda(), x.cuda()
    mask, actions = ({name: part.cuda() for name, part in parts.items()} for parts in (mask, actions))
    with no_waiting():
        params = head(x, mask)
        sampled = head.sample(params)
        head.mode(params)
        entropy = head.entropy(params)
        log_prob = head.log_prob(params, actions)
        env = head.env_actions(actions)
        entropy.sum().backward()
    torch.testing.assert_close(params.cpu(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(log_prob.cpu(), expected_log_prob, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close({name: part.cpu() for name, part in env.items()}, expected_env)
    assert not (sampled["gear"] == 1).any()
    assert entropy.isfinite().all()


def test_sampling_in_a_cuda_graph_draws_anew_at_every_replay():
    head = ActionHead(leaves(SPACE, "action"), 5).cuda()
    x = torch.randn(4096, 5, device="cuda")
    with torch.no_grad():
        head.sample(head(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            params = head(x)
            actions = head.sample(params)
            log_prob = head.log_prob(params, actions)
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append({name: part.clone() for name, part in actions.items()})
        torch.testing.assert_close(log_prob, head.log_prob(params, actions))
    assert all((drawn[0][name] != drawn[1][name]).any() for name in drawn[0])
    counts = drawn[0]["gear"].bincount(minlength=4)
    assert counts.min() > 900  # a fresh policy is nearly uniform


def test_masked_choices_are_never_drawn_in_a_million():
    head = ActionHead(leaves(spaces.Discrete(6), "action"), 5).cuda()
    mask = torch.tensor([False, True, False, False, True, False], device="cuda").expand(1_000_000, 6)
    params = head.families[0].params(torch.randn(1_000_000, 6, device="cuda") * 5, mask)
    assert head.sample(params)["action"].unique().tolist() == [1, 4]


@pytest.mark.parametrize("shape", [(3,), (3, 8, 8)])
def test_observation_normalizer(shape):
    rows = torch.randint(0, 256, (50, *shape), dtype=torch.uint8)
    host, device = ObservationNormalizer(shape), ObservationNormalizer(shape).cuda()
    host.absorb(host.sums(rows))
    on_device = rows.cuda()
    with no_waiting():
        device.absorb(device.sums(on_device))
        out = device(on_device)
    torch.testing.assert_close(out.cpu(), host(rows), atol=1e-5, rtol=1e-5)


def test_return_normalizer():
    host, device = ReturnNormalizer(8, gamma=0.9), ReturnNormalizer(8, gamma=0.9).cuda()
    reward, flags = torch.randn(5, 8), torch.rand(3, 5, 8) < 0.3
    slots, on_device = torch.arange(8), [part.cuda() for part in (torch.arange(8), reward, flags)]
    for t in range(5):
        host.absorb(host.observe(slots, reward[t], *flags[:, t]))
        with no_waiting():
            device.absorb(device.observe(on_device[0], on_device[1][t], *on_device[2][:, t]))
    with no_waiting():
        out = device(on_device[1])
    torch.testing.assert_close(out.cpu(), host(reward), atol=1e-5, rtol=1e-5)
