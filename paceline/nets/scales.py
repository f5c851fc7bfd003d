"""Warnings about scales of numbers: of actions that a new policy cannot explore, and of images in unusual numbers."""

from __future__ import annotations

import logging

import numpy as np
from gymnasium import spaces

from paceline.nets.config import PolicyConfig
from paceline.nets.images import is_image
from paceline.pool.protocol import PoolSpec

log = logging.getLogger(__name__)

WIDEST, NARROWEST = 20.0, 0.2
"""Ranges of actions in which a standard deviation of 1 still explores."""
FARTHEST = 1.0
"""Largest distance of a range from 0."""
UNLIMITED = 1e4
"""The bounds of a wider range only say that there are none: squashing to them would help nobody."""
LARGE = 10.0
"""Images with larger numbers should be bytes."""
MANY = 1000
"""So many bytes, in two or four dimensions, are probably an image."""


def warn_of_scale(spec: PoolSpec, policy: PolicyConfig, env: str) -> None:
    """Name the first range of an action in which a new policy hardly explores, or tries the bounds only."""
    if policy.is_own or policy.head.squash:
        return
    for space in (leaf.space for leaf in spec.actions):
        if not isinstance(space, spaces.Box) or not space.is_bounded():
            continue
        widths = space.high.astype(float) - space.low.astype(float)
        is_far = (space.low > FARTHEST) | (space.high < -FARTHEST)
        odd = np.argwhere((widths > WIDEST) | (widths < NARROWEST) | is_far)
        if len(odd):
            at = tuple(odd[0])
            wide = widths[at] > UNLIMITED
            log.warning(
                "actions of %s are between %g and %g, and a new policy acts around 0 with a standard deviation of 1: "
                "%s",
                env,
                space.low[at],
                space.high[at],
                "narrower bounds in the environment help" if wide else "--policy.head.squash scales to the bounds",
            )
            return


def warn_of_images(spec: PoolSpec, policy: PolicyConfig, env: str, *, normalizes: bool) -> None:
    """Name images that a network sees in an unusual way: with large numbers, or not as images. `normalizes`: the
    network normalises images."""
    if policy.is_own:
        return
    for leaf in spec.obs:
        if not isinstance(leaf.space, spaces.Box):
            continue
        is_bytes, high = leaf.dtype == np.uint8, leaf.space.high.max(initial=0)
        if is_image(leaf) and not is_bytes and LARGE < high < np.inf and not normalizes:
            log.warning(
                "observation %s of %s is an image of %s up to %g, which the network sees as they are; bytes (uint8) "
                "are scaled to between 0 and 1",
                leaf.name,
                env,
                leaf.dtype,
                high,
            )
        if is_bytes and len(leaf.shape) in (2, 4) and high == 255 and np.prod(leaf.shape) > MANY:
            log.warning(
                "observation %s of %s has %d dimensions, and is no image for the network: images have three, "
                "[channels, height, width] or [height, width, channels]",
                leaf.name,
                env,
                len(leaf.shape),
            )
