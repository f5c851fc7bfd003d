"""Counter-based random numbers: each is a hash of a key and a counter.

So a stream has the same numbers on every device, in a batch of any size and after a restart, and there is no generator
state to save. All integers are below 2**32, in int64 tensors or Python ints.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

Integers = TypeVar("Integers", int, Tensor)

MASK = 0xFFFFFFFF
_FACTOR = 0x045D9F3B  # below 2**31, so that no product leaves 63 bits
_GOLDEN = 0x9E3779B1


def mix(number: Integers) -> Integers:
    """A bijective hash of 32-bit numbers."""
    number = ((number >> 16) ^ number) * _FACTOR & MASK
    number = ((number >> 16) ^ number) * _FACTOR & MASK
    return (number >> 16) ^ number


def combine(key: Integers, counter: Integers | int) -> Integers:
    """The key of `counter` under `key`."""
    return mix((key + counter * _GOLDEN) & MASK)


def stream_keys(seed: int, streams: Tensor) -> Tensor:
    """A key for each of `streams` under `seed`, any integer of up to 64 bits."""
    key = combine(mix(seed & MASK), (seed >> 32) & MASK)
    return combine(torch.full_like(streams, key), streams)


def below(numbers: Tensor, limits: Tensor | int) -> Tensor:
    """Uniform integers in [0, limits) from uniform 32-bit ones."""
    return (numbers * limits) >> 32


def normal(keys: Tensor) -> Tensor:
    """A standard normal number for each key, by the Box-Muller transform."""
    first, second = ((mix(keys ^ salt) >> 8).float().add_(0.5).mul_(2.0**-24) for salt in (0x68E31DA4, 0x1B56C4E9))
    return (-2.0 * first.log()).sqrt_().mul_((2.0 * math.pi * second).cos())
