"""Collects the states of all ranks on rank 0. They travel as data: unlike a pickle, nothing in them is executed."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist

from paceline.distributed.runtime import Group, communication

PART_BYTES = 1 << 26
"""States travel in parts of this size, so that a transfer needs little GPU memory."""
BYTES = "\0bytes"
"""Key that marks a tensor made of a `bytes` object."""


def gather(group: Group, value: Any) -> list[Any]:
    """Every rank's `value`, in order of ranks, on rank 0; an empty list on other ranks.

    A value consists of tensors, numbers, strings, bytes, None, lists, tuples and dictionaries. Tensors arrive on the
    CPU. Rank 0's own value is not copied.
    """
    if group.size == 1:
        return [value]
    data = memoryview(b"") if group.is_first else _serialize(value)
    lengths = torch.zeros(group.size, dtype=torch.int64, device=group.device)
    lengths[group.rank] = len(data)
    sizes = group.sum_(lengths).tolist()
    files = [io.BytesIO() for _ in sizes]
    for begin in range(0, max(sizes), PART_BYTES):
        part = torch.zeros(min(PART_BYTES, max(sizes) - begin), dtype=torch.uint8)
        mine = data[begin : begin + PART_BYTES]
        if mine:
            part[: len(mine)] = torch.frombuffer(mine, dtype=torch.uint8)
        part = part.to(group.device)
        parts = [torch.empty_like(part) for _ in sizes] if group.is_first else None
        with communication():
            dist.gather(part, parts)
        for file, size, other in zip(files, sizes, parts or [], strict=False):
            file.write(other[: max(0, size - begin)].cpu().numpy().data)
    return [value, *(_deserialize(file) for file in files[1:])] if group.is_first else []


def _serialize(value: Any) -> memoryview:
    file = io.BytesIO()
    torch.save(_replace_bytes(value), file)
    return file.getbuffer()


def _deserialize(file: io.BytesIO) -> Any:
    file.seek(0)
    return _restore_bytes(torch.load(file, map_location="cpu", weights_only=True))


def _replace_bytes(value: Any) -> Any:
    """`value` with bytes as tensors. PyTorch writes tensors as they are, but re-encodes bytes."""
    if isinstance(value, bytes):
        return {BYTES: torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)}
    return _map(_replace_bytes, value)


def _restore_bytes(value: Any) -> Any:
    if isinstance(value, dict) and BYTES in value:
        return value[BYTES].numpy().tobytes()
    return _map(_restore_bytes, value)


def _map(function: Any, value: Any) -> Any:
    """`value` with `function` applied to the items of a container."""
    if isinstance(value, dict):
        return {key: function(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(function(item) for item in value)
    return value
