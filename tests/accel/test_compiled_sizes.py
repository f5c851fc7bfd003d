"""Batch sizes have code of their own, so that acting and learning do not share slower code."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from paceline.accel.compiled_sizes import OWN_CODE, CompiledBySize


@pytest.fixture(params=[False, True], ids=["", "channels last"])
def compiled(monkeypatch, request):
    """What torch.compile makes says for how many sizes it is, and on what it was called."""
    calls = []

    def fake_compile(function, dynamic=None, options=None):
        def call(x):
            learns = dynamic is False and torch.is_grad_enabled()
            assert options == ({"force_layout_optimization": True} if request.param and learns else None)
            calls.append(("one" if dynamic is False else "any", len(x), torch.is_grad_enabled()))
            return function(x)

        return call

    monkeypatch.setattr(torch, "compile", fake_compile)
    return CompiledBySize(lambda x: 2 * x, len, channels_last=request.param), calls


def test_acting_and_learning_have_code_of_their_own(compiled):
    function, calls = compiled
    for _ in range(2):
        with torch.no_grad():
            assert function(torch.ones(32)).sum() == 64
        assert function(torch.ones(2048)).sum() == 4096
    assert calls == 2 * [("one", 32, False), ("one", 2048, True)]


def test_sizes_that_vary_share_code(compiled):
    function, calls = compiled
    for size in (5, 3, 7, 4, 5):
        function(torch.ones(size))
    assert OWN_CODE == 2
    assert [kind for kind, *_ in calls] == ["one", "one", "any", "any", "one"]


def test_inside_a_compiled_function_it_is_the_plain_one():
    plain = CompiledBySize(lambda x: 2 * x, len)

    @torch.compile(backend="eager", fullgraph=True)
    def whole(x):
        return plain(x) + 1

    assert whole(torch.ones(3)).tolist() == [3.0] * 3


GRADIENT = """
import torch
from paceline.accel.compiled_sizes import CompiledBySize
from paceline.nets.resnet import ResNetEncoder

encoder = ResNetEncoder((1, 256, 256), "se_resnext50", hidden=512).cuda()
compiled = CompiledBySize(encoder.forward, len, channels_last=True)
with torch.autocast("cuda", torch.bfloat16):
    with torch.no_grad():
        compiled(torch.rand(256, 1, 256, 256, device="cuda"))
    compiled(torch.rand(2048, 1, 256, 256, device="cuda")).float().square().mean().backward()
torch.cuda.synchronize()
assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_learning_after_acting_does_not_fail():
    """In a process of its own, because a failure ends all use of the GPU. Compiling takes a minute."""
    done = subprocess.run([sys.executable, "-c", GRADIENT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
