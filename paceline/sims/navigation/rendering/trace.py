"""`trace`: views of cameras, by tensors on a CPU and by a kernel on a GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paceline.sims.navigation.rendering import render
from paceline.sims.navigation.scenes.bank import SceneBank


def trace(
    bank: SceneBank, camera: render.Camera, scenes: Tensor, poses: Tensor, surfaces: bool, **unchanged: Any
) -> render.View:
    """See `render.trace`. `unchanged` is for a GPU: `only` and `otherwise` of `render_triton.trace`."""
    if scenes.is_cuda:
        # Imported here, because Triton is installed only with CUDA.
        from paceline.sims.navigation.rendering import render_triton

        return render_triton.trace(bank, camera, scenes, poses, surfaces, **unchanged)
    return render.trace(bank, camera, scenes, poses, surfaces)
