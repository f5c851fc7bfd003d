"""`paceline train`: from a command line to a run."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from paceline import recipes
from paceline.config import Config
from paceline.distributed.failures import told_to_launcher
from paceline.distributed.launch import exit_code, is_restart, launch_ranks
from paceline.distributed.runtime import Place
from paceline.errors import UsageError
from paceline.nets.config import named_classes
from paceline.run_folder import check_run_folder
from paceline.telemetry.console import say
from paceline.trust import may_run

USAGE = "paceline train RECIPE [options], paceline train --config FILE [options], paceline train --resume --run-dir DIR"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Config):
    """Train a policy. The defaults shown are those of the recipe."""

    run_dir: Path | None = None
    """Where everything is written; by default a new folder in runs/."""
    resume: bool = False
    """Continue the run in --run-dir, with its configuration and from its latest checkpoint."""
    from_checkpoint: str = "latest"
    """With --resume: latest, best or step_N."""
    ranks: int = 1
    """Processes on this machine that train together. Ignored under torchrun and srun, which start the ranks."""
    max_restarts: int = 0
    """With --ranks: how many times all ranks are started again, from the latest checkpoint, after one has failed."""
    report: bool = False
    """Write report.html at the end; `paceline report` does it for any run, at any time."""
    trust: bool = False
    """With --resume or --config: run the code that these name, even though this user did not write them (see SECURITY.md)."""

    def config(self) -> Config:
        return Config(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Config)})


def main(arguments: list[str]) -> int:
    """Run `paceline train` with `arguments`; the exit code."""
    label, base, rest, file = _starting_point(arguments)
    defaults = TrainOptions(**{field.name: getattr(base, field.name) for field in dataclasses.fields(Config)})
    options = tyro.cli(TrainOptions, args=rest, default=defaults, prog=f"paceline train {label}")
    config = options.config()
    trust = options.trust or (file is not None and _trusts(config, base, file, rest))
    place = Place.find()
    folder = options.run_dir or Path("runs") / f"{label}-{config.system}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    restart = is_restart(folder)
    if not options.resume and not restart and (folder / "checkpoints" / "latest").exists() and place.rank == 0:
        raise UsageError(f"{folder} holds a run already; --resume continues it, another --run-dir starts a new one")
    if options.ranks > 1 and place.size == 1:
        run_dir = [] if options.run_dir is not None else ["--run-dir", str(folder)]  # the same for all
        check_run_folder(folder)  # what is wrong with it is said once, before there are ranks
        again = ["train", *arguments, *run_dir, *(["--trust"] if trust else [])]
        return launch_ranks(options.ranks, again, folder, max_restarts=options.max_restarts)
    from paceline.run import train

    resume = "latest" if restart else options.from_checkpoint if options.resume else None
    with told_to_launcher(place.rank):
        run = train(config, folder, resume=resume, trust=trust)
    if run.group.is_first:
        say(_summary(run, folder))
        if options.report and not run.interrupted:
            from paceline.evaluation.report import write_report

            say(f"report: {write_report(folder)}")
    return exit_code(run.interrupted)


def _trusts(config: Config, base: Config, file: Path, arguments: list[str]) -> bool:
    """Whether the user says that `file`, where `base` comes from, is to be trusted; refused if it has to be and is not.

    What is named on the command line is the user's own.
    """
    named = {argument.split("=")[0] for argument in arguments}
    classes = named_classes(config.policy, config.control)
    foreign = {option: name for option, name in classes.items() if f"--{option}" not in named}
    address = config.remote.address if config.remote.actors and config.remote.address == base.remote.address else None
    return may_run(None if "--env" in named else config.env, file, address=address, classes=foreign)


def _starting_point(arguments: list[str]) -> tuple[str, Config, list[str], Path | None]:
    """What the options change: the run that is resumed, a recipe, or a configuration file; and the file that it comes from."""
    recipe = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if "--resume" in arguments:
        rest = arguments if recipe is None else arguments[1:]
        return _resumed(recipe, _value_of("--run-dir", arguments), rest)
    if recipe is not None:
        name = recipes.known_as(recipe)
        return name, dataclasses.replace(recipes.find(name), recipe=name), arguments[1:], None
    if "--config" in arguments:
        path = Path(_value_of("--config", arguments))
        at = arguments.index("--config")
        return path.stem, Config.load(path), arguments[:at] + arguments[at + 2 :], path
    if {"-h", "--help"} & set(arguments):
        return "RECIPE", Config(), arguments, None
    raise UsageError(f"train what? {USAGE}; recipes: {', '.join(recipes.RECIPES)}")


def _resumed(recipe: str | None, run_dir: str, rest: list[str]) -> tuple[str, Config, list[str], Path]:
    """A run goes on with its own configuration; a recipe may be named if it is the run's own."""
    folder = Path(run_dir)
    config = Config.load(folder / "config.json")
    if recipe is not None and recipes.known_as(recipe) != config.recipe:
        own = f"of the recipe {config.recipe}" if config.recipe else "not of a recipe"
        raise UsageError(
            f"the run in {folder} is {own}, and cannot go on as {recipe}; to continue it: paceline train --resume --run-dir {folder}"
        )
    return folder.name, config, rest, folder / "config.json"


def _value_of(option: str, arguments: list[str]) -> str:
    """What follows `option`, or stands behind its equals sign."""
    for number, argument in enumerate(arguments):
        if argument == option and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    raise UsageError(f"{option} is missing, or nothing follows it; {USAGE}")


def _summary(run, folder: Path) -> str:
    means = run.episode_means()
    shown = "no episode ended" if means["episode_return"] is None else f"mean return {means['episode_return']:.1f}"
    stopped = "stopped by a signal: " if run.interrupted else ""
    return f"{stopped}{run.step:,} steps in {run.seconds:.0f} s, {shown}; everything is in {folder}"
