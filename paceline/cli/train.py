"""`paceline train`: train a policy, or continue a run."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paceline import recipes
from paceline.checks import require_at_least
from paceline.cli.options import parse, value_of
from paceline.cli.short_help import short_help
from paceline.config import Config
from paceline.distributed.failures import report_to_launcher
from paceline.distributed.launch import exit_code, is_restart, launch_ranks
from paceline.distributed.rank_info import RankInfo
from paceline.envs.registry import code_named_by, resolve, with_absolute_paths
from paceline.errors import UsageError
from paceline.own_code import is_path
from paceline.population.folders import is_population
from paceline.run_folder import check_run_folder, require_nothing_in
from paceline.run_names import name_of, new_run_folder
from paceline.telemetry.console import print_line, status
from paceline.trust import may_run

HELP = {"-h", "--help", "--help-all"}
FORMS = ("RECIPE [options]", "--env ID [options]", "--config FILE [options]")
RESUME_FORM = "--resume --run-dir DIR"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Train a policy. The defaults are those of the recipe."""

    run_dir: Path | None = None
    """Folder of the run: configuration, metrics and checkpoints. None: a new folder in runs/."""
    config: Path | None = None
    """Instead of a recipe: a configuration file, such as config.json of another run. None: no file."""
    resume: bool = False
    """Continue the run in --run-dir from its latest checkpoint, with its own configuration. Options change it."""
    from_checkpoint: str = "latest"
    """With --resume: the checkpoint to continue from: latest, best or step_N."""
    ranks: int = 1
    """Processes on this machine that train together. Ignored under torchrun and srun, which start the ranks."""
    max_restarts: int = 0
    """With --ranks: how many times to start all ranks again, from the latest checkpoint, after one has failed."""
    join: Path | None = None
    """Folder of a population that this run joins, under the name of its run folder. The section pbt says when and how
    the members learn from each other. None: the run is on its own."""
    report: bool = False
    """Write report.html at the end. `paceline report` writes it for any run at any time."""
    trust: bool = False
    """With --resume or --config: run the code that their files name, even if another user wrote them (see
    SECURITY.md)."""

    def __post_init__(self) -> None:
        require_at_least(self, "", 1, "ranks")
        require_at_least(self, "", 0, "max_restarts")


class Start(NamedTuple):
    """What the options of a command line change: a recipe, a configuration file, or a run to resume."""

    label: str
    config: Config
    options: list[str]
    file: Path | None = None
    """The file with the configuration."""


def main(arguments: list[str]) -> int:
    """Run `paceline train` with `arguments`; the exit code."""
    start = find_start(arguments)
    if {"-h", "--help"} & set(start.options):
        config = start.config.under(value_of("--system", start.options) or start.config.system)
        env = value_of("--env", start.options)
        has_recipe = bool(start.config.recipe) or start.file is not None
        print(short_help(start.label if has_recipe or env is None else f"--env {env}", config))
        return 0
    options, config = parse(TrainOptions, start.config, start.options, prog=f"paceline train {start.label}")
    label = start.label if config.env == start.config.env else f"{start.label}-{name_of(config.env)}"
    config = dataclasses.replace(config, env=with_absolute_paths(config.env))
    trust = options.trust or is_trusted(config, start)
    place = RankInfo.find()
    folder = options.run_dir or new_run_folder(config, label)
    restart = is_restart(folder)
    if not options.resume and not restart and place.rank == 0:
        require_nothing_in(folder)
    if options.ranks > 1 and place.size == 1:
        same_folder = [] if options.run_dir is not None else ["--run-dir", str(folder)]
        check_run_folder(folder)  # before there are ranks, so that an error is printed once
        again = ["train", *arguments, *same_folder, *(["--trust"] if trust else [])]
        return launch_ranks(options.ranks, again, folder, max_restarts=options.max_restarts)
    if place.size == 1 and options.join is None:
        _warn_of_tasks()
    resume = "latest" if restart else options.from_checkpoint if options.resume else None
    with report_to_launcher(place.rank):
        if code_named_by(config.env) is None:
            resolve(config.env)  # a wrong name is an error before PyTorch is imported, which takes seconds
        with status("loading PyTorch"):
            from paceline.population.member import train_member
            from paceline.session import train
        if options.join is not None:
            run = train_member(config, folder, options.join, resume=resume, trust=trust)
        else:
            run = train(config, folder, resume=resume, trust=trust)
    if run.group.is_first:
        print_line(_summary(run, folder))
        if options.report and not run.interrupted:
            from paceline.evaluation.report import write_report

            print_line(f"report: {write_report(run.folder)}")
    return exit_code(run.interrupted)


def _warn_of_tasks() -> None:
    """Say that this process is alone, if its SLURM job has several tasks, but srun has not started it."""
    tasks = os.environ.get("SLURM_NTASKS", "1")
    if tasks != "1" and "SLURM_STEP_NUM_TASKS" not in os.environ:
        print_line(f"this SLURM job has {tasks} tasks, and this run is one process; srun starts a rank in every task")


def is_trusted(config: Config, start: Start) -> bool:
    """Whether the user trusts the file with the configuration. Raises `UsageError` if it names code and is not trusted.

    What the command line names is the user's own.
    """
    if start.file is None:
        return False
    env = None if value_of("--env", start.options) is not None else config.env
    foreign = {
        option: name
        for option, name in config.named_code().items()
        if value_of(f"--{option.partition('[')[0]}", start.options) is None
    }
    address = config.remote.address if config.remote.actors else None
    address = address if address == start.config.remote.address else None
    return may_run(env, start.file, address=address, classes=foreign)


def find_start(arguments: list[str], command: str = "train") -> Start:
    """Find the recipe, the configuration file or the run that `arguments` name. `command` is used in messages."""
    allowed = FORMS if command == "sweep" else (*FORMS, RESUME_FORM)  # the same command continues a sweep
    forms = ", ".join(f"paceline {command} {form}" for form in allowed)
    has_recipe = bool(arguments) and not arguments[0].startswith("-")
    recipe, options = (recipes.known_as(arguments[0]), arguments[1:]) if has_recipe else (None, arguments)
    file = value_of("--config", options)
    if file is not None and (recipe is not None or "--resume" in options):
        raise UsageError(f"--config cannot be combined with a recipe or with --resume; allowed: {forms}")
    if "--resume" in options:
        return _resumed(recipe, options, command, forms)
    if recipe is not None:
        config = dataclasses.replace(recipes.find(recipe), recipe=recipe)
        return Start(recipe.rpartition(":")[2], config, options)
    if file is not None:
        return Start(Path(file).stem, Config.load(Path(file)), options, Path(file))
    if (env := value_of("--env", options)) is not None:
        return _from_env(env, value_of("--system", options) or Config.system, options)
    if HELP & set(options):
        return Start("RECIPE", Config(), options)
    raise UsageError(f"nothing to train: {forms}; recipes: {', '.join(recipes.RECIPES)}")


def _from_env(env: str, system: str, options: list[str]) -> Start:
    """Settings for an environment that has no recipe."""
    with status(f"looking at {env}"):
        from paceline.recipes.defaults import default_config

        core = value_of("--policy.core.kind", options) or "none"
        own_policy = is_path(value_of("--policy.kind", options) or "")
        config, chosen_for = default_config(env, system, recurrent=core != "none", own_policy=own_policy)
    if RankInfo.find().rank == 0:
        print_line(f"no recipe: settings for {chosen_for}; config.json in the run folder has them")
    return Start(name_of(env), config, options)


def _resumed(recipe: str | None, options: list[str], command: str, forms: str) -> Start:
    """A run continues with its own configuration. If a recipe is named, it must be the run's own."""
    run_dir = value_of("--run-dir", options)
    if run_dir is None:
        raise UsageError(f"--resume needs --run-dir with the folder of a run; {forms}")
    folder = Path(run_dir)
    if command == "train" and is_population(folder):
        allowed = f"paceline population --resume --run-dir {folder}"
        raise UsageError(f"{folder} is the folder of a population; to continue all members: {allowed}")
    config = Config.load(folder / "config.json")
    if recipe is not None and recipe != config.recipe:
        own = f"of the recipe {config.recipe}" if config.recipe else "not of a recipe"
        raise UsageError(
            f"the run in {folder} is {own}, and cannot continue as {recipe}; to continue it: "
            f"paceline {command} --resume --run-dir {folder}"
        )
    return Start(folder.name, config, options, folder / "config.json")


def _summary(run, folder: Path) -> str:
    mean = run.episodes.means()["episode_return"]
    shown = "no episode ended" if mean is None else f"mean return {mean:.1f}"
    stopped = "stopped by a signal: " if run.interrupted else ""
    return f"{stopped}{run.step:,} steps in {run.seconds:.0f} s, {shown}; everything is in {folder}"
