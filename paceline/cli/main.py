"""The `paceline` command line: find the command, and end with its exit code."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback

from paceline import __version__
from paceline.cli.gpu_advice import advice_on_gpu
from paceline.errors import PacelineError, UsageError, closest
from paceline.signals import INTERRUPTED

COMMANDS = {
    "play": "Watch a small trained policy that is part of the package.",
    "train": "Train a policy, or continue a run.",
    "population": "Train a population of runs that learn from each other.",
    "sweep": "Search for good settings of a recipe.",
    "eval": "Play episodes with a trained policy, or with a baseline.",
    "report": "Write an HTML page about a run, or compare several.",
    "export": "Write the policy of a run to one file, for use elsewhere.",
    "recipes": "List the recipes.",
    "envs": "List environments, or describe one.",
    "plan": "Check floor plans for navigation, or write one to start from.",
    "doctor": "Say what this machine has, what is missing, and what would be slow.",
    "bench": "Run a benchmark.",
    "completion": "Print the code by which bash or zsh complete commands on TAB.",
}
"""Every command is a module of this package. It is imported when it runs, so that no command waits for another's
imports."""


HOME_AS_VALUE = re.compile(r"(--[\w.-]+=)(~(?:/.*)?)$")
"""Matches options such as --run-dir=~/runs."""


def main() -> None:
    """Run a command. Turn every failure into one clear message and an exit code."""
    _open_closed_streams()
    try:
        code = _run([HOME_AS_VALUE.sub(_expanded, argument) for argument in sys.argv[1:]])
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        return  # the reader of our output has seen enough
    except RuntimeError as error:
        advice = advice_on_gpu(error)
        if advice is None:
            raise
        traceback.print_exc()
        print(f"paceline: {advice}", file=sys.stderr)
        sys.exit(1)
    if code:
        sys.exit(code)


def _open_closed_streams() -> None:
    """Let closed standard streams lead nowhere. Otherwise the next file gets the number of one, and what is printed."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stderr is None:  # without it `print` writes errors to stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open to the end


def _expanded(argument: re.Match[str]) -> str:
    """Shells expand `--run-dir ~/runs`, and most do not expand `--run-dir=~/runs`."""
    return argument[1] + os.path.expanduser(argument[2])


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"paceline {__version__}")
        return 0
    if name not in COMMANDS:
        wrong = f"command {name!r} does not exist{closest(name, COMMANDS)}" if name else "a command is missing"
        raise UsageError(f"{wrong}; allowed: {', '.join(COMMANDS)}; `paceline --help` explains them")
    from paceline.telemetry.console import log_to_console

    log_to_console()
    module = importlib.import_module(f"paceline.cli.{name}")
    if name in ("train", "population", "sweep"):
        return module.main(arguments[1:])
    from paceline.cli.arguments import parse_arguments

    parse_arguments(getattr(module, name.capitalize()), arguments[1:], f"paceline {name}").run()
    return 0


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: paceline COMMAND [options]",
            "",
            *(f"  {name:<{width}}  {about}" for name, about in COMMANDS.items()),
            "",
            "`paceline COMMAND --help` explains the options of a command.",
            "Exit codes: 0 finished, 1 failed, 2 bad usage, 130 interrupted.",
        ]
    )


if __name__ == "__main__":
    main()
