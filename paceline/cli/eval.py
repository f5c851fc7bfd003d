"""`paceline eval`: play episodes with a trained policy or a baseline."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from paceline.errors import UsageError
from paceline.evaluation.evaluators import EvaluationOptions, Evaluator, checked_evaluator, evaluate_baseline


@dataclass(frozen=True)
class Eval:
    """Play whole episodes with the policy of a run, or with a baseline, and report how well it does."""

    run_folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """The folder of a run."""
    agent: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Instead of a run, a baseline of the simulator, for example oracle or random in pointnav."""
    json: bool = False
    """Print one JSON object instead of a table."""
    options: Annotated[EvaluationOptions, tyro.conf.arg(name="")] = field(default_factory=EvaluationOptions)

    def run(self) -> None:
        # Environments may print, also when they are imported. Only the result goes to stdout.
        with contextlib.redirect_stdout(sys.stderr):
            evaluator, report = self._evaluate()
        if self.json:
            print(json.dumps(report, allow_nan=False))
        else:
            Console().print(evaluator.table(report))

    def _evaluate(self) -> tuple[Evaluator, dict[str, Any]]:
        if self.agent is not None:
            if self.run_folder is not None:
                raise UsageError("two things to evaluate: give a run folder or --agent, not both")
            return evaluate_baseline(self.agent, self.options)
        if self.run_folder is None:
            raise UsageError("nothing to evaluate: give a run folder or --agent")
        from paceline.evaluation.saved import run_config

        evaluator = checked_evaluator(self.options.env or run_config(self.run_folder).env, self.options)
        return evaluator, evaluator.evaluate_policy(self.run_folder, self.options)
