"""The latest weights, on their way from the thread that learns to the one that decides."""

from __future__ import annotations

import threading

import torch
from torch import nn


class Publication:
    """Weights with everything that belongs to them: normaliser statistics and the version are buffers, and go along.

    One thread calls `publish` after every update, another `pick_up` before every decision. Neither waits for more than
    the other's copying. On a GPU the copies are ordered by events, and nobody waits on the host.
    """

    def __init__(self, learned: nn.Module, acting: nn.Module) -> None:
        self._learned = list(learned.state_dict().values())
        self._acting = list(acting.state_dict().values())
        self._latest = [tensor.clone() for tensor in self._learned]
        self._on_gpu = self._learned[0].is_cuda
        self._lock = threading.Lock()
        self._published = self._picked_up = 0
        self._written: torch.cuda.Event | None = None
        self._read: torch.cuda.Event | None = None

    @torch.no_grad()
    def publish(self) -> None:
        """What was learned is what `pick_up` gives from now on."""
        with self._lock:
            self._wait_for(self._read)
            _copy(self._latest, self._learned)
            self._written = self._mark()
            self._published += 1

    @torch.no_grad()
    def pick_up(self) -> int:
        """Decide with the latest weights from now on; the how-manieth publication they are."""
        if self._picked_up == self._published:
            return self._picked_up
        with self._lock:
            self._wait_for(self._written)
            _copy(self._acting, self._latest)
            self._read = self._mark()
            self._picked_up = self._published
            return self._picked_up

    def _mark(self) -> torch.cuda.Event | None:
        return torch.cuda.current_stream().record_event() if self._on_gpu else None

    def _wait_for(self, event: torch.cuda.Event | None) -> None:
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


def _copy(to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    torch._foreach_copy_(to, of)
