"""GPU streams, one for each role, for as long as the process lives."""

from __future__ import annotations

import threading
from collections import deque

import torch

HANDED_OUT = 32
"""The number of streams in PyTorch's pool for a device."""
_LOCK = threading.Lock()
_STREAMS: dict[tuple[torch.device, str], torch.cuda.Stream] = {}


def stream_for(role: str, device: torch.device) -> torch.cuda.Stream:
    """The stream of `role`. No other role has it.

    PyTorch hands out its 32 streams in turn, again and again, so that two users may get the same one. Work launched on
    a stream that another thread is recording on would be recorded and not done.
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


class DeviceQueue:
    """Bounds how far the host runs ahead of a GPU: launched work cannot be stopped any more."""

    MOST = 2
    """Pieces of work that are launched and not done."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._done: deque[torch.cuda.Event] = deque()

    def wait(self) -> None:
        """Call it after each launch. It waits while more than `MOST` pieces of work are not done."""
        if not self._on_gpu:
            return
        event = torch.cuda.Event(blocking=True)  # sleeps instead of spinning: simulators need the core
        event.record()
        self._done.append(event)
        if len(self._done) > self.MOST:
            self._done.popleft().synchronize()
