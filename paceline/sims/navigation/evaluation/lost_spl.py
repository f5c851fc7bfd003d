"""Where SPL is lost: the difference between an agent's SPL and 1, divided among three causes.

The oracle plays the same episodes. It knows the map, so mainly discrete steps and turns keep its SPL below 1.

| part | of an episode with SPL s, in which the oracle has SPL o |
|---|---|
| oracle | 1 - o: what even the oracle loses |
| detours | o - s if the agent succeeds: what it walks more than the oracle |
| failures | o if the agent fails |

The parts of an episode add up to 1 - s, so their means add up to 1 minus the mean SPL. A detour can be negative: in
single episodes an agent may walk less than the oracle.

Legend: L episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class LostSpl(NamedTuple):
    """Mean losses of SPL over episodes."""

    oracle: float
    detours: float
    failures: float


def lost_spl(spl: np.ndarray, success: np.ndarray, oracle_spl: np.ndarray) -> LostSpl:
    """From the SPL and success [L] of an agent, and the oracle's SPL [L] in the same episodes."""
    behind = oracle_spl - spl
    detours, failures = behind * (success > 0), behind * (success <= 0)
    return LostSpl(float((1.0 - oracle_spl).mean()), float(detours.mean()), float(failures.mean()))
