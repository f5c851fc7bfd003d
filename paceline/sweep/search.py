"""The search: Optuna proposes settings, prunes trials, and keeps everything in one file of the sweep's folder.

A trial that is interrupted stays `RUNNING` in that file. When the sweep continues, Optuna gets the same settings again
as a new trial, which continues the run of the old one.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.errors import MissingExtra, PacelineError
from paceline.sweep.space import SearchRange, Space

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise MissingExtra("paceline sweep", "sweep", error) from error

FILE = "optuna.jsonl"
"""Optuna's storage: a journal that survives a killed process."""
NUM_POINTS = 20
"""A run's objective is compared with that of other trials at so many points of its steps."""
FREE_TRIALS, FREE_POINTS = 5, 4
"""No trial is pruned before so many are complete, or before this point."""

Outcome = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class TrialResult:
    """A trial that has ended."""

    number: int
    outcome: Outcome
    value: float | None
    """The objective; of a pruned trial the last one."""
    values: dict[str, Any]
    """The settings that were searched."""
    folder: str
    """The name of its run folder."""
    error: str = ""
    """Why it has failed."""
    repeat: int = 0
    """How many trials before it had the same settings."""


class PointPruner(optuna.pruners.BasePruner):
    """Prunes a trial that is worse, at its last point, than the median of the complete trials at that point.

    Optuna's own pruner compares the best value so far, and so never stops a trial that began well and collapsed.
    """

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        point = trial.last_step
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if point is None or point < FREE_POINTS or len(complete) < FREE_TRIALS:
            return False
        others = [one.intermediate_values[point] for one in complete if point in one.intermediate_values]
        if not others:
            return False
        value, median = trial.intermediate_values[point], statistics.median(others)
        return value > median if study.direction == optuna.study.StudyDirection.MINIMIZE else value < median


class Search:
    """A study of Optuna in `folder`, new or continued."""

    def __init__(self, folder: Path, space: Space, *, minimize: bool, prune: bool, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self.minimize = space, minimize
        try:
            self.study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(folder / FILE))),
                study_name="sweep",
                direction="minimize" if minimize else "maximize",
                load_if_exists=True,
                pruner=PointPruner() if prune else optuna.pruners.NopPruner(),
            )
        except (ValueError, KeyError) as error:
            raise PacelineError(f"{folder / FILE} cannot be read: {type(error).__name__}: {error}") from error
        # A continued search must not draw its first trials again.
        self.study.sampler = optuna.samplers.TPESampler(seed=seed + len(self.study.trials), constant_liar=True)
        for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
            self.study.tell(trial.number, state=TrialState.FAIL)
            kept = {"folder": _folder(trial), "repeat": _repeat(trial)}
            self.study.enqueue_trial(trial.params, user_attrs=kept)

    def ask(self) -> SearchTrial:
        """The next trial."""
        trial = self.study.ask()
        if "folder" not in trial.user_attrs:
            trial.set_user_attr("folder", f"trial_{trial.number:04d}")
        values = {name: self._suggest(trial, name) for name in self._space}
        if "repeat" not in trial.user_attrs:
            earlier = self.study.trials[: trial.number]
            same = {_folder(other) for other in earlier if other.params == trial.params}
            trial.set_user_attr("repeat", len(same))
        return SearchTrial(self.study, trial, values)

    def _suggest(self, trial: optuna.Trial, name: str) -> Any:
        allowed = self._space[name]
        if not isinstance(allowed, SearchRange):  # JSON, because Optuna has no lists
            return json.loads(trial.suggest_categorical(name, [json.dumps(value) for value in allowed.values]))
        if allowed.is_int:
            return trial.suggest_int(name, int(allowed.low), int(allowed.high), log=allowed.log)
        return trial.suggest_float(name, allowed.low, allowed.high, log=allowed.log)

    def results(self) -> list[TrialResult]:
        """The trials that have ended, in order. An interrupted one that was started again is left out."""
        return [result for trial in self.study.trials if (result := self._result(trial)) is not None]

    def _result(self, trial: FrozenTrial) -> TrialResult | None:
        outcomes: dict[TrialState, Outcome] = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}
        error = str(trial.user_attrs.get("error", ""))
        if trial.state == TrialState.FAIL and error:
            outcomes[TrialState.FAIL] = "failed"
        if trial.state not in outcomes:
            return None
        values = {
            name: value if isinstance(self._space[name], SearchRange) else json.loads(value)
            for name, value in trial.params.items()
        }
        points = trial.intermediate_values
        value = trial.value if trial.state == TrialState.COMPLETE else points[max(points)] if points else None
        return TrialResult(
            trial.number, outcomes[trial.state], value, values, _folder(trial), error, repeat=_repeat(trial)
        )

    def ranked(self) -> list[TrialResult]:
        """The complete trials, best first."""
        sign = 1.0 if self.minimize else -1.0
        complete = [result for result in self.results() if result.outcome == "complete" and result.value is not None]
        return sorted(complete, key=lambda result: sign * (result.value or 0.0))

    def importances(self) -> dict[str, float]:
        """How much each setting matters for the objective, by PED-ANOVA; empty if there are too few trials."""
        if len(self.ranked()) < 4 or len(self._space) < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        try:
            return optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        except (RuntimeError, ValueError):  # all trials have the same objective
            return {}


class SearchTrial:
    """A trial that runs."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial, values: dict[str, Any]) -> None:
        self._study, self._trial, self.values = study, trial, values
        self.number = trial.number
        self.folder: str = trial.user_attrs["folder"]
        self.repeat: int = trial.user_attrs["repeat"]
        """How many trials before it had the same settings."""

    def should_stop(self, point: int, value: float) -> bool:
        """Note the objective at a point of the run; whether to prune it. A point is noted once."""
        self._trial.report(value, point)
        return self._trial.should_prune()

    def complete(self, value: float) -> None:
        self._study.tell(self._trial, value)

    def prune(self) -> None:
        self._study.tell(self._trial, state=TrialState.PRUNED)

    def fail(self, error: str) -> None:
        self._trial.set_user_attr("error", error)
        self._study.tell(self._trial, state=TrialState.FAIL)


def _folder(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get("folder", f"trial_{trial.number:04d}"))


def _repeat(trial: FrozenTrial) -> int:
    return int(trial.user_attrs.get("repeat", 0))
