"""On a GPU: the kernel sees what the tensor code sees, and it can be captured."""

import pytest
import torch

from paceline.sims.rearrangement.rendering import render
from paceline.sims.rearrangement.rendering.head import head_camera
from paceline.sims.rearrangement.rendering.trace import trace
from tests.sims.rearrangement.moving_things import random_views, static_boxes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def views_on(device, count, **counts):
    return tuple(values.to(device) for values in random_views(count, **counts))


@pytest.mark.parametrize("side", [8, 20, 64, 128])
@pytest.mark.parametrize("surfaces", [False, True])
def test_the_kernel_sees_what_the_tensors_see(side, surfaces):
    from paceline.sims.rearrangement.rendering import render_triton

    static, camera, views = static_boxes("cuda")[1], head_camera(side, "cuda"), views_on("cuda", 16)
    got = render_triton.trace(static, camera, *views, surfaces)
    for want in (
        render.trace(static, camera, *views, surfaces),
        render.trace(static_boxes()[1], head_camera(side), *(values.cpu() for values in views), surfaces),
    ):
        # At the edges of things, rounding decides which of two is seen.
        assert ((got.depth - want.depth.cuda()).abs() < 1e-4).float().mean() > 0.999
        if surfaces:
            assert (got.surfaces == want.surfaces.cuda()).float().mean() > 0.995
    only = torch.arange(16, device="cuda") % 3 == 0
    flipped = tuple(values.flip(0) for values in views)
    again = render_triton.trace(static, camera, *flipped, surfaces, only=only, otherwise=got)
    assert torch.equal(again.depth[~only], got.depth[~only])
    assert torch.equal(again.depth[only], got.depth.flip(0)[only])


@pytest.mark.parametrize(("num_boxes", "num_links"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_kernel_takes_any_number_of_things(num_boxes, num_links):
    static, camera = static_boxes("cuda")[1], head_camera(32, "cuda")
    views = views_on("cuda", 8, num_boxes=num_boxes, num_links=num_links)
    got, want = trace(static, camera, *views, True), render.trace(static, camera, *views, True)
    assert ((got.depth - want.depth).abs() < 1e-4).float().mean() > 0.999
    assert (got.surfaces == want.surfaces).float().mean() > 0.995


def test_the_kernel_can_be_captured():
    static, camera = static_boxes("cuda")[1], head_camera(32, "cuda")
    first, second = views_on("cuda", 8), views_on("cuda", 8, seed=1)
    inputs = tuple(values.clone() for values in first)
    trace(static, camera, *inputs, True)  # compiles the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = trace(static, camera, *inputs, True)
    for views in (first, second):
        for values, new in zip(inputs, views, strict=True):
            values.copy_(new)
        graph.replay()
        want = trace(static, camera, *views, True)
        assert torch.equal(replayed.depth, want.depth) and torch.equal(replayed.surfaces, want.surfaces)
