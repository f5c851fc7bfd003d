"""The evaluator of each environment family. `paceline eval` and `paceline report` know simulators only through it.

An embedded simulator with its own measures has a line in `EVALUATORS`. All other environments have the evaluator of
`evaluation.evaluate`, which measures the episode return. A module is imported when its evaluator is first needed.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import RenderableType

from paceline.envs.ids import EnvId
from paceline.envs.registry import with_absolute_paths
from paceline.errors import UsageError
from paceline.evaluation.report_page import ReportPart

EVALUATORS = {
    "pointnav": "paceline.sims.navigation.evaluation.pointnav",
    "flee": "paceline.sims.navigation.evaluation.flee",
    "explore": "paceline.sims.navigation.evaluation.explore",
    "objectnav": "paceline.sims.navigation.evaluation.objectnav",
    "imagenav": "paceline.sims.navigation.evaluation.imagenav",
    "rearrange": "paceline.sims.rearrangement.evaluation.evaluator",
}
"""Environment family to the module that defines its `EVALUATOR`."""
DEFAULT = "paceline.evaluation.evaluate"
SEED = 1_000_000
"""The same for all runs, so that they play the same episodes, and far from the seeds of training."""
REPORT_EPISODES = 200
"""Played for a report if no number is given. A fixed list with fewer episodes is played as a whole."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The options of `paceline eval` that evaluators read."""

    episodes: int | None = None
    """Number of episodes: by default 100, divided evenly among the slots. A simulator with a fixed list of episodes
    plays all of it by default."""
    split: str | None = None
    """Which scenes to play in, in a simulator with splits: train, val (the default) or test."""
    samples: int = 1
    """With --sampled, how often each episode is played, in a simulator with a fixed list of episodes."""
    checkpoint: str = "latest"
    """latest, best or step_N."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="K")] = None
    """The policy, in a run with several: its number, best (the default) for the one with the highest objective, or
    K@STEP for policy K as it was then, if self-play has kept it."""
    sampled: bool = False
    """Sample actions, as in training, instead of taking the most likely ones."""
    seed: int = SEED
    """Seed of the environments and of sampled actions. A fixed list of episodes does not depend on it."""
    num_envs: int | None = None
    """Environments at a time: by default as many as in training (in batched simulators 256 or more), but no more than
    episodes."""
    env: str | None = None
    """Play in this environment instead of the run's own, for example without options that only training needs: after
    atari:Breakout?episodic_life=true, atari:Breakout?clip_rewards=false plays whole games for the game's score. With
    --agent, an environment that has the baseline."""
    video: Path | None = None
    """Also film one episode: PATH.mp4 or PATH.gif."""
    trust: bool = False
    """Run the code that the run's folder names, even though this user did not write it (see SECURITY.md)."""

    def __post_init__(self) -> None:
        for name, least in (("episodes", 1), ("samples", 1), ("num_envs", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}")
        if self.env is not None:
            object.__setattr__(self, "env", with_absolute_paths(self.env))  # the run remembers it with the result


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """How the policies of one environment family are measured."""

    evaluate_policy: Callable[[Path, EvaluationOptions], dict[str, Any]]
    """Plays episodes with the policy of a run folder. The result can be written as JSON."""
    table: Callable[[dict[str, Any]], RenderableType]
    """A result of `evaluate_policy` or `evaluate_baseline` for the terminal."""
    options: tuple[str, ...] = ()
    """Which of the optional `split` and `samples` it supports."""
    baselines: tuple[str, ...] = ()
    """Other agents than the policy of one run, by the names that --agent takes."""
    baselines_of_runs: tuple[str, ...] = ()
    """Those of them that play with the policies of runs."""
    evaluate_baseline: Callable[[str, EvaluationOptions], dict[str, Any]] | None = None
    """Plays the same episodes with a baseline: NAME, or NAME?OPTION=VALUE&... if it has options."""
    rates: tuple[str, ...] = ("success",)
    """Measures of training episodes between 0 and 1. A report draws them in one chart."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of measures in reports, where the name with spaces does not do."""
    report: Callable[[Path, int | None], ReportPart] | None = None
    """Plays this many episodes, by default `REPORT_EPISODES`, with the latest checkpoint of a run folder, and shows
    them."""
    report_baseline: Callable[[str, str, int | None], ReportPart] | None = None
    """The same for a baseline, in an environment id: agent, id and number of episodes."""


def evaluator_of(env: str) -> Evaluator:
    """The evaluator of an environment id."""
    return importlib.import_module(EVALUATORS.get(EnvId.parse(env).family, DEFAULT)).EVALUATOR


def checked_evaluator(env: str, options: EvaluationOptions) -> Evaluator:
    """The evaluator of an environment id. Options that it does not have are refused."""
    evaluator = evaluator_of(env)
    for name, unset in (("split", None), ("samples", 1)):
        if getattr(options, name) != unset and name not in evaluator.options:
            families = [family for family in EVALUATORS if name in evaluator_of(family).options]
            raise UsageError(f"--{name} does not apply to {env}; allowed in: {', '.join(families)}")
    if options.samples > 1 and not options.sampled:
        raise UsageError(f"samples is {options.samples}, but the most likely actions never differ; allowed: --sampled")
    return evaluator


def evaluate_baseline(agent: str, options: EvaluationOptions) -> tuple[Evaluator, dict[str, Any]]:
    """Play with a baseline: its evaluator and the result. Without `options.env`, the first family that has it plays."""
    if options.sampled or options.samples != 1:
        raise UsageError("--sampled and --samples are for the policy of a run, not for --agent")
    for env in [options.env] if options.env else EVALUATORS:
        evaluator = evaluator_of(env)
        name = agent.partition("?")[0]
        if name in evaluator.baselines and evaluator.evaluate_baseline is not None:
            if options.checkpoint != EvaluationOptions.checkpoint and name not in evaluator.baselines_of_runs:
                raise UsageError(f"--checkpoint is for the policy of a run, not for --agent {name}")
            return evaluator, evaluator.evaluate_baseline(agent, dataclasses.replace(options, env=env))
    problem = f"does not play {options.env}" if options.env else "does not exist"
    allowed = [f"{', '.join(evaluator_of(family).baselines)} in {family}" for family in EVALUATORS]
    raise UsageError(f"agent {agent!r} {problem}; allowed: {'; '.join(allowed)}")
