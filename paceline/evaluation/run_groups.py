"""Runs side by side: runs of one configuration with several seeds are a group, named by the options that differ."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation.history import History
from paceline.evaluation.report_words import settings_in_words
from paceline.evaluation.saved import run_config

IGNORED = ("seed", "env", "recipe", "log_seconds", "wandb_project")
"""Runs that differ in nothing else, and in the section `checkpoint`, are of one configuration."""
LAST_SHARE = 0.1
"""The result of a run is the mean over its reports of this share of its steps, at the end."""
LONGEST_NAME = 48


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs."""

    folder: Path
    config: Config
    history: History | None
    """None if it has not reported anything yet."""

    @classmethod
    def load(cls, folder: Path) -> ComparedRun:
        config = run_config(folder)
        try:
            return cls(folder, config, History.load(folder))
        except UsageError:
            return cls(folder, config, None)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def task(self) -> str:
        return self.config.env

    def has(self, metric: str) -> bool:
        return self.history is not None and self.history.has(metric)

    def last(self, metric: str) -> float | None:
        return None if self.history is None else self.history.last(metric)

    def result(self, metric: str) -> float | None:
        """The mean over the last reports; None without the metric."""
        if self.history is None or not self.history.has(metric):
            return None
        values, steps = self.history.columns[metric], self.history.columns["step"]
        known = np.isfinite(values)
        late = known & (steps >= (1.0 - LAST_SHARE) * steps[-1])
        return float(values[late].mean() if late.any() else values[known][-1])


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed and their task."""

    name: str
    settings: dict[str, str]
    """The settings in which the groups differ."""
    runs: list[ComparedRun]

    def of_task(self, task: str) -> list[ComparedRun]:
        return [run for run in self.runs if run.task == task]

    def results(self, task: str, metric: str) -> np.ndarray:
        """[R], of the runs that have the metric."""
        results = [run.result(metric) for run in self.of_task(task)]
        return np.array([result for result in results if result is not None])


def grouped(runs: Sequence[ComparedRun]) -> list[RunGroup]:
    """The groups, in the order of their first runs.

    Groups differ in the options that differ between runs of the same task. A setting that only differs between tasks,
    such as the size of the network that each needs, makes no groups.
    """
    settings = {run.folder: settings_in_words(run.config) for run in runs}
    differing = _differing(runs, settings)
    members: dict[tuple[str, ...], list[ComparedRun]] = {}
    for run in runs:
        members.setdefault(tuple(settings[run.folder][name] for name in differing), []).append(run)
    groups = []
    for number, (values, its) in enumerate(members.items()):
        own = dict(zip(differing, values, strict=True))
        groups.append(RunGroup(_name(own, number), own, its))
    return groups


def _differing(runs: Sequence[ComparedRun], settings: dict[Path, dict[str, str]]) -> list[str]:
    found: dict[str, None] = {}
    for task in dict.fromkeys(run.task for run in runs):
        of_task = [settings[run.folder] for run in runs if run.task == task]
        for name in of_task[0]:
            is_ignored = name in IGNORED or name.startswith("checkpoint.")
            if not is_ignored and len({values[name] for values in of_task}) > 1:
                found[name] = None
    return list(found)


def _name(settings: dict[str, str], number: int) -> str:
    if not settings:
        return "all runs"
    name = ", ".join(f"{option} {value}" for option, value in settings.items())
    if len(name) <= LONGEST_NAME:
        return name
    letters = string.ascii_uppercase
    return f"group {letters[number]}" if number < len(letters) else f"group {number + 1}"
