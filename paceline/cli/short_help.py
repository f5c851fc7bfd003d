"""`paceline train --help`: the common options on one screen. `--help-all` lists every option."""

from __future__ import annotations

import textwrap

from paceline.config import Config
from paceline.systems import SYSTEMS

COMMON = (
    ("--env ID", "the environment: `paceline envs` lists them; package.module:MyEnv or ./file.py:MyEnv is your own"),
    ("--system NAME", "the training system, see below (default: {system})"),
    ("--steps N", "agent steps to train on, for example 1e6 (default: {steps:,})"),
    ("--seconds S", "stop after S seconds of training (default: {seconds})"),
    ("--run-dir DIR", "folder of the run (default: a new one in runs/)"),
    ("--resume", "continue the run in --run-dir; other options change it"),
    ("--seed N", "seed of all random numbers (default: {seed})"),
    ("--device D", "cpu, cuda, cuda:N or auto (default: {device})"),
    ("--ranks R", "processes on this machine that train together (default: 1)"),
    ("--pool.num-envs N", "environments of each rank (default: {pool.num_envs})"),
    ("--report", "write report.html at the end"),
)
EXAMPLES = (
    ("paceline train cartpole", "a recipe"),
    ("paceline train --env gym:Acrobot-v1 --system appo --steps 2e5", "an environment without a recipe"),
    ("paceline train --resume --run-dir runs/NAME --steps 1e6", "a run that goes on"),
)
WIDTH = 100


def short_help(label: str, config: Config) -> str:
    """The help for a recipe, or for all of them."""
    lines = [f"usage: paceline train {label} [options]", "", "Train a policy, or continue a run.", ""]
    values = vars(config) | {"seconds": "no limit" if config.seconds is None else f"{config.seconds:g}"}
    lines += _table([(option, about.format(**values)) for option, about in COMMON])
    lines += ["", "Systems:", *_table([(name, system.about) for name, system in SYSTEMS.items()])]
    lines += ["", "Examples:", *_table(EXAMPLES)]
    lines += ["", f"`paceline train {label} --help-all` lists every option that the system reads.", *_recipes(label)]
    return "\n".join(lines)


def _table(rows: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> list[str]:
    width = max(len(name) for name, _ in rows) + 2
    found: list[str] = []
    for name, about in rows:
        first, *rest = textwrap.wrap(about, WIDTH - width - 2)
        found += [f"  {name:<{width}}{first}", *(" " * (width + 2) + line for line in rest)]
    return found


def _recipes(label: str) -> list[str]:
    return ["`paceline recipes` lists the recipes."] if label == "RECIPE" else []
