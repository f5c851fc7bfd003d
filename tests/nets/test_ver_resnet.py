"""VER's encoder: parameter counts by hand, any resolution, every pixel is seen, and layer scale learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from paceline.errors import UsageError
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import PolicyConfig
from paceline.nets.resnet import ARCHITECTURES, INITIAL_SCALE, ResNet, ScaledBlock, VERResNetEncoder
from paceline.nets.trunk import ENCODERS
from paceline.pool.protocol import PoolSpec


def num_params(module: nn.Module) -> int:
    return sum(values.numel() for values in module.parameters())


def on_meta(shape: tuple[int, ...], **options) -> VERResNetEncoder:
    with torch.device("meta"):  # shapes only: nothing is computed
        return VERResNetEncoder(shape, **options)


def test_parameters_by_hand():
    count = 4 * 4 * 3 * 32 + 2 * 32  # patches, and a GroupNorm
    for planes in (32, 64, 128, 256):
        count += 2 * (2 * 9 * planes**2 + 2 * 2 * planes + planes)  # blocks: convolutions, GroupNorms, scales
        if planes > 32:
            count += 2 * planes // 2 + (4 * planes // 2 + 1) * planes  # the layer that halves the resolution
    encoder = on_meta((3, 128, 128))
    assert num_params(encoder.trunk) == count
    assert 1.0 < count / num_params(ResNet(3, ARCHITECTURES["resnet18"], base_planes=32, num_groups=16)) < 1.2
    assert num_params(encoder.compress) == 9 * 256 * 128 + 2 * 128
    assert num_params(encoder.linear) == (128 * 4 * 4 + 1) * 512


def test_depth_is_that_of_a_resnet18():
    """Sixteen 3x3 convolutions in blocks, the stem and the fully connected layer. Halving layers are extra."""
    convs = [module for module in on_meta((3, 64, 64)).trunk.modules() if isinstance(module, nn.Conv2d)]
    assert sum(conv.kernel_size == (3, 3) for conv in convs) + 2 == 18
    assert [conv.kernel_size for conv in convs if conv.stride != (1, 1)] == [(4, 4), (2, 2), (2, 2), (2, 2)]
    assert sum(conv.dilation == (2, 2) for conv in convs) == 8


def test_no_batch_statistics_and_no_pools():
    kinds = {type(module) for module in on_meta((3, 64, 64)).modules()}
    assert not kinds & {nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d}


@pytest.mark.parametrize(
    ("height", "width", "compressed"),
    [
        (32, 32, (2048, 1, 1)),
        (64, 64, (512, 2, 2)),
        (128, 128, (128, 4, 4)),
        (256, 256, (32, 8, 8)),
        (72, 128, (171, 3, 4)),
    ],
)
def test_any_resolution_is_compressed_to_about_2048_numbers(height, width, compressed):
    encoder = on_meta((3, height, width), hidden=24)
    seen = []
    encoder.compress.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1:]))
    assert encoder(torch.empty(2, 3, height, width, device="meta")).shape == (2, encoder.out_features) == (2, 24)
    assert seen == [compressed]


def test_a_block_sees_seven_pixels_and_skips_none():
    block = ScaledBlock(16, 16)
    for module in block.branch:
        if isinstance(module, nn.Conv2d):
            nn.init.ones_(module.weight)
    block.branch[1], block.branch[4] = nn.Identity(), nn.Identity()  # a GroupNorm sees everything
    x = torch.ones(1, 16, 15, 15, requires_grad=True)
    block(x)[0, 0, 7, 7].backward()
    assert (x.grad[0, 0] != 0).nonzero().aminmax(dim=0)[0].tolist() == [4, 4]
    assert (x.grad[0, 0, 4:11, 4:11] > 0).all() and (x.grad[0, 0] != 0).sum() == 49


@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 33, 70)])
def test_every_pixel_and_every_parameter_takes_part(shape):
    torch.manual_seed(0)
    encoder = VERResNetEncoder(shape, hidden=64)
    images = torch.rand(2, *shape, requires_grad=True)
    features = encoder(images)
    features.square().sum().backward()
    assert features.shape == (2, 64) and features.isfinite().all()
    assert (images.grad.abs().amax((0, 1)) > 0).all()
    for name, values in encoder.named_parameters():
        assert values.grad is not None and values.grad.isfinite().all() and values.grad.abs().max() > 0, name


def test_layer_scale_starts_small_and_learns():
    """The label is where a bright square is: the loss falls, and every scale changes."""
    torch.manual_seed(0)
    encoder, head = VERResNetEncoder((1, 32, 32), hidden=16, base_planes=16), nn.Linear(16, 4)
    scales = [block.scale for block in encoder.modules() if isinstance(block, ScaledBlock)]
    assert len(scales) == 8 and all((scale == INITIAL_SCALE).all() for scale in scales)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    losses = []
    for _ in range(25):
        label = torch.randint(4, (16,))
        images = 0.1 * torch.rand(16, 1, 32, 32)
        for row, quarter in enumerate(label.tolist()):
            y, x = 4 + 16 * (quarter // 2), 4 + 16 * (quarter % 2)
            images[row, 0, y : y + 8, x : x + 8] += 1
        loss = nn.functional.cross_entropy(head(encoder(images)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.0 and np.mean(losses[-5:]) < 0.3
    assert all(((scale - INITIAL_SCALE).abs() > 1e-4).any() for scale in scales)


def test_bytes_are_scaled_and_rows_do_not_depend_on_each_other():
    encoder = VERResNetEncoder((3, 40, 44), hidden=16)
    images = torch.randint(0, 256, (3, 3, 40, 44), dtype=torch.uint8)
    features = encoder(images)
    torch.testing.assert_close(encoder(images.float() / 255), features)
    torch.testing.assert_close(encoder(images[1:2]), features[1:2], atol=1e-5, rtol=1e-4)


def test_a_policy_uses_it():
    image = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    spec = PoolSpec(observation_space=image, action_space=spaces.Discrete(3), num_envs=2)
    policy = ActorCritic(spec, PolicyConfig(encoder="ver_resnet18", encoder_size=32))
    assert isinstance(policy.trunk.images[0], VERResNetEncoder) and policy.has_convolutions
    params, value, _ = policy.act({"obs": torch.zeros(2, 64, 64, 3, dtype=torch.uint8)}, policy.initial_state(2))
    assert params.shape == (2, 3) and value.isfinite().all()
    assert "ver_resnet18" in ENCODERS


def test_error_messages_say_what_is_allowed():
    with pytest.raises(UsageError, match="ver_resnet18 needs images of at least 32x32 pixels, got 64x31"):
        VERResNetEncoder((3, 64, 31))
    with pytest.raises(UsageError, match="multiple of the 16 groups"):
        VERResNetEncoder((3, 64, 64), base_planes=24)
