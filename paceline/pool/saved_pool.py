"""The saved state of a pool that steps single environments. `serial` and `process` pools read each other's."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from paceline.errors import UsageError
from paceline.pool.protocol import Episode

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SavedPool:
    """What a pool needs to go on. Environments that are not in `envs` start anew."""

    envs: dict[int, bytes]
    """By environment."""
    table: dict[str, np.ndarray]
    """`SlotTable.snapshot`; rows of environments that are not in `envs` mean nothing but their episode's number."""
    incarnation: np.ndarray
    """By environment: how many times it was started anew under `seed`."""
    seed: int
    episodes: list[Episode]
    """Finished, but not taken yet."""

    def pack(self) -> bytes:
        return pickle.dumps(vars(self))

    @classmethod
    def unpack(cls, state: bytes, num_envs: int) -> SavedPool:
        fields = pickle.loads(state)
        if len(fields["incarnation"]) != num_envs:
            raise UsageError(f"the saved pool had {len(fields['incarnation'])} environments; this one has {num_envs}")
        if isinstance(fields["envs"], list):  # of a serial pool before environments could be missing
            fields["envs"] = dict(enumerate(fields["envs"]))
        return cls(**fields)

    def missing(self) -> list[int]:
        """The environments that have to start anew."""
        return [env for env in range(len(self.incarnation)) if env not in self.envs]


def report_unsaved(num_slots: int, agents: int, envs: Iterable[int], reasons: Mapping[int, str]) -> None:
    """Complain about the environments that are not among the saved `envs`: in a warning if others are, in a `UsageError`
    if none is because of the `reasons` that environments gave."""
    saved = set(envs)
    if not saved and reasons:
        raise UsageError(next(iter(reasons.values())))
    slots = [slot for slot in range(num_slots) if slot // agents not in saved]
    if slots:
        why = f" ({next(iter(reasons.values()))})" if reasons else ""
        log.warning("not saved, and will start new episodes on resume: the simulators of slots %s%s", slots, why)
