"""The group of ranks that train one policy. A single process is a group of one rank: it has no code path of its own.

`--ranks`, `torchrun` or `srun` start the ranks. Every rank runs the same program and joins the group here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.distributed.config import GroupConfig, require_device
from paceline.distributed.failures import LostConnection, RankFailure, describe_last_checkpoint, end_process
from paceline.distributed.heartbeat import RankHeartbeat
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.store import open_store
from paceline.errors import UsageError

TIMEOUT = timedelta(minutes=10)
"""How long ranks may take to start, and how long a reduction waits for a rank that is alive."""


class Group:
    """This rank's connection to all ranks. All ranks must call the methods that communicate, in the same order."""

    def __init__(
        self,
        place: RankInfo,
        device: torch.device,
        store: dist.Store | None,
        heartbeat: RankHeartbeat | None = None,
        processes: dist.ProcessGroup | None = None,
    ) -> None:
        """`processes` are those of some of the ranks. None: all ranks."""
        self.rank, self.size, self.device, self._processes = place.rank, place.size, device, processes
        self.store = store
        """Key-value store that all ranks share; None in a group of one."""
        self._heartbeat = heartbeat
        self._names = itertools.count()

    @classmethod
    def join(cls, device: str = "cpu", config: GroupConfig | None = None, folder: Path | None = None) -> Group:
        """Join the ranks that were started together. Errors name the last checkpoint in the run folder `folder`."""
        place = RankInfo.find()
        chosen = choose_device(device, place)
        if place.size == 1:
            return cls(place, chosen, None)
        os.environ.setdefault("RANK", str(place.rank))
        os.environ.setdefault("WORLD_SIZE", str(place.size))
        # PyTorch's compiler imports a module that keeps the current process group as a default argument. Imported
        # before there is a group, it does not keep its threads alive after `close`, when the interpreter ends.
        importlib.import_module("torch.distributed.nn.functional")
        store, torchrun_address = open_store(place.rank, place.size, TIMEOUT)
        heartbeat = start_heartbeat(store, torchrun_address, place, config or GroupConfig(), folder)
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        keys = dist.PrefixStore("group", store)
        with communication():
            dist.init_process_group(backend, store=keys, rank=place.rank, world_size=place.size, timeout=TIMEOUT)
        return cls(place, chosen, dist.PrefixStore("paceline", store), heartbeat)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and talks to the user."""
        return self.rank == 0

    def part(self, ranks: Sequence[Sequence[int]]) -> Group:
        """Divide the ranks into the groups `ranks`. Returns the one that has this rank. Reductions there are among its
        ranks only. It has no store. All ranks call this together, once: connections stay open until the end."""
        with communication():
            made = [
                dist.new_group(list(some), timeout=TIMEOUT) if 1 < len(some) < self.size else None for some in ranks
            ]
        own, processes = next((some, one) for some, one in zip(ranks, made, strict=True) if self.rank in some)
        return Group(RankInfo(rank=own.index(self.rank), size=len(own)), self.device, None, processes=processes)

    def new_name(self, name: str) -> str:
        """A unique name for the store. All ranks get the same name, because they ask in the same order."""
        return f"{name}/{next(self._names)}"

    def sum_(self, values: Tensor) -> Tensor:
        """Add up `values` over all ranks, in place."""
        return self._communicate(dist.all_reduce, values)

    def mean_(self, values: Tensor) -> Tensor:
        """Average `values` over all ranks, which weigh the same, in place."""
        if self.size > 1:
            self.sum_(values)
            values /= self.size
        return values

    def max_(self, values: Tensor) -> Tensor:
        """The maximum of `values` over all ranks, in place."""
        return self._communicate(functools.partial(dist.all_reduce, op=dist.ReduceOp.MAX), values)

    def broadcast_(self, values: Tensor, source: int = 0) -> Tensor:
        """Copy the `values` of rank `source` to all ranks, in place."""
        return self._communicate(functools.partial(dist.broadcast, group_src=source), values)

    def _communicate(self, operation: Callable[..., object], values: Tensor) -> Tensor:
        if self.size > 1:
            with communication():
                operation(values, group=self._processes)
        return values

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set on any rank."""
        if self.size == 1:
            return flag
        return bool(self.sum_(torch.tensor([float(flag)], device=self.device)).item() > 0)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # If this rank fails, the others must not believe that it finished, and `close` must not wait for them.
        if kind is not None and self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        self.close()

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()
        if self._heartbeat is not None:
            self._heartbeat.leave()
            self._heartbeat = None


@contextlib.contextmanager
def communication() -> Iterator[None]:
    """Turn failed connections to other ranks into a `LostConnection`, an error message for the user."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            # Only the first sentence: Gloo goes on with advice to look at the other rank's log.
            cause = str(error).strip().splitlines()[0].partition(". This is typically")[0]
            raise LostConnection(f"a connection to another rank failed: {cause}") from error
        raise


def start_heartbeat(
    store: dist.Store, torchrun_address: str | None, place: RankInfo, config: GroupConfig, folder: Path | None
) -> RankHeartbeat:
    """Start this rank's heartbeat. If a rank is lost, it ends the process, whose main thread may wait for that rank."""
    store = dist.PrefixStore("heartbeat", store)
    store.set(f"host/{place.rank}", socket.gethostname())
    if torchrun_address is None:
        server = f"rank 0 on {store.get('host/0').decode()}"
    else:
        server = f"torchrun's store at {torchrun_address}"

    def lost(problem: str, store_is_gone: bool) -> None:
        message = f"{problem}; {describe_last_checkpoint(folder)}"
        end_process(RankFailure(rank=place.rank, message=message, code=1, consequence=store_is_gone))

    return RankHeartbeat(store, place.rank, place.size, seconds=config.heartbeat_seconds, server=server, lost=lost)


def choose_device(name: str, place: RankInfo | None = None) -> torch.device:
    """The device of a rank: "cpu", "cuda" (the GPU of this rank), "cuda:N", or "auto" (a GPU if there is one)."""
    require_device(name)
    place = place or RankInfo()
    available = torch.cuda.is_available()
    if name.startswith("cuda") and not available:
        raise UsageError(f"device {name}: PyTorch finds no CUDA device on this machine; allowed: --device cpu")
    if name == "cpu" or not available:
        return torch.device("cpu")
    number, count = place.local_rank, torch.cuda.device_count()
    if ":" in name:
        number = int(name.partition(":")[2])
        if place.size > 1:
            raise UsageError(
                f"device {name} is for one rank; allowed: --device cuda, which gives every rank its own GPU"
            )
        if number >= count:
            raise UsageError(f"device {name} does not exist on this machine; allowed: cuda:0 to cuda:{count - 1}")
    elif number >= count:
        raise UsageError(f"rank {number} of this machine has no GPU: the machine has {count}")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
