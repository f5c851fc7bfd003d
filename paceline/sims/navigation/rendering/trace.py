"""`trace` and `shade`: views of cameras and their colours, by tensors on a CPU and by kernels on a GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paceline.sims.navigation.rendering import render
from paceline.sims.navigation.scenes.bank import SceneBank

# The kernels are imported where they are used, because Triton is installed only with CUDA.


def trace(
    bank: SceneBank, camera: render.Camera, scenes: Tensor, poses: Tensor, surfaces: bool, **for_gpu: Any
) -> render.View:
    """See `render.trace`. `for_gpu` are further options of `render_triton.trace`; a CPU ignores them."""
    if scenes.is_cuda:
        from paceline.sims.navigation.rendering import render_triton

        return render_triton.trace(bank, camera, scenes, poses, surfaces, **for_gpu)
    return render.trace(bank, camera, scenes, poses, surfaces)


def shade(
    bank: SceneBank, camera: render.Camera, scenes: Tensor, poses: Tensor, view: render.View, only: Tensor | None = None
) -> Tensor:
    """See `render.shade`. `only` is for a GPU: see `paint_triton.paint`."""
    if scenes.is_cuda:
        from paceline.sims.navigation.rendering import paint_triton

        return paint_triton.paint(bank.colors, render.floor_of(bank), camera, scenes, poses, view, only=only)
    return render.shade(bank, camera, scenes, poses, view)
