"""The latest weights, passed from the thread that learns to the threads that act."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

Copies = list[tuple[list[Tensor], list[Tensor]]]
"""Tensors to write and tensors to read. PyTorch copies many tensors at once only if they have the same type, so each
pair of lists has one type."""


class Publication:
    """The weights of a module with its buffers: normaliser statistics and the version belong to them.

    One thread calls `publish` after every update. Others call `Reader.refresh` before every decision. A thread waits
    only while another one copies. On a GPU, events order the copies, and no thread waits on the host.
    """

    def __init__(self, learned: nn.Module) -> None:
        self._learned = learned
        self.latest: list[Tensor] = []
        self._copies: Copies = []
        self.lock = threading.Lock()
        self.number = 0
        """The number of publications so far."""
        self.written: torch.cuda.Event | None = None
        self._readers: list[Reader] = []

    def reader(self, acting: nn.Module) -> Reader:
        """A reader for a thread that acts with the weights of `acting`. Make all readers before the first `publish`."""
        if not self._readers:
            tensors = list(self._learned.state_dict().values())
            self.latest = [tensor.clone() for tensor in tensors]
            self._copies = _by_type(self.latest, tensors)
        self._readers.append(Reader(self, acting))
        return self._readers[-1]

    @torch.no_grad()
    def publish(self) -> None:
        """Give readers the present weights from now on. Does nothing without readers."""
        if not self._readers:
            return
        with self.lock:
            for reader in self._readers:
                _wait_for(reader.read)
            _copy(self._copies)
            self.written = _mark(self.latest[0])
            self.number += 1

    def state_dict(self) -> dict[str, Tensor]:
        """What readers get now, by name. Nothing without readers."""
        return dict(zip(self._learned.state_dict(), self.latest, strict=True)) if self._readers else {}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Publish what a `state_dict` has. What it lacks stays as it is."""
        latest = self.state_dict()
        with self.lock:
            _copy(_by_type([latest[name] for name in state], list(state.values())))
            self.number += 1


class Reader:
    """Copies the published weights into another module."""

    def __init__(self, publication: Publication, acting: nn.Module) -> None:
        self._publication = publication
        self._copies = _by_type(list(acting.state_dict().values()), publication.latest)
        self._number = 0
        self.read: torch.cuda.Event | None = None

    def refresh(self) -> int:
        """Copy the latest weights if they are new. Returns the number of their publication."""
        # Almost every call ends here. Even `torch.no_grad` would take longer than this comparison.
        return self._number if self._number == self._publication.number else self._copy()

    @torch.no_grad()
    def _copy(self) -> int:
        publication = self._publication
        with publication.lock:
            _wait_for(publication.written)
            _copy(self._copies)
            self.read = _mark(publication.latest[0])
            self._number = publication.number
            return self._number


def _mark(example: Tensor) -> torch.cuda.Event | None:
    return torch.cuda.current_stream().record_event() if example.is_cuda else None


def _wait_for(event: torch.cuda.Event | None) -> None:
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


def _by_type(to: list[Tensor], of: list[Tensor]) -> Copies:
    copies: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(to, of, strict=True):
        targets, sources = copies.setdefault((target.dtype, source.dtype), ([], []))
        targets.append(target)
        sources.append(source)
    return list(copies.values())


def _copy(copies: Copies) -> None:
    for to, of in copies:
        torch._foreach_copy_(to, of)
