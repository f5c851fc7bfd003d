"""`paceline population`: train a population of whole runs on this machine, or continue one."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.options import parse, without_options
from paceline.cli.train import find_start, is_trusted
from paceline.config import Config
from paceline.envs.registry import code_named_by, resolve, with_absolute_paths
from paceline.errors import UsageError
from paceline.files import replace_text
from paceline.pool.config import available_core_ids
from paceline.population.display import PopulationTable
from paceline.population.folders import is_population
from paceline.population.launch import SEED_DISTANCE, MemberPlan, PopulationProcesses, shares
from paceline.run_folder import MEMBERS_FILE, open_run_folder, require_nothing_in
from paceline.telemetry.console import print_line, status
from paceline.wording import counted

MEMBERS = 4
OWN, OWN_FLAGS = ("--run-dir", "--members", "--ranks", "--max-restarts", "--seed"), ("--resume", "--trust")


@dataclass(frozen=True, kw_only=True)
class PopulationOptions:
    """Train a population of runs. Each is a `paceline train` with its own run folder, seed and share of the machine;
    the section pbt says when and how they learn from each other. A run on another machine that reaches the same
    folder joins by `paceline train RECIPE --run-dir DIR/NAME --join DIR`."""

    run_dir: Path | None = None
    """Folder of the population. Its members have folders in it. None: a new folder in runs/."""
    config: Path | None = None
    """Instead of a recipe: a configuration file, such as config.json of a run. None: no file."""
    resume: bool = False
    """Continue the population in --run-dir. Every member continues from its latest checkpoint. Options change all."""
    members: int | None = None
    """Runs to start. None: 4, or with --resume as many as before."""
    ranks: int = 1
    """Processes of each member."""
    max_restarts: int = 3
    """How many times to start a member again, from its latest checkpoint, after it has failed. The others go on."""
    trust: bool = False
    """With --resume or --config: run the code that their files name, even if another user wrote them (see
    SECURITY.md)."""


def main(arguments: list[str]) -> int:
    """Run `paceline population` with `arguments`; the exit code."""
    start = find_start(arguments, "population")
    options, config = parse(PopulationOptions, start.config, start.options, prog=f"paceline population {start.label}")
    config = dataclasses.replace(config, env=with_absolute_paths(config.env))
    trust = options.trust or is_trusted(config, start)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = options.run_dir or Path("runs") / f"{start.label}-population-{config.seed}-{stamp}"
    count = _members(options, folder)
    _require_possible(config, options)
    with open_run_folder(folder) as opened:
        if not options.resume:
            require_nothing_in(folder, of_run="paceline train --resume")
        opened.is_used = True
        (folder / "logs").mkdir(exist_ok=True)
        config.save(folder / "config.json")
        replace_text(folder / MEMBERS_FILE, json.dumps({"members": count}) + "\n")
        # Every member has its own seed.
        changes = without_options(start.options, OWN, OWN_FLAGS) if options.resume else []
        return _train(config, options, _plans(config, options, folder, count, changes, trust), folder)


def _train(config: Config, options: PopulationOptions, plans: list[MemberPlan], folder: Path) -> int:
    """Train all members to their ends, and say how each has ended."""
    processes = PopulationProcesses(plans, options.max_restarts)
    count = len(plans)
    print_line(f"{counted(count, 'member')} of {config.system} on {config.env}; folder: {folder}")
    with PopulationTable(str(folder), processes.members, config.pbt.objective, config.log_seconds, None) as table:
        code = processes.run(table.update)
    for member in processes.members:
        line = f": {member.plan.last_line()} (all of it is in {member.plan.log})" if member.status == "failed" else ""
        print_line(f"{member.plan.name} {member.status}{line}")
    return code


def _members(options: PopulationOptions, folder: Path) -> int:
    count = options.members
    if options.resume and not is_population(folder):
        raise UsageError(f"{folder} is not the folder of a population; allowed: the --run-dir of one")
    if count is None and options.resume:
        try:
            count = int(json.loads((folder / MEMBERS_FILE).read_text())["members"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder / MEMBERS_FILE} cannot be read ({error}); --members says how many to start"
            ) from error
    count = MEMBERS if count is None else count
    if count < 1:
        raise UsageError(f"--members must be at least 1, got {count}")
    return count


def _require_possible(config: Config, options: PopulationOptions) -> None:
    if config.pbt.every is None:
        raise UsageError("a population needs --pbt.every N: the steps of a member between two rounds")
    if options.max_restarts < 0 or options.ranks < 1:
        raise UsageError("--max-restarts must be at least 0, and --ranks at least 1")
    if code_named_by(config.env) is None:
        resolve(config.env)
    if config.pbt.tuned:  # the defaults are always allowed, and PyTorch takes seconds to import
        with status("loading PyTorch"):
            from paceline.population.member import tuned_by
        tuned_by(config)


def _plans(
    config: Config, options: PopulationOptions, folder: Path, count: int, changes: list[str], trust: bool
) -> list[MemberPlan]:
    """`changes`: options that change the runs when they are resumed."""
    cores, gpus = shares(count, available_core_ids()), gpus_of_machine(config)
    gpus_of = shares(count, gpus) if gpus else None
    plans = []
    for member in range(count):
        name = f"member_{member}"
        train = [sys.executable, "-m", "paceline", "train"]
        own = ["--run-dir", str(folder / name), "--join", str(folder), "--ranks", str(options.ranks)]
        own += ["--trust"] if trust else []
        seed = ["--seed", str(config.seed + SEED_DISTANCE * member)]
        plans.append(
            MemberPlan(
                name=name,
                folder=folder / name,
                log=folder / "logs" / f"{name}.log",
                new=[*train, "--config", str(folder / "config.json"), *seed, *own],
                resumed=[*train, "--resume", *changes, *own],
                cores=cores[member],
                gpus=gpus_of[member] if gpus_of is not None else None,
            )
        )
    return plans


def gpus_of_machine(config: Config) -> list[str]:
    """The GPUs of this machine that runs of `config` share, as CUDA_VISIBLE_DEVICES names them."""
    if config.device == "cpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
