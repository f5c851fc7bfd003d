"""Refuses Ray clusters that are not safe to use.

Any process that can connect to a Ray cluster can execute code on it. It can also execute code on the learner, which
unpickles the data of actors. A cluster is safe if it listens only on loopback addresses, or if it requires a token
(Ray 2.52 and later).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from paceline.distributed.store import is_loopback
from paceline.errors import PacelineError, UsageError

AUTH_MODE = "RAY_AUTH_MODE"
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable for clusters of several machines. With "0", a cluster listens only on loopback addresses."""
ANSWER_SECONDS = 60
"""Time limit for a cluster to run a trivial task."""


def stay_on_loopback() -> None:
    """Make clusters that this process starts unreachable for other machines. Must run before Ray is imported."""
    os.environ.setdefault(LOCAL_ONLY, "0")


def check_address(address: str | None, *, insecure: bool) -> None:
    """Refuse an unsafe cluster before connecting to it. The address `auto` is unknown until Ray has connected."""
    if address is not None and address not in ("auto", "local"):
        host = address.removeprefix("ray://").rpartition(":")[0] or address
        refuse_unsafe([host], os.environ.get(AUTH_MODE, ""), insecure=insecure)


def check_cluster(ray: Any, *, insecure: bool) -> None:
    """Refuse an unsafe cluster by its own setting, because a cluster without authentication ignores our token."""
    addresses = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    if not insecure and not all(map(is_loopback, addresses)):
        request = ray.remote(num_cpus=0)(lambda: os.environ.get(AUTH_MODE, "")).remote()
        try:
            mode = ray.get(request, timeout=ANSWER_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise PacelineError(
                f"the Ray cluster at {', '.join(addresses)} did not run a task within {ANSWER_SECONDS} s"
            ) from error
        refuse_unsafe(addresses, mode, insecure=False)


def refuse_unsafe(addresses: Iterable[str], mode: str, *, insecure: bool) -> None:
    """Raise if a cluster at `addresses`, with authentication `mode`, is open to other machines."""
    outside = [address for address in addresses if not is_loopback(address)]
    if outside and mode.lower() != "token" and not insecure:
        raise UsageError(
            f"the Ray cluster at {', '.join(outside)} has no authentication: any machine that reaches it can execute "
            "code there and here; allowed: RAY_AUTH_MODE=token on all machines, set before `ray start` and before this "
            "command, or --remote.insecure on a network that you trust"
        )
