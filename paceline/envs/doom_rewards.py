"""Rewards of Doom matches between agents: Sample Factory's scheme for self-play, with weights that can be tuned.

It differs from Sample Factory's code in four points. The bonus for keeping a weapon depends on the weapon in hand, not
always on the last one. A respawn hides only the changes of health, armour, weapons and ammunition, not a frag of the
same step. The last step of a match counts. And a weight has one sign: `frag_lost` is the reward for a lost frag.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import numpy as np

from paceline.errors import UsageError, closest

WEIGHTS: dict[str, float] = {
    "frag": 1.0,
    "frag_lost": -0.001,
    "death": -1.0,
    "hit": 0.0,
    "damage": 0.01,
    "health": 0.01,
    "health_lost": -0.01,
    "armor": 0.005,
    "armor_lost": -0.001,
    "weapon": 0.02,
    "weapon_lost": -0.01,
    "ammo": 0.0002,
    "ammo_lost": -0.0001,
    "weapon_kept": 0.0002,
}
"""Reward for one frag, death, hit, point of damage, health or armour, weapon, unit of ammunition, or step with the same
weapon. The last three are multiplied by the weapon's `PREFERENCE`."""

PREFERENCE = np.array([1, 1, 1, 5, 5, 5, 10, 10], float)
"""How much a weapon is worth, by slot: 2 is the pistol, 3 to 5 shotguns, chaingun and rocket launcher, 6 and 7 plasma
gun and BFG."""

MOST_HITS, MOST_DAMAGE = 5.0, 200.0
"""Most rewarded hits and damage of one step. Otherwise shotguns and the BFG are worth too much."""

KEPT_STEPS = 5
"""Steps with the same weapon until `weapon_kept` is given. An agent that changes weapons all the time never shoots."""

VARIABLES = (
    "FRAGCOUNT",
    "DEATHCOUNT",
    "HITCOUNT",
    "DAMAGECOUNT",
    "HEALTH",
    "ARMOR",
    *(f"WEAPON{slot}" for slot in range(8)),
    *(f"AMMO{slot}" for slot in range(8)),
    "SELECTED_WEAPON",
    "SELECTED_WEAPON_AMMO",
    "DEAD",
)
"""The game variables that `Shaping` reads, in this order."""

_HEALTH = VARIABLES.index("HEALTH")
_WEAPONS = slice(VARIABLES.index("WEAPON0"), VARIABLES.index("WEAPON7") + 1)
_AMMO = slice(VARIABLES.index("AMMO0"), VARIABLES.index("AMMO7") + 1)
_BELONGINGS = slice(_HEALTH, _AMMO.stop)


def check_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """A copy of `weights`, which must have exactly the names of `WEIGHTS` and finite values."""
    for name in weights:
        if name not in WEIGHTS:
            raise UsageError(
                f"reward weight {name!r} does not exist{closest(name, WEIGHTS)}; allowed: {', '.join(WEIGHTS)}"
            )
    missing = [name for name in WEIGHTS if name not in weights]
    if missing:
        raise UsageError(f"reward weights are incomplete: {', '.join(missing)} missing")
    for name, value in weights.items():
        if not math.isfinite(value):
            raise UsageError(f"reward weight {name!r} is {value}; allowed: finite numbers")
    return {name: float(value) for name, value in weights.items()}


class Shaping:
    """Turns the changes of one agent's game variables into rewards."""

    def __init__(self) -> None:
        self._before = np.zeros(len(VARIABLES))
        self._weapons: deque[int] = deque(maxlen=KEPT_STEPS)

    def begin(self, values: np.ndarray) -> None:
        """A match begins with `values` of `VARIABLES`."""
        self._before = _clean(values)
        self._weapons.clear()

    def reward(self, values: np.ndarray, weights: Mapping[str, float]) -> float:
        """The reward for all changes since the last call."""
        now, before = _clean(values), self._before
        self._before = now
        change = now - before
        if before[-1] and not now[-1]:
            change[_BELONGINGS] = 0.0  # of the respawn
        frags, deaths, hits, damage, health, armor = change[:6].tolist()
        total = (
            _signed(frags, weights["frag"], weights["frag_lost"])
            + deaths * weights["death"]
            + min(hits, MOST_HITS) * weights["hit"]
            + min(damage, MOST_DAMAGE) * weights["damage"]
            + _signed(health, weights["health"], weights["health_lost"])
            + _signed(armor, weights["armor"], weights["armor_lost"])
        )
        for slots, name in ((_WEAPONS, "weapon"), (_AMMO, "ammo")):
            if change[slots].any():
                total += weights[name] * float(PREFERENCE @ np.maximum(change[slots], 0.0))
                total += weights[f"{name}_lost"] * float(PREFERENCE @ np.maximum(-change[slots], 0.0))
        return total + weights["weapon_kept"] * self._kept(now)

    def _kept(self, now: np.ndarray) -> float:
        """The preference of a loaded weapon that the agent has had in hand for `KEPT_STEPS` steps. 0 for any other."""
        weapon, ammo, dead = int(now[-3]), now[-2], now[-1]
        self._weapons.append(weapon)
        kept = len(self._weapons) == KEPT_STEPS and len(set(self._weapons)) == 1
        return float(PREFERENCE[weapon]) if kept and ammo > 0 and not dead and 0 <= weapon < len(PREFERENCE) else 0.0


def _signed(change: float, gain: float, loss: float) -> float:
    return change * gain if change > 0 else -change * loss


def _clean(values: np.ndarray) -> np.ndarray:
    """A copy of `values` without negative health, which a player has after a violent death."""
    values = np.array(values, float)
    values[_HEALTH] = max(0.0, values[_HEALTH])
    return values
