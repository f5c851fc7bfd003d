"""The plans of the scenarios: which skill comes after which. Without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.sims.rearrangement.config import SCENARIOS

NAVIGATION = "navigate"
RETURN = "return"
"""The arm goes back to its resting angles, from which every skill was trained. It is scripted."""
PASSING = (NAVIGATION, RETURN)
"""After these the next skill begins, whatever they have reached."""


class Stage(NamedTuple):
    """One skill of a plan."""

    skill: str
    target: int
    """What it is about: an object (pick, place), an object or T + the object of a goal (navigate), or a joint. A
    return does without."""


def plan_of(scenario: str, num_targets: int, *, navigation: bool = True) -> list[Stage]:
    """The stages of a scenario. `num_targets` is T. Without `navigation`, the skills find their own way."""
    stages = [stage for number in range(SCENARIOS[scenario]) for stage in _object(scenario, number, num_targets)]
    stages = [stage for stage in stages if navigation or stage.skill != NAVIGATION]
    return stages[:-1]  # after the last object the arm need not return


def interactions(plan: Sequence[Stage]) -> dict[str, int]:
    """The stages that are neither navigation nor a return, by name: `pick_1`, `place_1`, `pick_2` and so on, with their
    places in the plan. The number is that of the object."""
    number, names = 0, {}
    for place, stage in enumerate(plan):
        if stage.skill in ("pick", "place"):
            number = stage.target + 1
        elif stage.skill not in PASSING:
            number += 1  # what is opened before an object is taken
        if stage.skill not in PASSING:
            names[f"{stage.skill}_{number}"] = place
    return names


def _object(scenario: str, number: int, num_targets: int) -> list[Stage]:
    to_object, to_goal = Stage(NAVIGATION, number), Stage(NAVIGATION, num_targets + number)
    back = Stage(RETURN, number)
    move = [to_object, Stage("pick", number), back, to_goal, Stage("place", number), back]
    if scenario != "set_table":
        return move
    # The drawer's number is that of the episode. After opening, the robot may stand elsewhere.
    opening = Stage("open_drawer", IN_ITS_DRAWER) if number == 0 else Stage("open_fridge", 0)
    return [to_object, opening, back, *move]


IN_ITS_DRAWER = -1
"""The target of a stage that opens the drawer in which the first object is."""
