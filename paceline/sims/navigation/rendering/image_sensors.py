"""The image sensors of a simulator: their observation leaves, dtypes and noise. Nothing is rendered twice."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.sims.navigation.config import NavigationConfig
from paceline.sims.navigation.layout import IMAGE
from paceline.sims.navigation.rendering import render
from paceline.sims.navigation.rendering.trace import trace
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.randomness import combine, normal

Images = dict[str, Tensor]


class Place(NamedTuple):
    """The positions of streams."""

    scenes: Tensor
    """int64 [N]."""
    poses: Tensor
    """[N, 3]."""
    noise_keys: Tensor
    """int64 [N]: keys of the random noise in these images."""


def image_spaces(config: NavigationConfig) -> dict[str, spaces.Space]:
    """The spaces of the images."""
    side = config.resolution
    parts: dict[str, spaces.Space] = {}
    if "depth" in config.sensors:
        highest = 255 if config.depth_dtype == "uint8" else 1
        parts["depth"] = spaces.Box(0, highest, (1, side, side), np.dtype(config.depth_dtype).type)
    if "rgb" in config.sensors:
        parts["rgb"] = spaces.Box(0, 255, (3, side, side), np.uint8)
    return parts


class ImageSensors:
    """Renders the images of streams at one place, or before and after some of them are reset."""

    def __init__(self, bank: SceneBank, config: NavigationConfig) -> None:
        self._bank, self._noise = bank, config.image_noise
        self._wants_depth, self._wants_rgb = "depth" in config.sensors, "rgb" in config.sensors
        self._dtype = render.DEPTH_DTYPES[config.depth_dtype]
        self._camera = render.Camera(config.resolution, bank.device)
        self._pixels = torch.arange(config.resolution**2, device=bank.device)

    def see(self, place: Place) -> Images:
        if not (self._wants_depth or self._wants_rgb):
            return {}
        return self._develop(self._trace(place), place)

    def see_both(self, before: Place, after: Place, changed: Tensor) -> tuple[Images, Images]:
        """The images at `before` and at `after`, which differ only for the streams in `changed` (bool [N])."""
        if not (self._wants_depth or self._wants_rgb):
            return {}, {}
        if changed.is_cuda:
            view = self._trace(before)
            again = self._trace(after, only=changed, otherwise=view)
            return self._develop(view, before), self._develop(again, after)
        rows = changed.nonzero()[:, 0]  # on the host this does not wait for a device
        if not len(rows):
            images = self.see(before)
            return images, images
        both = self.see(Place(*(torch.cat((old, new[rows])) for old, new in zip(before, after, strict=True))))
        num = len(changed)
        first = {name: values[:num] for name, values in both.items()}
        return first, {name: values.index_copy(0, rows, both[name][num:]) for name, values in first.items()}

    def renew(self, images: Images, place: Place, changed: Tensor) -> Images:
        """`images`, and those at `place` for the streams in `changed` (bool [N])."""
        if not images:
            return {}
        if changed.is_cuda:
            side = self._camera.resolution
            nothing = torch.zeros(len(changed), side, side, device=changed.device)
            blank = render.View(nothing, nothing.long() if self._wants_rgb else None)
            fresh = self._develop(self._trace(place, only=changed, otherwise=blank), place)
            return {name: torch.where(changed[:, None, None, None], fresh[name], old) for name, old in images.items()}
        rows = changed.nonzero()[:, 0]
        if not len(rows):
            return {name: old.clone() for name, old in images.items()}
        fresh = self.see(Place(*(part[rows] for part in place)))
        return {name: old.index_copy(0, rows, fresh[name]) for name, old in images.items()}

    def _trace(self, place: Place, **unchanged: Any) -> render.View:
        return trace(self._bank, self._camera, place.scenes, place.poses, self._wants_rgb, **unchanged)

    def _develop(self, view: render.View, place: Place) -> Images:
        images = {}
        noise = self._normal(place.noise_keys) if self._noise else None
        if self._wants_depth:
            depth = view.depth if noise is None else (view.depth * (1.0 + self._noise * noise)).clamp_(0.0, 1.0)
            images["depth"] = render.encode_depth(depth, self._dtype)
        if self._wants_rgb:
            rgb = render.shade(self._bank, self._camera, place.scenes, place.poses, view)
            if noise is not None:
                rgb = (rgb + 255.0 * self._noise * noise[:, None]).clamp_(0.0, 255.0).round_().to(torch.uint8)
            images["rgb"] = rgb
        return images

    def _normal(self, keys: Tensor) -> Tensor:
        """[N, H, W]: one normal number per pixel."""
        side = self._camera.resolution
        return normal(combine(combine(keys, IMAGE)[:, None], self._pixels)).view(-1, side, side)
