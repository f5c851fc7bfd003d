"""`paceline train`: from a command line to a run."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from paceline import recipes
from paceline.config import Config
from paceline.distributed.failures import told_to_launcher
from paceline.distributed.launch import exit_code, is_restart, launch_ranks
from paceline.distributed.runtime import Place
from paceline.errors import UsageError

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
    """Processes on this machine that train together. Under torchrun or srun, they decide."""
    max_restarts: int = 0
    """With --ranks: how many times all ranks are started again, from the latest checkpoint, after one has failed."""
    report: bool = False
    """Write report.html at the end; `paceline report` does it for any run, at any time."""

    def config(self) -> Config:
        return Config(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Config)})


def main(arguments: list[str]) -> int:
    """Run `paceline train` with `arguments`; the exit code."""
    label, base, rest = _starting_point(arguments)
    defaults = TrainOptions(**{field.name: getattr(base, field.name) for field in dataclasses.fields(Config)})
    options = tyro.cli(TrainOptions, args=rest, default=defaults, prog=f"paceline train {label}")
    config = options.config()
    place = Place.find()
    folder = options.run_dir or Path("runs") / f"{label}-{config.system}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    restart = is_restart(folder)
    if not options.resume and not restart and (folder / "checkpoints" / "latest").exists() and place.rank == 0:
        raise UsageError(f"{folder} holds a run already; --resume continues it, another --run-dir starts a new one")
    if options.ranks > 1 and place.size == 1:
        run_dir = [] if options.run_dir is not None else ["--run-dir", str(folder)]  # the same for all
        return launch_ranks(options.ranks, ["train", *arguments, *run_dir], folder, max_restarts=options.max_restarts)
    from paceline.run import train

    resume = "latest" if restart else options.from_checkpoint if options.resume else None
    with told_to_launcher(place.rank):
        run = train(config, folder, resume=resume)
    if run.group.is_first:
        console = Console(stderr=True)
        console.print(_summary(run, folder), highlight=False)
        if options.report and not run.interrupted:
            from paceline.evaluation.report import write_report

            console.print(f"report: {write_report(folder)}", highlight=False)
    return exit_code(run.interrupted)


def _starting_point(arguments: list[str]) -> tuple[str, Config, list[str]]:
    """What the options change: a recipe, a configuration file, or the run that is resumed."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], recipes.find(arguments[0]), arguments[1:]
    if "--config" in arguments:
        at = arguments.index("--config")
        if at + 1 == len(arguments):
            raise UsageError("--config needs a file")
        path = Path(arguments[at + 1])
        return path.stem, Config.load(path), arguments[:at] + arguments[at + 2 :]
    if "--resume" in arguments and "--run-dir" in arguments[:-1]:
        folder = Path(arguments[arguments.index("--run-dir") + 1])
        return folder.name, Config.load(folder / "config.json"), arguments
    if {"-h", "--help"} & set(arguments):
        return "RECIPE", Config(), arguments
    raise UsageError(f"train what? {USAGE}; recipes: {', '.join(recipes.RECIPES)}")


def _summary(run, folder: Path) -> str:
    means = run.episode_means()
    shown = "no episode ended" if means["episode_return"] is None else f"mean return {means['episode_return']:.1f}"
    return f"{run.step:,} steps in {run.seconds:.0f} s, {shown}; everything is in {folder}"
