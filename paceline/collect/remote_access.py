"""Which Ray clusters are safe to use.

Every process that can speak to a Ray cluster can execute code on it, and on the learner, which unpickles what actors send. A
cluster is safe if it listens on loopback addresses only, or if it asks for a token (Ray 2.52 and later).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from paceline.distributed.store import is_loopback
from paceline.errors import PacelineError, UsageError

AUTH_MODE = "RAY_AUTH_MODE"
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's name for: whether a cluster may have several machines. One that may not listens on loopback addresses only."""


ANSWER_SECONDS = 60
"""A cluster that has not run an empty task by then runs none."""


def stay_on_loopback() -> None:
    """A cluster that this process starts is reachable from this machine only. To be called before Ray is imported."""
    os.environ.setdefault(LOCAL_ONLY, "0")


def check_address(address: str | None, *, insecure: bool) -> None:
    """Refuse an unsafe cluster before it is spoken to. What `auto` stands for, only Ray knows."""
    if address is not None and address not in ("auto", "local"):
        host = address.removeprefix("ray://").rpartition(":")[0] or address
        refuse_unsafe([host], os.environ.get(AUTH_MODE, ""), insecure=insecure)


def check_cluster(ray: Any, *, insecure: bool) -> None:
    """Refuse an unsafe cluster by what it says of itself: a cluster without tokens ignores those that are sent to it."""
    addresses = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    if not insecure and not all(map(is_loopback, addresses)):
        question = ray.remote(num_cpus=0)(lambda: os.environ.get(AUTH_MODE, "")).remote()
        try:
            mode = ray.get(question, timeout=ANSWER_SECONDS)
        except ray.exceptions.GetTimeoutError as error:
            raise PacelineError(
                f"the Ray cluster at {', '.join(addresses)} has not run a task for {ANSWER_SECONDS} s"
            ) from error
        refuse_unsafe(addresses, mode, insecure=False)


def refuse_unsafe(addresses: Iterable[str], mode: str, *, insecure: bool) -> None:
    """Raise if a cluster at `addresses`, with the authentication `mode`, is open to other machines."""
    outside = [address for address in addresses if not is_loopback(address)]
    if outside and mode.lower() != "token" and not insecure:
        raise UsageError(
            f"the Ray cluster at {', '.join(outside)} has no authentication: every machine that reaches it can execute code "
            "there and here; allowed: RAY_AUTH_MODE=token on all machines, before `ray start` and before this command, or "
            "--remote.insecure on a network that you trust"
        )
