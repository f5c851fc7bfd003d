"""Updates and steps per second of whole off-policy training: Paceline's d4pg, Stable-Baselines3, CleanRL and DrQ-v2.

All have the same task, number of environments, batch and width of networks, and learn once after each step of all
environments. They are measured in turns. A system whose packages are missing has an empty row.

- Vectors: cheetah-run, 8 environments, batches of 256, two layers of 256 units. Paceline steps them in EnvPool where it
  is installed, and in a second row in dm_control, as the peers do. TD3 and SAC have two critics and no priorities;
  D4PG has one critic with 51 atoms, priorities, and layer norm. TD3 "as in CleanRL" is a loop of our own in its
  manner, because CleanRL is a script.
- Images: random images of 9 x 84 x 84 from an environment that costs almost nothing, so that nothing renders. 2
  environments, batches of 256, two layers of 1024 units, 3-step returns, and random shifts. DrQ-v2 is a plain loop of
  our own after its paper, with its encoder of four convolutions and two critics. Paceline has the recipe `dmc_pixels`,
  whose encoder has three convolutions with strides, which is less work.

`python -m benchmarks.control_speed --help` lists the options.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Literal

import torch

from paceline.errors import UsageError
from paceline.pool.config import available_core_ids

from .cells import CellError, run_module
from .peers.control_loop import Settings
from .report import Result, Table, command_line, context, make_result, print_context, print_table, progress

EXTRA = "dmc"
"""What `paceline bench` checks before it begins."""
Workload = Literal["vectors", "images"]
OURS = f"{__package__}.control_speed_cell"
PEERS = f"{__package__}.peers"
SYSTEMS: dict[Workload, dict[str, tuple[str, dict[str, Any]]]] = {
    "vectors": {
        "Paceline, D4PG": (OURS, {"pool": "auto"}),
        "Paceline, D4PG in dm_control": (OURS, {"pool": "process"}),
        "Stable-Baselines3, TD3": (f"{PEERS}.sb3_control", {"learner": "TD3"}),
        "Stable-Baselines3, SAC": (f"{PEERS}.sb3_control", {"learner": "SAC"}),
        "TD3 as in CleanRL": (f"{PEERS}.td3", {}),
    },
    "images": {"Paceline, D4PG": (OURS, {"pool": "auto"}), "DrQ-v2, plain PyTorch": (f"{PEERS}.drqv2", {})},
}
NAMES = tuple(dict.fromkeys(name for systems in SYSTEMS.values() for name in systems))
START_SECONDS = 120.0
"""Time for the start and for the transitions before the first update."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    workloads: tuple[Workload, ...] = ("vectors", "images")
    systems: tuple[str, ...] = NAMES
    """A workload that has none of them is left out."""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    rounds: int = 3
    seconds: float = 15.0
    """How long each figure is measured."""
    batch: int = 256
    image_batch: int = 256
    minimum: int = 1000
    """Transitions before the first update."""
    threads: int | None = None
    """PyTorch threads on a CPU. None: one for each core."""
    compile: bool = False
    """Also compile Paceline's updates on a CPU, which takes longer to start."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.systems if name not in NAMES]
        if unknown:
            raise UsageError(f"systems has {unknown}; allowed: {', '.join(map(repr, NAMES))}")
        if not self.measured():
            allowed = dict.fromkeys(repr(name) for workload in self.workloads for name in SYSTEMS[workload])
            raise UsageError(f"nothing to measure; allowed systems of these workloads: {', '.join(allowed)}")

    def measured(self) -> list[Workload]:
        """The workloads that have one of the systems."""
        return [workload for workload in self.workloads if not SYSTEMS[workload].keys().isdisjoint(self.systems)]


def run(quick: bool) -> Result:
    few = ("Paceline, D4PG", "TD3 as in CleanRL")
    plan = Plan(workloads=("vectors",), systems=few, device="cpu", rounds=1, seconds=2.0, batch=32, minimum=100)
    return measure(plan if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    tables, found = [], {}
    for workload in plan.measured():
        samples = in_turns(workload, plan)
        progress("")
        tables.append(show(workload, samples, plan))
        found[workload] = samples
    note = f"Medians of {plan.rounds} alternating rounds of {plan.seconds:g} s."
    return make_result("control_speed", facts, tables, note=note, measurements=found)


def in_turns(workload: Workload, plan: Plan) -> dict[str, list[dict[str, float]]]:
    """Rates by system. A system that fails is left out of the later rounds, and has no rates."""
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in SYSTEMS[workload] if name in plan.systems}
    failed: set[str] = set()
    for number in range(plan.rounds):
        for name in [name for name in samples if name not in failed]:
            progress(f"{workload}, round {number + 1}/{plan.rounds}: {name}")
            try:
                samples[name].append(measure_one(workload, name, plan))
            except CellError as error:
                failed.add(name)
                print(f"  {workload}, {name}: {str(error).splitlines()[0]}", flush=True)
                continue
            rates = samples[name][-1]
            shown = f"{rates['updates_per_second']:,.1f} updates and {rates['steps_per_second']:,.0f} steps per second"
            print(f"  {workload}, {name}: {shown}", flush=True)
    return {name: [] if name in failed else found for name, found in samples.items()}


def measure_one(workload: Workload, name: str, plan: Plan) -> dict[str, float]:
    module, own = SYSTEMS[workload][name]
    settings = settings_of(workload, plan)
    patience = START_SECONDS + 4 * plan.seconds
    if module != OURS:
        return run_module(module, own | settings._asdict(), patience)
    arguments = paceline_arguments(workload, settings, own["pool"], plan)
    return run_module(module, {"arguments": arguments, "seconds": plan.seconds, "patience": patience}, patience + 10)


def settings_of(workload: Workload, plan: Plan) -> Settings:
    vectors = workload == "vectors"
    return Settings(
        env="dmc:cheetah-run?flat=true" if vectors else f"{__package__}.images:Images",
        num_envs=8 if vectors else 2,
        batch=plan.batch if vectors else plan.image_batch,
        hidden=256 if vectors else 1024,
        device=plan.device,
        threads=plan.threads or len(available_core_ids()),
        seconds=plan.seconds,
        minimum=plan.minimum,
    )


def paceline_arguments(workload: Workload, settings: Settings, pool: str, plan: Plan) -> list[str]:
    """Options of `paceline train` for the same work. No environment evaluates, and reports come often."""
    recipe = "dmc_cheetah_run" if workload == "vectors" else "dmc_pixels"
    arguments = [recipe, "--env", settings.env, "--device", settings.device, "--steps", "1000000000"]
    arguments += ["--pool.num-envs", str(settings.num_envs), "--pool.kind", pool, "--d4pg.evaluation-envs", "0"]
    arguments += ["--d4pg.batch", str(settings.batch), "--limiter.minimum", str(settings.minimum)]
    arguments += ["--limiter.samples-per-insert", str(settings.batch / settings.num_envs)]
    arguments += ["--replay.capacity", "100000", "--checkpoint.seconds", "3600"]
    if plan.compile and settings.device == "cpu":
        arguments += ["--compute.compile"]
    return [*arguments, "--threads", str(settings.threads)]


def show(workload: Workload, samples: dict[str, list[dict[str, float]]], plan: Plan) -> Table:
    def median(name: str, key: str) -> float | None:
        found = samples[name]
        return statistics.median(rates[key] for rates in found) if found else None

    def cells(name: str) -> list[str]:
        updates, steps = median(name, "updates_per_second"), median(name, "steps_per_second")
        if updates is None or steps is None:
            return ["", "", ""]
        ours = median(next(iter(samples)), "updates_per_second")
        return [shown(updates), shown(steps), "" if ours is None else f"{ours / updates:.2f}"]

    return print_table(
        f"{workload.capitalize()}: updates and steps per second on {plan.device}",
        ["system", "updates per second", "steps per second", "Paceline's updates / this system's"],
        [[name, *cells(name)] for name in samples],
        name=workload,
    )


def shown(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


if __name__ == "__main__":
    command_line("control_speed", Plan, measure, __doc__)
