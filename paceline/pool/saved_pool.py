"""The saved state of a pool that steps single environments. `serial` and `process` pools read each other's states."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from paceline.errors import UsageError
from paceline.pool.protocol import Episode
from paceline.pool.seeds import EnvSeeds
from paceline.pool.table import SlotTable

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SavedPool:
    """Everything a pool needs to continue. Environments missing from `envs` start new episodes."""

    envs: dict[int, bytes]
    """State by environment."""
    table: dict[str, np.ndarray]
    """`SlotTable.snapshot`. In rows of environments missing from `envs` only the episode number is valid."""
    incarnation: np.ndarray
    """By environment: restarts under `seed`."""
    seed: int
    episodes: list[Episode]
    """Finished episodes that nobody has taken yet."""

    @classmethod
    def unpack(cls, state: bytes, num_envs: int) -> SavedPool:
        fields = pickle.loads(state)
        if len(fields["incarnation"]) != num_envs:
            raise UsageError(f"the saved pool had {len(fields['incarnation'])} environments; this one has {num_envs}")
        if isinstance(fields["envs"], list):  # a serial pool's state from before environments could be missing
            fields["envs"] = dict(enumerate(fields["envs"]))
        return cls(**fields)

    def leave_out(self, unreadable: Mapping[int, str]) -> None:
        """Forget environments whose state cannot be loaded, for the reasons given. `UsageError` if none is left."""
        self.envs = {env: state for env, state in self.envs.items() if env not in unreadable}
        if unreadable and not self.envs:
            raise UsageError(next(iter(unreadable.values())))

    def put_back(self, table: SlotTable, seeds: EnvSeeds) -> list[int]:
        """Restore `table` and `seeds`. Returns the missing environments, whose next reset uses a new seed."""
        missing = [env for env in range(len(self.incarnation)) if env not in self.envs]
        table.restore(self.table)
        seeds.begin(self.seed, self.incarnation)
        seeds.renew(missing)
        return missing


def pack_pool(
    envs: dict[int, bytes], reasons: Mapping[int, str], table: SlotTable, seeds: EnvSeeds, episodes: list[Episode]
) -> bytes:
    """The state of a pool with the saved `envs`. `reasons` says why other environments could not be saved."""
    report_unsaved(table.spec.num_slots, table.spec.agents_per_env, envs, reasons)
    saved = SavedPool(
        envs=envs, table=table.snapshot(), incarnation=seeds.incarnation, seed=seeds.seed, episodes=episodes
    )
    return pickle.dumps(vars(saved))


def report_unsaved(num_slots: int, agents: int, envs: Iterable[int], reasons: Mapping[int, str]) -> None:
    """Warn about slots whose environment is not among the saved `envs`.

    If nothing is saved because environments gave `reasons`, raise a `UsageError`.
    """
    saved = set(envs)
    if not saved and reasons:
        raise UsageError(next(iter(reasons.values())))
    slots = [slot for slot in range(num_slots) if slot // agents not in saved]
    if slots:
        why = f" ({next(iter(reasons.values()))})" if reasons else ""
        log.warning("not saved, and will start new episodes on resume: the simulators of slots %s%s", slots, why)
