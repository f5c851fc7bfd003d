"""Streams of a GPU, one for each role, for as long as the process lives."""

from __future__ import annotations

import threading

import torch

HANDED_OUT = 32
"""PyTorch's streams of a device."""
_LOCK = threading.Lock()
_STREAMS: dict[tuple[torch.device, str], torch.cuda.Stream] = {}


def stream_for(role: str, device: torch.device) -> torch.cuda.Stream:
    """The stream of `role`, which no other role has.

    PyTorch has 32 streams and hands them out in turn, over and over. Whoever asks for a new one again and again shares one with
    somebody else in the end; and what is launched on a stream that another thread is recording on is recorded, and not done.
    """
    with _LOCK:
        if (device, role) not in _STREAMS:
            taken = set(_STREAMS.values())
            offered = (torch.cuda.Stream(device) for _ in range(HANDED_OUT))
            stream = next((stream for stream in offered if stream not in taken), None)
            if stream is None:
                raise RuntimeError(f"all {HANDED_OUT} streams of {device} have a role already")
            _STREAMS[device, role] = stream
        return _STREAMS[device, role]
