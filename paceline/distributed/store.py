"""The key-value store that the ranks of a group share, and the network interfaces that they use.

Rank 0 serves the store, on the address MASTER_ADDR only. PyTorch's own rendezvous would listen on every interface. The
store has no authentication: it holds counters and addresses, and nothing read from it is unpickled.

Under torchrun, torchrun itself serves the store, on all interfaces of its machine.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import os
import socket
from datetime import timedelta

import psutil
import torch.distributed as dist

from paceline.distributed.failures import RESTARTS, SOCKET
from paceline.errors import UsageError

_joined = itertools.count()
"""How many groups this process has joined."""


def open_store(rank: int, size: int, timeout: timedelta) -> tuple[dist.Store, str | None]:
    """Connect to the store. Rank 0 also serves it, unless torchrun does: then its address is the second result."""
    for variable in ("MASTER_ADDR", "MASTER_PORT"):
        if variable not in os.environ:
            raise UsageError(f"{size} ranks were started, but {variable} is not set; use torchrun, or export it")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if is_loopback(host):
        _use_loopback_interface()
    by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    store = _connect(host, port, size, rank == 0 and not by_torchrun, timeout)
    # A store outlives a group. Ranks that restart or join again must not read the keys of the group before.
    group = dist.PrefixStore(f"group_{os.environ.get(RESTARTS, '0')}_{next(_joined)}", store)
    return group, f"{host}:{port}" if by_torchrun else None


@functools.cache
def _connect(host: str, port: int, size: int, serves: bool, timeout: timedelta) -> dist.TCPStore:
    """One connection, and on rank 0 one server, for all groups that this process joins."""
    descriptor = _listening_socket(host, port) if serves else None
    return dist.TCPStore(host, port, size, is_master=serves, timeout=timeout, master_listen_fd=descriptor)


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address on every machine. A host name is not: machines resolve it differently."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _use_loopback_interface() -> None:
    """Make Gloo and NCCL listen on the loopback interface only: all ranks are on this machine."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address in ("127.0.0.1", "::1") for address in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
            return


def _listening_socket(host: str, port: int) -> int:
    """The descriptor of a socket that listens on `host` and on no other address. The store closes it."""
    inherited = os.environ.pop(SOCKET, None)
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
