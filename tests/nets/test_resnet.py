"""DD-PPO's residual encoders: depths, widths and parameter counts, by hand and from the literature."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.errors import UsageError
from paceline.nets.resnet import ARCHITECTURES, ResNet, ResNetEncoder, SqueezeExcite

NAMES = list(ARCHITECTURES)


def num_params(module: nn.Module) -> int:
    return sum(values.numel() for values in module.parameters())


def trunk(name: str, base_planes: int, in_channels: int = 3) -> ResNet:
    with torch.device("meta"):  # shapes only: nothing is computed
        return ResNet(in_channels, ARCHITECTURES[name], base_planes=base_planes, num_groups=16)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # ImageNet models with a BatchNorm for each of our GroupNorms, without their last layer of 1,000 classes.
        ("resnet18", 11_689_512 - 513_000),
        ("resnet50", 25_557_032 - 2_049_000),
        ("se_resnext50", 27_559_896 - 2_049_000),
        ("se_resnext101", 48_955_416 - 2_049_000),
    ],
)
def test_full_width_has_the_published_number_of_parameters(name, published):
    assert num_params(trunk(name, base_planes=64)) == published


@pytest.mark.parametrize(
    ("name", "layers"), [("resnet18", 18), ("resnet50", 50), ("se_resnext50", 50), ("se_resnext101", 101)]
)
def test_depth_is_what_the_name_says(name, layers):
    """Convolutions on the longest path, and the fully connected layer that a classifier has after them."""
    convs = [
        path
        for path, module in trunk(name, 32).named_modules()
        if isinstance(module, nn.Conv2d) and "shortcut" not in path
    ]
    assert len(convs) + 1 == layers


def test_half_width_resnet50_by_hand():
    def conv(source, target, kernel):
        return source * target * kernel**2 + 2 * target  # the GroupNorm's weight and bias

    count, channels = conv(3, 32, 7), 32
    for planes, depth in [(32, 3), (64, 4), (128, 6), (256, 3)]:
        for index in range(depth):
            count += conv(channels, planes, 1) + conv(planes, planes, 3) + conv(planes, 4 * planes, 1)
            count += conv(channels, 4 * planes, 1) if index == 0 else 0
            channels = 4 * planes
    assert num_params(trunk("resnet50", 32)) == count


def test_half_width_gives_1024_channels_as_in_the_paper():
    assert [trunk(name, 32).out_channels for name in NAMES] == [256, 1024, 1024, 1024]


def test_every_block_of_a_resnext_is_grouped():
    convs = [module for module in trunk("se_resnext50", 32).blocks.modules() if isinstance(module, nn.Conv2d)]
    assert {conv.groups for conv in convs if conv.kernel_size == (3, 3)} == {16}
    assert sum(isinstance(module, SqueezeExcite) for module in trunk("se_resnext50", 32).modules()) == 16


def test_no_batch_statistics_anywhere():
    assert not [module for name in NAMES for module in trunk(name, 32).modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("side", "compressed"), [(64, (2048, 1, 1)), (128, (512, 2, 2)), (256, (128, 4, 4))])
def test_compression_leaves_2048_features(name, side, compressed):
    with torch.device("meta"), torch.no_grad():
        encoder = ResNetEncoder((3, side, side), name, hidden=32)
        shapes = []
        encoder.compress.register_forward_hook(lambda module, inputs, features: shapes.append(features.shape))
        assert encoder(torch.empty(2, 3, side, side)).shape == (2, encoder.out_features) == (2, 32)
        assert shapes == [(2, *compressed)]


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward(name):
    encoder = ResNetEncoder((1, 33, 70), name, hidden=8)
    depth = torch.randint(0, 256, (2, 1, 33, 70), dtype=torch.uint8)
    features = encoder(depth)
    features.sum().backward()
    assert features.shape == (2, 8)
    assert features.isfinite().all()
    assert all(values.grad is not None and values.grad.isfinite().all() for values in encoder.parameters())
    torch.testing.assert_close(encoder(depth.float() / 255), features)


def test_rows_do_not_depend_on_each_other():
    encoder = ResNetEncoder((3, 64, 64), "resnet18", hidden=8)
    images = torch.rand(3, 3, 64, 64)
    torch.testing.assert_close(encoder(images)[1:2], encoder(images[1:2]), atol=1e-5, rtol=1e-4)


def test_error_messages_say_what_is_allowed():
    with pytest.raises(UsageError, match="resnet18, resnet50, se_resnext50, se_resnext101"):
        ResNetEncoder((3, 64, 64), "resnet34")
    with pytest.raises(UsageError, match="at least 32x32 pixels, got 64x31"):
        ResNetEncoder((3, 64, 31), "resnet18")
    with pytest.raises(UsageError, match="multiple of the 16 groups"):
        ResNetEncoder((3, 64, 64), "resnet18", base_planes=24)
