"""A lock for memory that two threads use in turn, on a GPU too, where each thread has a stream of its own."""

from __future__ import annotations

import threading

import torch


class StreamLock:
    """A lock. Its holder's stream waits for the work of the previous holder's stream; the host does not wait."""

    def __init__(self, device: torch.device) -> None:
        self._lock, self._on_gpu = threading.Lock(), device.type == "cuda"
        self._done: torch.cuda.Event | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self._done is not None:
                torch.cuda.current_stream().wait_event(self._done)
        except BaseException:  # the device failed: the other thread must not wait for the lock forever
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self._on_gpu:
                self._done = torch.cuda.current_stream().record_event()
        finally:
            self._lock.release()
