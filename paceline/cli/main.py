"""The `paceline` command line. Exit codes: 0 finished, 1 failed, 2 bad usage, 130 interrupted."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from paceline import __version__
from paceline.distributed.launch import exit_code
from paceline.envs.ids import EnvId
from paceline.envs.registry import FAMILIES, load, resolve
from paceline.errors import PacelineError, UsageError
from paceline.telemetry.console import console, log_to_console


@dataclass(frozen=True)
class Envs:
    """List the families of environments, the names of one family, or what one environment looks like and costs."""

    what: Annotated[str | None, tyro.conf.Positional] = None
    """Nothing, a family (doom), or an environment id (doom:my_way_home?frameskip=2)."""

    def run(self) -> None:
        if self.what is None:
            list_families()
        elif self.what in FAMILIES:
            for name in load(self.what).names():
                print(f"{self.what}:{name}")
        else:
            describe_environment(self.what)


@dataclass(frozen=True)
class Bench:
    """Run a benchmark: it prints the machine, the versions, the command and a table."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """Which one; without a name they are listed."""
    quick: bool = False
    """A small part of it, within a minute: to see that it runs, not to quote."""
    json: Path | None = None
    """Also write everything measured to this file."""

    def run(self) -> None:
        from paceline.bench import available, run_benchmark

        if self.name is None:
            for name, about in available().items():
                print(f"{name:<16} {about}")
        else:
            run_benchmark(self.name, quick=self.quick, json_path=self.json)


@dataclass(frozen=True)
class Train:
    """Train a policy by a recipe; `paceline train RECIPE --help` explains every option."""

    def run(self) -> None:
        with console().status("loading PyTorch"):
            from paceline.cli.train import main as train

        sys.exit(train(sys.argv[2:]))


@dataclass(frozen=True)
class Eval:
    """Play whole episodes with the policy of a run, or with a baseline of PointGoal navigation, and say how well it
    does."""

    run_folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """The folder of a run."""
    agent: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Instead of a run, a baseline: oracle, random, forward, goal-follower or map-and-plan."""
    episodes: int | None = None
    """How many episodes count: 100, spread evenly over the slots; of pointnav, all that the split has."""
    split: Annotated[str | None, tyro.conf.arg(metavar="train|val|test")] = None
    """Of pointnav, whose scenes to play in; val by default."""
    samples: int = 1
    """Of pointnav with --sampled, how many times each episode is played."""
    checkpoint: str = "latest"
    """latest, best or step_N."""
    sampled: bool = False
    """Sample actions, as in training, instead of taking the likeliest."""
    seed: int = 1_000_000
    """Of the environments (pointnav has fixed episodes instead), and of sampled actions."""
    num_envs: int | None = None
    """Environments at a time; by default as many as in training (of pointnav, 256 or more), but no more than
    episodes."""
    env: str | None = None
    """Play in this environment instead of that of training. It is for options that only training should have: after
    atari:Breakout?episodic_life=true, whole games for their own score are atari:Breakout?clip_rewards=false. With
    --agent: pointnav, pointnav:small or pointnav:full, with options."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="PATH.mp4|PATH.gif")] = None
    """Also film one episode."""
    json: bool = False
    """Print one JSON object instead of a table."""
    trust: bool = False
    """Run the code that the run's folder names, even though this user did not write it (see SECURITY.md)."""

    def run(self) -> None:
        from paceline.evaluation import evaluate
        from paceline.sims.navigation import evaluation as navigation

        # What environments print, and what is printed as they are imported, is no part of the result.
        with contextlib.redirect_stdout(sys.stderr):
            report = self._evaluate()
        if self.json:
            print(json.dumps(report, allow_nan=False))
        else:
            Console().print((navigation if "spl" in report else evaluate).for_people(report))

    def _evaluate(self) -> dict[str, Any]:
        from paceline.config import Config
        from paceline.evaluation import evaluate
        from paceline.sims.navigation import evaluation as navigation

        common: dict[str, Any] = {"seed": self.seed, "num_envs": self.num_envs}
        if self.run_folder is None or self.agent is not None:
            agent = self._only_agent()
            env = self.env or "pointnav"
            return navigation.evaluate_baseline(agent, env=env, split=self.split, episodes=self.episodes, **common)
        common |= {"checkpoint": self.checkpoint, "sampled": self.sampled, "env": self.env, "video": self.video}
        config = self.run_folder / "config.json"
        env = self.env or (Config.load(config).env if config.is_file() else "")
        if env and navigation.is_navigation(env):
            return navigation.evaluate_policy(
                self.run_folder, split=self.split, episodes=self.episodes, samples=self.samples, **common
            )
        if self.split is not None or self.samples != 1:
            option = "--split" if self.split is not None else "--samples"
            raise UsageError(
                f"{option} is for PointGoal navigation (pointnav), and {env or self.run_folder} is not that"
            )
        episodes = 100 if self.episodes is None else self.episodes
        return evaluate.evaluate(self.run_folder, episodes=episodes, trust=self.trust, **common)

    def _only_agent(self) -> str:
        """The baseline's name, if nothing is asked for that only a policy can do."""
        if self.agent is None or self.run_folder is not None:
            raise UsageError("whom to evaluate? allowed: the folder of a RUN, or --agent NAME, and not both")
        if self.sampled or self.samples != 1 or self.video is not None:
            raise UsageError("--sampled, --samples and --video are for the policy of a RUN, not for --agent")
        return self.agent


@dataclass(frozen=True)
class Report:
    """Write all that is known of a run to one HTML file: curves, speed, settings; of pointnav, how it navigates."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The file; by default report.html in the run's folder."""
    episodes: int = 200
    """Of pointnav, how many episodes of the val split are played."""
    trust: bool = False
    """Changes nothing: a report runs no code that the run's folder names. All commands that read a run have it."""

    def run(self) -> None:
        from paceline.evaluation.report import write_report

        with contextlib.redirect_stdout(sys.stderr):
            path = write_report(self.run_folder, evaluate_episodes=self.episodes, output=self.output)
        print(path)


@dataclass(frozen=True)
class Export:
    """Write the deterministic policy of a run to one file for use elsewhere, and check that it does the same."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""
    format: Literal["onnx", "torchscript"]
    """What to write. Inputs are the observations and, for a recurrent policy, its state; outputs are the actions, the
    value and the new state."""
    checkpoint: str = "latest"
    """latest, best or step_N."""
    output: Path | None = None
    """The file; by default policy.onnx or policy.pt in the run's folder."""
    trust: bool = False
    """Run the code that the run's folder names, even though this user did not write it (see SECURITY.md)."""

    def run(self) -> None:
        from paceline.export import export

        done = export(self.run_folder, self.format, checkpoint=self.checkpoint, output=self.output, trust=self.trust)
        table = Table("", "name", "type", "shape", box=None, header_style="bold", pad_edge=False)
        for side, ports in (("input", done.inputs), ("output", done.outputs)):
            for port in ports:
                table.add_row(side, port.name, port.dtype, str(["batch", *port.shape]))
        Console().print(table, markup=False)
        print(f"{done.checkpoint} is in {done.path}")
        if done.verified_with is not None:
            print(f"verified: executed by {done.verified_with}, it gives what the policy gives")
        else:
            print("NOT verified: neither onnxruntime nor ONNX's reference evaluator is installed")


@dataclass(frozen=True)
class Recipes:
    """List the recipes."""

    def run(self) -> None:
        from paceline.recipes import RECIPES

        width = max(map(len, RECIPES))
        for name, recipe in RECIPES.items():
            print(f"{name:<{width}} {(recipe.__doc__ or '').strip()}")


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Recipes, tyro.conf.subcommand("recipes")]
    | Annotated[Envs, tyro.conf.subcommand("envs")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
)


def list_families() -> None:
    table = Table("family", "example", "what it is", "needs", box=None, header_style="bold", pad_edge=False)
    for name, family in FAMILIES.items():
        table.add_row(name, family.example, family.about, _needs(name))
    table.add_row("module:function", "mypackage.envs:make", "your own Gymnasium or PettingZoo environment", "")
    Console().print(table)


def _needs(family: str) -> str:
    try:
        load(family)
    except UsageError:
        return f"pip install 'paceline[{FAMILIES[family].extra}]'"
    return ""


def describe_environment(text: str) -> None:
    """Spaces and cost of one environment, found out in a process of its own."""
    factory = resolve(text)
    backend, factory = factory.backend, factory.single or factory
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("id", str(EnvId.parse(text)))
    table.add_row("frames per step", str(factory.frameskip))
    if backend is not None:
        table.add_row("pool", backend if factory.backend is not None else f"{backend}; serial and process")
    if factory.backend is None:
        from paceline.pool.auto import probe
        from paceline.pool.config import PoolConfig

        cost = probe(factory, PoolConfig())
        table.add_row("agents", str(cost.spec.agents_per_env))
        for leaf in cost.spec.obs:
            table.add_row(f"observation {leaf.name}", f"{leaf.dtype} {list(leaf.shape)}")
        for leaf in cost.spec.actions:
            table.add_row(f"action {leaf.name}", str(leaf.space))
        table.add_row("step", f"{cost.step_seconds * 1e6:,.0f} µs, {cost.cpu_share:.0%} of a core")
    Console().print(table)


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
