"""`trace`: views of cameras, by tensors on a CPU and by a kernel on a GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paceline.sims.navigation.rendering.render import Camera, View
from paceline.sims.rearrangement.rendering import render
from paceline.sims.rearrangement.rendering.candidates import StaticBoxes


def trace(
    static: StaticBoxes,
    camera: Camera,
    scenes: Tensor,
    poses: Tensor,
    boxes: Tensor,
    capsules: Tensor,
    surfaces: bool = False,
    **unchanged: Any,
) -> View:
    """See `render.trace`. `unchanged` is for a GPU: `only` and `otherwise` of `render_triton.trace`."""
    if scenes.is_cuda:
        # Imported here, because Triton is installed only with CUDA.
        from paceline.sims.rearrangement.rendering import render_triton

        return render_triton.trace(static, camera, scenes, poses, boxes, capsules, surfaces, **unchanged)
    return render.trace(static, camera, scenes, poses, boxes, capsules, surfaces)
