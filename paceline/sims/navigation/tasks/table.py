"""The navigation tasks by name. Without PyTorch: a task's module is imported when a simulator is made."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from paceline.sims.navigation.config import (
    ExploreConfig,
    FleeConfig,
    NavigationConfig,
    ObjectNavConfig,
    PointNavConfig,
)


@dataclass(frozen=True)
class TaskEntry:
    """One task. Its name is that of its environment ids and of its module."""

    config: type[NavigationConfig]
    class_name: str
    """The class in its module. Also the name of its Gymnasium environment."""

    @property
    def name(self) -> str:
        return self.config.task

    @property
    def gym_id(self) -> str:
        return f"paceline/{self.class_name}-v0"

    def load(self) -> Any:
        """The task's class, a `Task`."""
        return getattr(importlib.import_module(f"paceline.sims.navigation.tasks.{self.name}"), self.class_name)


_ENTRIES = (
    TaskEntry(PointNavConfig, "PointNav"),
    TaskEntry(FleeConfig, "Flee"),
    TaskEntry(ExploreConfig, "Explore"),
    TaskEntry(ObjectNavConfig, "ObjectNav"),
)
TASKS: dict[str, TaskEntry] = {entry.name: entry for entry in _ENTRIES}
