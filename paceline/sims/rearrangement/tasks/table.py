"""The tasks by name. Without PyTorch: a task's module is imported when a simulator is made."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UsageError
from paceline.sims.rearrangement.config import RearrangementConfig


@dataclass(frozen=True)
class SkillEntry:
    module: str
    class_name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    scenario: str = ""
    """The only scenario of the task; empty if it has all."""
    about: str = ""

    def load(self, starts: Any) -> Any:
        """The task over some starts, a `Skill`."""
        module = importlib.import_module(f"paceline.sims.rearrangement.tasks.{self.module}")
        return getattr(module, self.class_name)(starts, **self.arguments)


SKILLS: dict[str, SkillEntry] = {
    "navigate": SkillEntry("navigate", "NavigateSkill", about="drive to an object or to its goal"),
    "pick": SkillEntry("pick", "PickSkill", about="take an object"),
    "place": SkillEntry("place", "PlaceSkill", about="put the object in the hand to its goal"),
    "open_fridge": SkillEntry("joints", "JointSkill", {"fridge": True, "opens": True}, about="open the fridge"),
    "close_fridge": SkillEntry("joints", "JointSkill", {"fridge": True, "opens": False}, about="close the fridge"),
    "open_drawer": SkillEntry("joints", "JointSkill", {"fridge": False, "opens": True}, about="open a drawer"),
    "close_drawer": SkillEntry("joints", "JointSkill", {"fridge": False, "opens": False}, about="close a drawer"),
    "tidy_house": SkillEntry(
        "scenario", "ScenarioSkill", scenario="tidy_house", about="bring five objects to their goals"
    ),
    "prepare_groceries": SkillEntry(
        "scenario",
        "ScenarioSkill",
        scenario="prepare_groceries",
        about="bring two objects out of the fridge, and one in",
    ),
    "set_table": SkillEntry(
        "scenario",
        "ScenarioSkill",
        scenario="set_table",
        about="bring objects out of the drawer and the fridge to the table",
    ),
}


def task_config(task: str, options: dict[str, Any], what: str) -> RearrangementConfig:
    """The options of a task. A scenario's own cannot be another one."""
    own = SKILLS[task].scenario
    if own and options.setdefault("scenario", own) != own:
        raise UsageError(f"scenario is {options['scenario']!r} in {what!r}; allowed: {own}, or leave it out")
    return RearrangementConfig.of_options(options, what)
