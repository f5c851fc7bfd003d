"""Memory that two threads use in turns, on a GPU as well, where each has a stream of its own."""

from __future__ import annotations

import threading

import torch


class StreamLock:
    """A lock. Whoever takes it sees all that the one before did on its stream, without anybody waiting on the host for it."""

    def __init__(self, device: torch.device) -> None:
        self._lock, self._on_gpu = threading.Lock(), device.type == "cuda"
        self._done: torch.cuda.Event | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self._done is not None:
                torch.cuda.current_stream().wait_event(self._done)
        except BaseException:  # a device that has failed: the other thread must come to see it, too
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self._on_gpu:
                self._done = torch.cuda.current_stream().record_event()
        finally:
            self._lock.release()
