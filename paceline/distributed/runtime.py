"""The group of ranks that train one policy. One rank is a group of one: there is no other single-process path.

`--ranks`, `torchrun` or `srun` start the ranks; every rank runs the same program and joins here.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.distributed.config import GroupConfig
from paceline.distributed.failures import LostRanks, RankFailure, end_process, last_checkpoint
from paceline.distributed.heartbeat import RankHeartbeat
from paceline.distributed.place import Place
from paceline.distributed.store import SharedStore, open_store
from paceline.errors import UsageError

TIMEOUT = timedelta(minutes=10)
"""Ranks have this long to start. No reduction waits longer: a rank may be alive and yet not come to it."""


class Group:
    """This rank's view of all ranks. Every method that communicates has to be called by all of them, in one order."""

    def __init__(
        self, place: Place, device: torch.device, store: dist.Store | None, heartbeat: RankHeartbeat | None = None
    ) -> None:
        self.rank, self.size, self.device = place.rank, place.size, device
        self.store = store
        """A key-value store that all ranks share; None in a group of one."""
        self._heartbeat = heartbeat
        self._names = itertools.count()

    @classmethod
    def join(cls, device: str = "cpu", config: GroupConfig | None = None, folder: Path | None = None) -> Group:
        """Join the ranks that were started together. `folder` is that of the run: errors name its last checkpoint."""
        place = Place.find()
        chosen = choose_device(device, place.local_rank)
        if place.size == 1:
            return cls(place, chosen, None)
        os.environ.setdefault("RANK", str(place.rank))
        os.environ.setdefault("WORLD_SIZE", str(place.size))
        # Parts of PyTorch that optimisers import take the process group of that moment for a default argument: imported
        # before there is one, they do not keep its threads alive after `close`, and into the end of the interpreter.
        importlib.import_module("torch._dynamo")
        shared = open_store(place.rank, place.size, TIMEOUT)
        heartbeat = start_heartbeat(shared, place, config or GroupConfig(), folder)
        with communication():
            dist.init_process_group(
                "nccl" if chosen.type == "cuda" else "gloo",
                store=dist.PrefixStore("group", shared.store),
                rank=place.rank,
                world_size=place.size,
                timeout=TIMEOUT,
            )
        return cls(place, chosen, dist.PrefixStore("paceline", shared.store), heartbeat)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes files and speaks to the user."""
        return self.rank == 0

    def new_name(self, name: str) -> str:
        """A name in the store that is like no other; the same on all ranks, which ask for theirs in one order."""
        return f"{name}/{next(self._names)}"

    def sum_(self, values: Tensor) -> Tensor:
        """Add up `values` over all ranks, in place."""
        if self.size > 1:
            with communication():
                dist.all_reduce(values)
        return values

    def mean_(self, values: Tensor) -> Tensor:
        """The mean of `values` over all ranks, each weighing the same, in place."""
        if self.size > 1:
            with communication():
                dist.all_reduce(values)
            values /= self.size
        return values

    def max_(self, values: Tensor) -> Tensor:
        """The largest of `values` over all ranks, in place."""
        if self.size > 1:
            with communication():
                dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def broadcast_(self, values: Tensor) -> Tensor:
        """Rank 0's `values` everywhere, in place."""
        if self.size > 1:
            with communication():
                dist.broadcast(values, src=0)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's `values`, which have one shape, on rank 0; an empty list elsewhere."""
        if self.size == 1:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.size)] if self.is_first else None
        with communication():
            dist.gather(values, gathered)
        return gathered or []

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        if self.size == 1:
            return flag
        return bool(self.sum_(torch.tensor([float(flag)], device=self.device)).item() > 0)

    def abandon(self) -> None:
        """This rank has failed: the others must not take it for one that has finished, and `close` does not wait for them."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()
        self.close()

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()
        if self._heartbeat is not None:
            self._heartbeat.leave()
            self._heartbeat = None


@contextlib.contextmanager
def communication() -> Iterator[None]:
    """Failures of connections to other ranks, within the context, are errors for the user."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            # Gloo's advice after the first sentence is for those who can see the other rank's log.
            cause = str(error).strip().splitlines()[0].partition(". This is typically")[0]
            raise LostRanks(f"a connection to another rank failed: {cause}") from error
        raise


def start_heartbeat(shared: SharedStore, place: Place, config: GroupConfig, folder: Path | None) -> RankHeartbeat:
    """The heartbeat of this rank. It ends the process when another rank is silent: the main thread may wait for that rank."""
    host, store = socket.gethostname(), dist.PrefixStore("heartbeat", shared.store)
    store.set(f"host/{place.rank}", host)
    if shared.served_by_rank_0:
        server = f"rank 0 on {store.get('host/0').decode()}"
    else:
        server = f"torchrun's store at {shared.address}"

    def lost(what: str, store_is_gone: bool) -> None:
        message = f"{what}; {last_checkpoint(folder)}"
        end_process(RankFailure(rank=place.rank, message=message, code=1, consequence=store_is_gone))

    return RankHeartbeat(store, place.rank, place.size, seconds=config.heartbeat_seconds, server=server, lost=lost)


def choose_device(name: str, local_rank: int) -> torch.device:
    """The device that a rank works on: "cpu", "cuda" (this rank's own GPU) or "auto"."""
    if name not in ("cpu", "cuda", "auto"):
        raise UsageError(f"device {name!r} does not exist; allowed: cpu, cuda, auto")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError("device cuda was asked for, but this machine has none that PyTorch can use; --device cpu")
    if name == "cpu" or not available:
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise UsageError(f"rank {local_rank} of this machine has no GPU: it has {torch.cuda.device_count()}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
