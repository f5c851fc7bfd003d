"""A check that the environments of a pool are different objects. One object in several slots would mix their
episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.errors import UsageError
from paceline.pool.env_state import layers


def require_distinct(envs: Iterable[Any]) -> None:
    """Refuse environments of one pool if two of them are the same object, or wrap the same object."""
    seen: set[int] = set()
    for env in envs:
        own = {id(layer) for layer in (layers(env) if hasattr(env, "unwrapped") else [env]) if hasattr(layer, "step")}
        if own & seen:
            raise UsageError("env gave the same object twice; it must make a new environment each time")
        seen |= own
