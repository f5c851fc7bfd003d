"""`paceline sweep`: search for good settings. Optuna proposes them, and each trial is a run."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from paceline.cli.options import is_given, options_of, parse, without_options
from paceline.cli.population import gpus_of_machine
from paceline.cli.train import find_start, is_trusted
from paceline.config import Config
from paceline.envs.registry import code_named_by, resolve
from paceline.errors import UsageError
from paceline.files import replace_text
from paceline.pool.config import available_core_ids
from paceline.population.launch import SEED_DISTANCE, MemberPlan, shares
from paceline.run_folder import SWEEP_FILE, open_run_folder
from paceline.sweep.objective import Objective, Statistic
from paceline.sweep.space import Space, load_space, value_in_words
from paceline.telemetry.console import print_line, status

SHOWN = 5
"""So many of the best trials are printed."""
OWN = ("--run-dir", "--space", "--trials", "--jobs", "--metric", "--statistic", "--window", "--seed")
OWN_FLAGS = ("--minimize", "--no-minimize", "--prune", "--no-prune", "--trust", "--no-trust")


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Search for good settings of a recipe. Optuna proposes the settings. Trials that do worse than the median of the
    others are stopped. Each trial is a run folder in the folder of the sweep. The same command continues a sweep
    that was stopped."""

    space: Path | None = None
    """The settings to search: a JSON or TOML file with entries such as
    "optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": true} or "ppo.epochs": {"choices": [2, 4]}."""
    run_dir: Path | None = None
    """Folder of the sweep. None: runs/RECIPE-sweep-NAME, where NAME is the name of the space's file."""
    config: Path | None = None
    """Instead of a recipe: a configuration file, such as config.json of a run. None: no file."""
    trials: int = 20
    """Trials in all, with those of earlier parts of the sweep."""
    jobs: int = 1
    """Trials at a time. Each gets its share of the cores and GPUs."""
    metric: str | None = None
    """The metric of metrics.jsonl to optimise. None: episode_return, or the recipe's pbt.objective."""
    statistic: Statistic = "median"
    """What counts of the metric: its median, mean or max over the window, or its last value."""
    window: float = 0.2
    """The share of a run's steps, at their end, that the statistic is over."""
    minimize: bool = False
    """Search for the lowest value instead of the highest."""
    prune: bool = True
    """Stop a trial whose objective is worse than the median of the complete trials at the same share of their steps. No
    trial is stopped before five are complete, or in its first fifth."""
    trust: bool = False
    """With --config: run the code that the file names, even if another user wrote it (see SECURITY.md)."""

    def objective(self, config: Config) -> Objective:
        return Objective(
            metric=self.metric or f"episode_{config.pbt.objective}",
            statistic=self.statistic,
            window=self.window,
            minimize=self.minimize,
        )


def main(arguments: list[str]) -> int:
    """Run `paceline sweep` with `arguments`; the exit code."""
    if "--resume" in arguments:
        raise UsageError("a sweep continues without --resume; allowed: the same command again")
    start = find_start(arguments, "sweep")
    options, config = parse(SweepOptions, start.config, start.options, prog=f"paceline sweep {start.label}")
    if options.space is None:
        raise UsageError("a sweep needs --space FILE with the settings to search (docs/runs.md)")
    if options.trials < 1 or options.jobs < 1:
        raise UsageError("--trials and --jobs must be at least 1")
    space = load_space(options.space, config)
    for name in space:
        if is_given(name, start.options):
            raise UsageError(f"--{name} is also in {options.space}; allowed: one of the two")
    objective = options.objective(config)
    trust = options.trust or is_trusted(config, start)
    if code_named_by(config.env) is None:
        resolve(config.env)
    with status("loading Optuna"):
        from paceline.sweep import search as _  # noqa: F401 - a missing extra is an error before there is a folder
    folder = options.run_dir or Path("runs") / f"{start.label}-sweep-{options.space.stem}"
    recipe = arguments[:1] if arguments and not arguments[0].startswith("-") else []
    base = [*recipe, *without_options(start.options, OWN, OWN_FLAGS)]
    with open_run_folder(folder) as opened:
        _require_same(folder, options.space, config, objective)
        opened.is_used = True
        (folder / "logs").mkdir(exist_ok=True)
        return _search(folder, base, config, options, space, objective, trust)


def _search(
    folder: Path,
    base: list[str],
    config: Config,
    options: SweepOptions,
    space: Space,
    objective: Objective,
    trust: bool,
) -> int:
    """Run the trials, and show what was found."""
    from paceline.sweep.page import write_page
    from paceline.sweep.search import Search
    from paceline.sweep.trials import TrialProcesses

    search = Search(folder, space, minimize=objective.minimize, prune=options.prune, seed=config.seed)
    before = len(search.results())
    print_line(f"sweep of {config.system} on {config.env}: {before} of {options.trials} trials done; folder: {folder}")
    plan = _planner(folder, base, config, options.jobs, trust)
    processes = TrialProcesses(search, objective, plan, steps=config.steps, seconds=config.seconds)
    code = processes.run(options.trials, options.jobs, print_line)
    best = search.ranked()
    command = shlex.join(["paceline", "train", *base, *_settings(best[0], config.seed)]) if best else ""
    path = write_page(folder, f"{config.env}, {config.system}", search, space, objective, command)
    if best:
        _print_best(search.ranked()[:SHOWN], objective)
        print(command)
    print_line(f"page: {path}")
    if code == 0 and not best:
        print_line("paceline: no trial is complete")
        return 1
    return code


def _planner(folder: Path, base: list[str], config: Config, jobs: int, trust: bool) -> Callable[[Any, int], MemberPlan]:
    """How a trial is started in each of the `jobs` places."""
    cores, gpus = shares(jobs, available_core_ids()), gpus_of_machine(config)
    gpus_of = shares(jobs, gpus) if gpus else None
    train = [sys.executable, "-m", "paceline", "train"]
    trusted = ["--trust"] if trust else []

    def plan(trial: Any, place: int) -> MemberPlan:
        run = ["--run-dir", str(folder / trial.folder), *trusted]
        return MemberPlan(
            name=trial.folder,
            folder=folder / trial.folder,
            log=folder / "logs" / f"{trial.folder}.log",
            new=[*train, *base, *_settings(trial, config.seed), *run],
            resumed=[*train, "--resume", *run],
            cores=cores[place],
            gpus=gpus_of[place] if gpus_of is not None else None,
        )

    return plan


def _settings(trial: Any, seed: int) -> list[str]:
    """The options of a trial. One that repeats the settings of another has another seed."""
    options = [part for name, value in trial.values.items() for part in options_of(name, value)]
    return ["--seed", str(seed + trial.repeat * SEED_DISTANCE), *options]


def _require_same(folder: Path, file: Path, config: Config, objective: Objective) -> None:
    """Refuse to continue another sweep, and note what this one is."""
    settings = dataclasses.asdict(objective) | {"config": config.settings(), "space": _space_text(file)}
    mine = json.loads(json.dumps(settings))
    path = folder / SWEEP_FILE
    if path.exists():
        try:
            theirs = json.loads(path.read_text())
            differing = [name for name in mine if mine[name] != theirs[name]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is not the record of a sweep: {error}; allowed: another --run-dir") from error
        if differing:
            raise UsageError(
                f"{folder} holds a sweep with another {' and '.join(differing)}; allowed: its own command, or another "
                "--run-dir"
            )
    elif (folder / "config.json").exists():
        raise UsageError(f"{folder} is the folder of a run; allowed: another --run-dir for the sweep")
    replace_text(path, json.dumps(mine, indent=2) + "\n")


def _space_text(file: Path) -> str:
    return file.read_text().strip()


def _print_best(best: list[Any], objective: Objective) -> None:
    table = Table("run", objective.metric, "settings", box=None, header_style="bold", pad_edge=False)
    for result in best:
        settings = (f"{name} {value_in_words(value)}" for name, value in result.values.items())
        table.add_row(result.folder, f"{result.value:.4g}", ", ".join(settings))
    Console().print(table)
