"""`paceline eval`: play episodes or matches with a trained policy, or episodes with a baseline."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console, RenderableType

from paceline.errors import UsageError
from paceline.evaluation.evaluators import EvaluationOptions, checked_evaluator, evaluate_baseline
from paceline.pretrained import folder_of
from paceline.run_records import record_evaluation
from paceline.telemetry.console import stdout_to_stderr


@dataclass(frozen=True)
class Eval:
    """Play whole episodes with the policy of a run, or with a baseline, and report how well it does."""

    run_folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """The folder of a run, or the name of a pretrained policy (`paceline play` lists them)."""
    agent: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Instead of a run, a baseline of the simulator, for example oracle or random in pointnav. Some have options, as in
    plan?pick=RUN&place=RUN (see docs/rearrangement.md)."""
    opponent: Annotated[str | None, tyro.conf.arg(metavar="X")] = None
    """Play matches against X, and report wins and losses: a policy of the same run (K, best, or K@STEP for a past
    self), another run (FOLDER or FOLDER:K), or a scripted opponent (package.module:Class). --episodes is the number of
    matches."""
    tournament: bool = False
    """Let the policies and past selves of the run play each other: win rates and Elo ratings. --episodes is the number
    of matches of each pair, by default 20."""
    json: bool = False
    """Print one JSON object instead of a table."""
    options: Annotated[EvaluationOptions, tyro.conf.arg(name="")] = field(default_factory=EvaluationOptions)

    def run(self) -> None:
        with stdout_to_stderr():  # environments may print, also when they are imported
            table, report = self._evaluate()
        if self.json:
            print(json.dumps(report, allow_nan=False))
        else:
            Console().print(table(report))

    def _evaluate(self) -> tuple[Callable[[dict[str, Any]], RenderableType], dict[str, Any]]:
        """How to show the result, and the result."""
        if self.agent is not None:
            if self.run_folder is not None:
                raise UsageError("two things to evaluate: give a run folder or --agent, not both")
            if self.opponent is not None or self.tournament or self.options.policy is not None:
                raise UsageError("--policy, --opponent and --tournament are for the policies of a run, not for --agent")
            evaluator, report = evaluate_baseline(self.agent, self.options)
            return evaluator.table, report
        if self.run_folder is None:
            raise UsageError("nothing to evaluate: give a run folder or --agent")
        run_folder = folder_of(self.run_folder)
        if self.tournament:
            return self._tournament(run_folder)
        if self.opponent is not None:
            from paceline.evaluation.matches import evaluate_match
            from paceline.evaluation.matches import table as match_table

            return match_table, evaluate_match(run_folder, self.opponent, self.options)
        from paceline.evaluation.saved import run_config

        evaluator = checked_evaluator(self.options.env or run_config(run_folder).env, self.options)
        result = evaluator.evaluate_policy(run_folder, self.options)
        if (run_folder / "checkpoints").is_dir():  # a pretrained policy stays as it is
            record_evaluation(run_folder, result)
        return evaluator.table, result

    def _tournament(self, folder: Path) -> tuple[Callable[[dict[str, Any]], RenderableType], dict[str, Any]]:
        if self.opponent is not None or self.options.policy is not None or self.options.video is not None:
            raise UsageError(
                "--tournament is for all policies of a run; allowed: without --policy, --opponent, --video"
            )
        from paceline.evaluation.tournament import play_tournament, table

        return table, play_tournament(folder, self.options)
