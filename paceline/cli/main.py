"""The `paceline` command line. Exit codes: 0 finished, 1 failed, 2 bad usage, 130 interrupted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from paceline import __version__
from paceline.cli.bench import Bench
from paceline.cli.envs import Envs
from paceline.cli.eval import Eval
from paceline.cli.export import Export
from paceline.cli.recipes import Recipes
from paceline.cli.report import Report
from paceline.distributed.launch import exit_code
from paceline.errors import PacelineError
from paceline.telemetry.console import console, log_to_console


@dataclass(frozen=True)
class Train:
    """Train a policy by a recipe; `paceline train RECIPE --help` explains every option."""

    def run(self) -> None:
        with console().status("loading PyTorch"):
            from paceline.cli.train import main as train

        sys.exit(train(sys.argv[2:]))


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Recipes, tyro.conf.subcommand("recipes")]
    | Annotated[Envs, tyro.conf.subcommand("envs")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
)


def main() -> None:
    """Parse, run, and turn every failure into one clear message and an exit code."""
    if sys.argv[1:] == ["--version"]:
        print(f"paceline {__version__}")
        return
    log_to_console()
    try:
        # What follows `train` depends on the recipe, and is parsed there.
        arguments = sys.argv[1:2] if sys.argv[1:2] == ["train"] else sys.argv[1:]
        command = tyro.cli(Command, args=arguments, prog="paceline", description=__doc__)
        command.run()
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(exit_code(interrupted=True))
    except BrokenPipeError:
        sys.exit(0)  # the reader of our output has seen enough


if __name__ == "__main__":
    main()
