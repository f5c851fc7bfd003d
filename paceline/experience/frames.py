"""`FrameStore`: the frames of image observations, each stored once.

Legend: B observations, S frames of a stack, K frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.experience.rows import signed, zeros


@dataclass(frozen=True)
class FrameLayout:
    """How an image observation consists of frames: they follow each other in its channels."""

    name: str
    shape: tuple[int, ...]
    """[C, H, W], or [H, W, C] with `channels_last`."""
    dtype: np.dtype
    channels_last: bool
    stack: int

    def __post_init__(self) -> None:
        if self._channels % self.stack:
            raise UsageError(
                f"replay.stack is {self.stack}, but the image {self.name!r} has {self._channels} channels; "
                f"allowed: 1, or another divisor of {self._channels}"
            )

    @property
    def _channels(self) -> int:
        return self.shape[2] if self.channels_last else self.shape[0]

    @property
    def frame_shape(self) -> tuple[int, ...]:
        sides = self.shape[:2] if self.channels_last else self.shape[1:]
        return (self._channels // self.stack, *sides)

    @property
    def frame_bytes(self) -> int:
        return int(np.prod(self.frame_shape)) * self.dtype.itemsize

    def split(self, images: np.ndarray) -> np.ndarray:
        """[B, S, ...]: the frames of images [B, ...]."""
        images = np.moveaxis(images, 3, 1) if self.channels_last else images
        return images.reshape(len(images), self.stack, *self.frame_shape)

    def join(self, frames: Tensor) -> Tensor:
        """[B, ...]: the images of frames [B, S, ...]."""
        images = frames.flatten(1, 2)
        return images.movedim(1, 3).contiguous() if self.channels_last else images


class FrameStore:
    """Frames on one device, found by their contents. A frame is overwritten only when nothing refers to it any more.

    References are counted on the host.
    """

    def __init__(self, layout: FrameLayout, capacity: int, device: torch.device) -> None:
        none = torch.from_numpy(np.zeros(0, layout.dtype))
        self._dtype = none.dtype
        self._frames = zeros((capacity, *layout.frame_shape), signed(none).dtype, device)
        self._references = np.zeros(capacity, np.int64)
        self._place_of: dict[bytes, int] = {}
        """The place of each stored frame, by its digest."""
        self._digest_at = [b""] * capacity
        self._free = np.arange(capacity)[::-1].copy()
        """The places that are not used are its first `num_free` numbers."""
        self.num_free = capacity

    @property
    def num_bytes(self) -> int:
        return self._frames.numel() * self._frames.element_size()

    def num_new(self, digests: Sequence[bytes]) -> int:
        """How many frames with these digests are not stored yet."""
        return len({digest for digest in digests if digest not in self._place_of})

    def acquire(self, frames: np.ndarray, digests: Sequence[bytes], make_room: Callable[[int], None]) -> np.ndarray:
        """[K]: the places of frames [K, ...], with one reference more each. New frames are stored.

        `make_room(count)` must release references until `count` places are free.
        """
        known = [self._place_of[digest] for digest in digests if digest in self._place_of]
        self.refer(np.array(known, np.int64))  # so that making room does not free them
        new = {digest: at for at, digest in enumerate(digests) if digest not in self._place_of}
        make_room(len(new))
        self.num_free -= len(new)
        places = self._free[self.num_free : self.num_free + len(new)].copy()
        on_device = torch.from_numpy(places).to(self._frames.device)
        self._frames[on_device] = signed(torch.from_numpy(frames[list(new.values())])).to(self._frames.device)
        for digest, place in zip(new, places.tolist(), strict=True):
            self._place_of[digest], self._digest_at[place] = place, digest
        found = np.array([self._place_of[digest] for digest in digests], np.int64)
        self.refer(found[np.array([digest in new for digest in digests], bool)])
        return found

    def refer(self, places: np.ndarray) -> None:
        """Add one reference to each of `places`, which may appear several times."""
        np.add.at(self._references, places, 1)

    def release(self, places: np.ndarray) -> None:
        """Remove one reference from each of `places`."""
        np.subtract.at(self._references, places, 1)
        unused = np.unique(places)
        unused = unused[self._references[unused] == 0]
        for place in unused.tolist():
            del self._place_of[self._digest_at[place]]
        self._free[self.num_free : self.num_free + len(unused)] = unused
        self.num_free += len(unused)

    def get(self, places: Tensor) -> Tensor:
        """[..., C, H, W]: the frames at `places` [...], on the device."""
        found = self._frames.index_select(0, places.flatten().long())
        return found.view(*places.shape, *self._frames.shape[1:]).view(self._dtype)


def digests_of(frames: np.ndarray) -> list[bytes]:
    """A digest of each of the frames [K, ...]. Different frames have different ones."""
    return [blake2b(frame, digest_size=16).digest() for frame in np.ascontiguousarray(frames)]
