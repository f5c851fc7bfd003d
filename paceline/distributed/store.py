"""The key-value store that the ranks of a group share, and the network interfaces they use.

Rank 0 serves the store, on the address MASTER_ADDR alone. PyTorch's own rendezvous would listen on every interface. The
store has no authentication: it holds counters and addresses, and nothing that is read from it is unpickled.

torchrun serves a store itself, on all interfaces of its machine, and tells the ranks to use that one.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch.distributed as dist

from paceline.distributed.environment import LISTENING_SOCKET, RESTARTS
from paceline.errors import UsageError

_joined = itertools.count()
"""How many groups this process has joined."""


@dataclass(frozen=True)
class SharedStore:
    """A store, and who serves it."""

    store: dist.Store
    served_by_rank_0: bool
    address: str


def open_store(rank: int, size: int, timeout: timedelta) -> SharedStore:
    """Serve the store on rank 0, unless torchrun does, and connect to it on all ranks."""
    for variable in ("MASTER_ADDR", "MASTER_PORT"):
        if variable not in os.environ:
            raise UsageError(f"{size} ranks were started, but {variable} is not set; use torchrun, or export it")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if is_loopback(host):
        stay_on_loopback()
    by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    store = _connect(host, port, size, rank == 0 and not by_torchrun, timeout)
    # A store outlives a group: ranks that are started again, or join again, must not find what those before them have left.
    group = dist.PrefixStore(f"group_{os.environ.get(RESTARTS, '0')}_{next(_joined)}", store)
    return SharedStore(group, not by_torchrun, f"{host}:{port}")


@functools.cache
def _connect(host: str, port: int, size: int, serves: bool, timeout: timedelta) -> dist.TCPStore:
    """One connection, and on rank 0 one server, for all groups that this process joins."""
    return dist.TCPStore(
        host,
        port,
        size,
        is_master=serves,
        timeout=timeout,
        master_listen_fd=_listening_socket(host, port) if serves else None,
    )


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address on every machine. A host name is not: other machines may resolve it otherwise."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def stay_on_loopback() -> None:
    """Gloo and NCCL, too, listen on the loopback interface only: all ranks are on this machine."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address in ("127.0.0.1", "::1") for address in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
            return


def _listening_socket(host: str, port: int) -> int:
    """The descriptor of a socket that listens on `host` and on no other address. The store closes it."""
    inherited = os.environ.pop(LISTENING_SOCKET, None)
    if inherited is not None:
        return int(inherited)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family).detach()
    except OSError as error:
        raise UsageError(
            f"rank 0 cannot listen on MASTER_ADDR {host}, MASTER_PORT {port} ({error}); "
            "allowed: an address of the machine that runs rank 0, and a free port"
        ) from error
