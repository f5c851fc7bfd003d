"""Random shifts against NumPy, image by image."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.ops.random_shift import shift_images


def padded_and_cropped(image: np.ndarray, row: int, column: int, pad: int) -> np.ndarray:
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="edge")
    return padded[:, row : row + height, column : column + width]


@settings(max_examples=60)
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 9),
    st.sampled_from([np.uint8, np.float32]),
    st.integers(0, 10**6),
)
def test_every_image_is_padded_and_cropped(batch, channels, height, width, pad, dtype, seed):
    """Also where the padding is larger than the image."""
    rng = np.random.default_rng(seed)
    images = rng.integers(256, size=(batch, channels, height, width)).astype(dtype)
    offsets = rng.integers(2 * pad + 1, size=(batch, 2))
    found = shift_images(torch.from_numpy(images), torch.from_numpy(offsets), pad).numpy()
    assert found.dtype == dtype
    for image, (row, column), shifted in zip(images, offsets, found, strict=True):
        np.testing.assert_array_equal(shifted, padded_and_cropped(image, row, column, pad))


def test_in_the_middle_an_image_stays_as_it_is():
    images = torch.randint(256, (3, 2, 5, 6), dtype=torch.uint8)
    assert torch.equal(shift_images(images, torch.full((3, 2), 4), 4), images)
