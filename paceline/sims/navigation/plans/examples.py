"""Plans to start from: the examples of this folder, and generated apartments."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import UsageError, closest
from paceline.sims.navigation.plans.plan import plan_of
from paceline.sims.navigation.scenes.generator import TIERS, generate_scene

EXAMPLES = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.json"))}


def plan_text(what: str) -> str:
    """The file of an example by its name, or of the apartment that a tier and a seed such as "small:7" generate."""
    if what in EXAMPLES:
        return EXAMPLES[what].read_text()
    tier, _, seed = what.partition(":")
    if tier not in TIERS or not seed.isdecimal():
        allowed = ", ".join([*EXAMPLES, *(f"{name}:SEED" for name in TIERS)])
        raise UsageError(f"there is no floor plan {what!r}{closest(what, EXAMPLES)}; allowed: {allowed}")
    return plan_of(generate_scene(tier, int(seed))).text()
