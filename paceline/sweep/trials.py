"""Runs the trials of a sweep as processes, several at a time, and tells the search how they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.errors import UsageError, closest
from paceline.evaluation.history import History
from paceline.population.launch import MemberPlan, MemberProcess, ended_at_the_end
from paceline.signals import INTERRUPTED, signals_handled_by
from paceline.sweep.objective import Objective
from paceline.sweep.search import NUM_POINTS, Search, SearchTrial
from paceline.sweep.space import value_in_words

POLL_SECONDS = 0.2
READ_SECONDS = 1.0
"""How often the reports of a run are read."""


@dataclass
class RunningTrial:
    """A trial and its process."""

    trial: SearchTrial
    process: MemberProcess
    place: int
    """Which share of the machine it has."""
    next_point: int = 1
    """The next point of the run at which its objective is compared."""
    is_pruned: bool = False
    read_at: float = 0.0


class TrialProcesses:
    """All trials of a sweep. The first signal stops the runs, which save a checkpoint; the third kills them."""

    def __init__(
        self,
        search: Search,
        objective: Objective,
        plan: Callable[[SearchTrial, int], MemberPlan],
        *,
        steps: int,
        seconds: float | None = None,
    ) -> None:
        """`plan` says how a trial is started in one of the places. A run ends after `steps`, or after `seconds`."""
        self._search, self._objective, self._plan = search, objective, plan
        self._steps, self._seconds = steps, seconds
        self._running: list[RunningTrial] = []
        self._signals = 0
        self._has_looked = False
        """Whether the first reports of a run were searched for the metric."""

    def run(self, num_trials: int, jobs: int, show: Callable[[str], None]) -> int:
        """Run trials until `num_trials` have ended, `jobs` at a time. Each line for the user goes to `show`.

        Returns the exit code.
        """
        processes = (running.process for running in self._running)  # those that run when the context ends
        with signals_handled_by(self._count), ended_at_the_end(processes, lambda: self._signals):
            while self._running or (self._has_next(num_trials) and not self._signals):
                while len(self._running) < jobs and self._has_next(num_trials) and not self._signals:
                    self._start(jobs, show)
                for running in list(self._running):
                    self._watch(running, show)
                time.sleep(POLL_SECONDS)
        return INTERRUPTED if self._signals else 0

    def _has_next(self, num_trials: int) -> bool:
        return len(self._search.results()) + len(self._running) < num_trials

    def _start(self, jobs: int, show: Callable[[str], None]) -> None:
        place = min(set(range(jobs)) - {running.place for running in self._running})
        trial = self._search.ask()
        process = MemberProcess(self._plan(trial, place), max_restarts=0)
        self._running.append(RunningTrial(trial, process, place))
        shown = ", ".join(f"{name} {value_in_words(value)}" for name, value in trial.values.items())
        again = "; the same settings again, with another seed" if trial.repeat else ""
        show(f"{trial.folder}: {shown}{again}")

    def _watch(self, running: RunningTrial, show: Callable[[str], None]) -> None:
        running.process.watch(max(self._signals, int(running.is_pruned)))
        if running.process.status != "training":
            self._running.remove(running)
            self._end(running, show)
        elif not self._signals and not running.is_pruned and time.monotonic() - running.read_at >= READ_SECONDS:
            running.read_at = time.monotonic()
            self._compare(running, show)

    def _compare(self, running: RunningTrial, show: Callable[[str], None]) -> None:
        """Note the objective at the points that the run has passed, and stop it if Optuna says so."""
        history = _history(running)
        if history is None:
            return
        if not self._has_looked:
            self._has_looked = True
            if (problem := self._missing(history)) is not None:
                show(f"{problem}. Some metrics come later; if this one does not, the sweep ends after this run")
        progress = self._progress(history)
        while running.next_point < NUM_POINTS and progress[-1] >= running.next_point / NUM_POINTS:
            passed = history.columns["step"][progress <= running.next_point / NUM_POINTS]
            value = self._objective.of(history, passed[-1]) if len(passed) else None
            point, running.next_point = running.next_point, running.next_point + 1
            if value is not None and running.trial.should_stop(point, value):
                running.is_pruned = True
                return

    def _progress(self, history: History) -> np.ndarray:
        """At each report, the share of the run that is done: of its steps, or of its seconds if those end it first."""
        share = history.columns["step"] / self._steps
        if self._seconds is not None and "seconds" in history.columns:
            share = np.maximum(share, np.nan_to_num(history.columns["seconds"]) / self._seconds)
        return share

    def _end(self, running: RunningTrial, show: Callable[[str], None]) -> None:
        """Tell the search how the trial has ended. A trial that a signal has stopped goes on with the next sweep."""
        trial, status, history = running.trial, running.process.status, _history(running)
        value = None if history is None else self._objective.of(history)
        if status == "stopped" and not running.is_pruned:
            show(f"{trial.folder} stopped")
        elif status == "stopped":
            trial.prune()
            show(f"{trial.folder} pruned, {self._objective.metric} {value_in_words(value)}")
        elif status == "failed":
            trial.fail(running.process.plan.last_line())
            show(f"{trial.folder} failed: {running.process.plan.last_line()}")
        elif value is None:
            trial.fail(f"the run has no value of {self._objective.metric}")
            self._require_metric(history)
            show(f"{trial.folder} failed: the run has no value of {self._objective.metric}")
        else:
            trial.complete(value)
            show(f"{trial.folder} complete, {self._objective.metric} {value_in_words(value)}")

    def _require_metric(self, history: History | None) -> None:
        """End the sweep if no run can have the metric."""
        if history is not None and (problem := self._missing(history)) is not None:
            raise UsageError(problem)

    def _missing(self, history: History) -> str | None:
        """What is wrong if the run has not reported the metric."""
        if self._objective.metric in history.columns:
            return None
        known = sorted(history.columns)
        hint = closest(self._objective.metric, known)
        return f"runs have no metric {self._objective.metric!r}{hint}; allowed: {', '.join(known)}"

    def _count(self, number: int, frame: object) -> None:
        self._signals += 1


def _history(running: RunningTrial) -> History | None:
    try:
        return History.load(Path(running.process.plan.folder))
    except UsageError:  # it has not reported anything yet
        return None
