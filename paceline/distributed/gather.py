"""Passes states between ranks: from all to rank 0, from all to all, and from one to all.

They travel as data: unlike a pickle, nothing in them is executed. A state consists of tensors, numbers, strings, bytes,
None, lists, tuples and dictionaries. Tensors arrive on the CPU.
"""

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
    """Every rank's `value`, in order of ranks, on rank 0; an empty list on other ranks. Rank 0's own value is not
    copied."""
    if group.size == 1:
        return [value]
    data = memoryview(b"") if group.is_first else _serialize(value)
    files = _collect(group, data, to_all=False)
    return [value, *(_deserialize(file) for file in files[1:])] if group.is_first else []


def gather_to_all(group: Group, value: Any) -> list[Any]:
    """Every rank's `value`, in order of ranks, on every rank."""
    if group.size == 1:
        return [value]
    return [_deserialize(file) for file in _collect(group, _serialize(value), to_all=True)]


def broadcast(group: Group, value: Any, source: int) -> Any:
    """The `value` of rank `source`, on every rank. Those of other ranks are not read."""
    if group.size == 1:
        return value
    data = _serialize(value) if group.rank == source else memoryview(b"")
    size = int(group.broadcast_(torch.tensor([len(data)], device=group.device), source))
    file = io.BytesIO()
    for begin in range(0, size, PART_BYTES):
        part = _part(data, begin, min(PART_BYTES, size - begin)).to(group.device)
        file.write(group.broadcast_(part, source).cpu().numpy().data)
    return _deserialize(file)


def _collect(group: Group, data: memoryview, *, to_all: bool) -> list[io.BytesIO]:
    """The `data` of every rank; nothing in the files of ranks that do not get it."""
    lengths = torch.zeros(group.size, dtype=torch.int64, device=group.device)
    lengths[group.rank] = len(data)
    sizes = group.sum_(lengths).tolist()
    files = [io.BytesIO() for _ in sizes]
    for begin in range(0, max(sizes), PART_BYTES):
        part = _part(data, begin, min(PART_BYTES, max(sizes) - begin)).to(group.device)
        parts = [torch.empty_like(part) for _ in sizes] if to_all or group.is_first else None
        with communication():
            dist.all_gather(parts, part) if to_all else dist.gather(part, parts)
        for file, size, other in zip(files, sizes, parts or [], strict=False):
            file.write(other[: max(0, size - begin)].cpu().numpy().data)
    return files


def _part(data: memoryview, begin: int, size: int) -> torch.Tensor:
    """`size` bytes from `begin` on, filled up with zeros."""
    part = torch.zeros(size, dtype=torch.uint8)
    mine = data[begin : begin + size]
    if mine:
        part[: len(mine)] = torch.frombuffer(mine, dtype=torch.uint8)
    return part


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
