"""Images of a report as data URIs."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from paceline.evaluation.charts import data_uri

MILLISECONDS, LAST_MILLISECONDS = 120, 1500
"""How long the frames of an animation are shown. The last one stays longer."""


def png(image: np.ndarray) -> str:
    """uint8 [H, W, 3] as a PNG."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png", optimize=True)
    return data_uri("image/png", file.getvalue())


def gif(images: Sequence[np.ndarray], milliseconds: int = MILLISECONDS) -> str:
    """uint8 [H, W, 3] each, as an animated GIF."""
    frames = [Image.fromarray(image).quantize(256) for image in images]
    file = io.BytesIO()
    lengths = [milliseconds] * (len(frames) - 1) + [LAST_MILLISECONDS]
    frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=lengths, loop=0)
    return data_uri("image/gif", file.getvalue())
