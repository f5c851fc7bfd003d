"""Which observations are images, and how encoders see them. Free of PyTorch: defaults are chosen before it is imported.

An observation of three dimensions is an image, unless all of its values are 0 or 1: that is a board, with a plane for
each kind of piece.
"""

from __future__ import annotations

from gymnasium import spaces

from paceline.pool.spaces import Leaf


def is_image(leaf: Leaf) -> bool:
    """Whether an encoder of images sees the leaf."""
    return len(leaf.shape) == 3 and not is_binary(leaf.space)


def is_binary(space: spaces.Space) -> bool:
    """Whether all values are 0 or 1."""
    if isinstance(space, spaces.MultiBinary):
        return True
    return isinstance(space, spaces.Box) and space.dtype.kind in "biu" and bool((space.high <= 1).all())


def is_channels_last(leaf: Leaf) -> bool:
    """An image [H, W, C], as most renderers give it. It has one, three or four channels."""
    return is_image(leaf) and leaf.shape[2] in (1, 3, 4) and leaf.shape[0] not in (1, 3, 4)


def seen_shape(leaf: Leaf) -> tuple[int, ...]:
    """The shape that encoders see: images have their channels first."""
    return (leaf.shape[2], *leaf.shape[:2]) if is_channels_last(leaf) else leaf.shape
