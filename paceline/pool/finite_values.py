"""Finding NaN and infinity in the values of a simulator.

Pools check every number of every step, so a check must be cheap, and `numpy.isfinite(values).all()` is not. Cheaper
checks come first:

- Few numbers: the exponent bits of NaN and infinity are all ones, which shows in the bytes (`is_extreme`). Python's own
  operations on bytes are much faster than a NumPy call.
- Many numbers: their dot product with themselves is finite only if all of them are. It takes one pass and no memory.
"""

from __future__ import annotations

import sys
from math import isfinite

import numpy as np

FLOAT32 = np.dtype(np.float32)
FLOAT32_MAX = float(np.finfo(np.float32).max)

FEW = 256
"""Up to this many numbers the check of their bytes is cheaper."""

_HIGHEST_BYTES = slice(3 if sys.byteorder == "little" else 0, None, 4)
"""The bytes of float32 numbers that hold the sign and all but one bit of the exponent."""


def is_extreme(data: bytes) -> bool:
    """Whether one of the float32 numbers in `data` is not finite, or beyond 1.7e38."""
    highest = data[_HIGHEST_BYTES]
    return 0x7F in highest or 0xFF in highest


def all_finite(values: np.ndarray) -> bool:
    if values.dtype is FLOAT32 and values.size <= FEW and not is_extreme(values.tobytes()):
        return True
    return isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())


def first_bad(values: np.ndarray) -> tuple[int, ...]:
    """The index of the first number that is not finite. There must be one."""
    return tuple(np.argwhere(~np.isfinite(values))[0].tolist())


def describe(value: float, index: tuple[int, ...] = ()) -> str:
    """The text for a number that is not finite as float32, at `index` of an array."""
    where = f" at index {list(index)}" if index else ""
    return f"{value}{where}" + (", which is beyond float32" if isfinite(value) else "")
