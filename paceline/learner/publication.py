"""The latest weights, on their way from the thread that learns to those that decide."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

Copies = tuple[list[Tensor], list[Tensor]]
"""Tensors to write to, and as many to read, all of one type each."""


class Publication:
    """Weights with everything that belongs to them: normaliser statistics and the version are buffers, and go along.

    One thread calls `publish` after every update, others a reader's `pick_up` before every decision. Nobody waits for more
    than another's copying. On a GPU the copies are ordered by events, and nobody waits on the host.
    """

    def __init__(self, learned: nn.Module) -> None:
        tensors = list(learned.state_dict().values())
        self.latest = [tensor.clone() for tensor in tensors]
        self._copies = _by_type(self.latest, tensors)
        self.lock = threading.Lock()
        self.number = 0
        """Of the latest publication."""
        self.written: torch.cuda.Event | None = None
        self._readers: list[Reader] = []

    def reader(self, acting: nn.Module) -> Reader:
        """For a thread that decides by the weights of `acting`."""
        self._readers.append(Reader(self, acting))
        return self._readers[-1]

    @torch.no_grad()
    def publish(self) -> None:
        """What was learned is what `pick_up` gives from now on."""
        with self.lock:
            for reader in self._readers:
                _wait_for(reader.read)
            _copy(self._copies)
            self.written = _mark(self.latest[0])
            self.number += 1


class Reader:
    """A copy of the weights that follows what is published, when its thread wants it to."""

    def __init__(self, publication: Publication, acting: nn.Module) -> None:
        self._publication = publication
        self._copies = _by_type(list(acting.state_dict().values()), publication.latest)
        self._number = 0
        self.read: torch.cuda.Event | None = None

    def pick_up(self) -> int:
        """Decide with the latest weights from now on; the how-manieth publication they are."""
        # Before almost every decision there is nothing new, and even to switch gradients off would take longer than to see that.
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


def _by_type(to: list[Tensor], of: list[Tensor]) -> list[Copies]:
    """What to copy together: PyTorch copies many tensors of one type at once, and of several types one after the other."""
    copies: dict[tuple[torch.dtype, torch.dtype], Copies] = {}
    for target, source in zip(to, of, strict=True):
        targets, sources = copies.setdefault((target.dtype, source.dtype), ([], []))
        targets.append(target)
        sources.append(source)
    return list(copies.values())


def _copy(copies: list[Copies]) -> None:
    for to, of in copies:
        torch._foreach_copy_(to, of)
