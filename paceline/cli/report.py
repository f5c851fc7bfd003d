"""`paceline report`: write one HTML page about a run, or about several."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.errors import UsageError
from paceline.pretrained import is_pretrained


@dataclass(frozen=True)
class Report:
    """Write a report of a run to one HTML file: learning curves, speed, settings, its population, and what the
    simulator adds. Or of a population of runs: results, hyper-parameters and lineage of its members. Or of several
    runs: seeds of one configuration are a group; groups are compared by interquartile means with intervals, learning
    curves and performance profiles, and every run is listed with its evaluation, command and commit."""

    run_folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """The folder of a run, or of a population of runs."""
    others: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = ()
    """More runs, also of other tasks. Each task has its own section; across tasks, results are scaled to 0 to 1."""
    metric: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """With several runs: the metric of metrics.jsonl to compare by. None: a rate of the task, such as episode_spl in
    pointnav, otherwise episode_return."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The file. None: report.html in the run's folder; with several runs comparison.html in the first run's folder."""
    episodes: int | None = None
    """Episodes to play for sections that a simulator adds, as pointnav does. None: 200, or all of a list with fewer."""
    agent: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Instead of a run, a baseline of rearrangement: oracle or random. Needs --env and --output."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ID")] = None
    """With --agent: the environment, for example rearrange:pick."""
    trust: bool = False
    """Play an episode for the report, even if another user wrote the run (see SECURITY.md)."""

    def run(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            path = self._of_run() if self.agent is None else self._of_baseline(self.agent)
        print(path)

    def _of_run(self) -> Path:
        if self.run_folder is None:
            raise UsageError("nothing to report: give a run folder, or --agent with --env and --output")
        if self.env is not None:
            raise UsageError("--env is for --agent; the report of a run is about its own environment")
        for folder in (self.run_folder, *self.others):
            if is_pretrained(folder):
                raise UsageError(
                    f"{folder} is a pretrained policy, which has no record of its training; "
                    f"allowed: paceline eval {folder}, or a folder that `paceline train` has made"
                )
        from paceline.evaluation.report import write_report

        return write_report(
            self.run_folder,
            others=self.others,
            metric=self.metric,
            evaluate_episodes=self.episodes,
            output=self.output,
            trust=self.trust,
        )

    def _of_baseline(self, agent: str) -> Path:
        if self.run_folder is not None or self.metric is not None:
            raise UsageError("--agent has a report of its own; allowed: without a run folder and --metric")
        if self.env is None or self.output is None:
            raise UsageError("--agent needs an environment and a file; allowed: --env ID --output FILE")
        from paceline.evaluation.report import write_baseline_report

        return write_baseline_report(agent, self.env, self.output, episodes=self.episodes)
