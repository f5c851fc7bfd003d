"""Training throughput of all systems and their peers on the same workloads, and simulation alone.

Figures are agent steps per second while learning. All systems have the same environments, network, rollout length,
and one epoch of four mini-batches. They are measured alternately over the rounds, and medians are compared, because
machines are noisy.

Paceline chooses its own settings. Peers get the best of several settings, which are tried once before the rounds:

- PPO over EnvPool, in the style of CleanRL, and Stable-Baselines3: one thread, or one per core;
- Sample Factory with its own environments: one, two or four workers;
- Sample Factory over EnvPool: one EnvPool thread, or one per core.

Stable-Baselines3 has no recurrent PPO, and EnvPool's Doom is many times slower than the ViZDoom package, so those
cells are empty. PPO over EnvPool counts the steps in which EnvPool resets an environment, as CleanRL does; the others
do not.

Simulation alone means random actions: through Paceline's pool, through EnvPool itself where the task is EnvPool's,
and otherwise in one plain loop per core. With `--device cuda` the networks are on the GPU, environments run in
processes, and there are enough of them to keep the cores busy. `python -m benchmarks.throughput --help` lists the
options.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paceline.pool.config import available_core_ids
from paceline.telemetry.clock import ACTIVITIES

from .cells import CellError, run_file, run_module
from .peers import environment
from .pool import measure_cell
from .pool_envpool import compare
from .report import Result, Table, command_line, context, make_result, print_context, print_table, progress

EXTRA = "envpool"
"""What `paceline bench` checks before it begins."""
MLP = {"lstm": 0, "hidden": 64, "rollout_steps": 128, "epochs": 1, "minibatches": 4}
CNN = MLP | {"rollout_steps": 32}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A task that all systems train on."""

    env: str
    """The environment id for peers without EnvPool, and for Paceline if there is no `task`."""
    task: str | None = None
    """EnvPool's name of the environment."""
    options: dict[str, Any]
    """Options of the network and the batches."""
    envs: tuple[int, ...]
    """Numbers of environments."""
    seconds: float = 12.0
    """Length of each measurement."""


WORKLOADS = {
    "CartPole": Workload(env="gym:CartPole-v1", task="CartPole-v1", options=MLP, envs=(64,)),
    "HalfCheetah": Workload(env="gym:HalfCheetah-v4", task="HalfCheetah-v4", options=MLP, envs=(64,)),
    "Breakout": Workload(env="atari:Breakout", task="Breakout-v5", options=CNN, envs=(32,), seconds=30),
    "Breakout, LSTM 512": Workload(
        env="atari:Breakout", task="Breakout-v5", options=CNN | {"lstm": 512}, envs=(32,), seconds=30
    ),
    "Doom, LSTM 512": Workload(
        env="doom:my_way_home", options=CNN | {"lstm": 512, "encoder": "sample_factory"}, envs=(32,), seconds=30
    ),
}
OURS = ("ddppo", "ver", "appo")
ENVPOOL, SB3 = "PPO over EnvPool", "Stable-Baselines3"
SAMPLE_FACTORY, SAMPLE_FACTORY_ENVPOOL = SAMPLE_FACTORIES = ("Sample Factory", "Sample Factory over EnvPool")
PEERS = (ENVPOOL, SB3, *SAMPLE_FACTORIES)
SAMPLE_FACTORY_CELL = Path(__file__).parent / "peers" / "sample_factory_cell.py"
SAMPLE_FACTORY_PACKAGES = ("sample-factory", "torch", "numpy", "gymnasium", "mujoco", "ale-py", "vizdoom", "envpool")
SHARES = (*ACTIVITIES, "learner_busy")
ENVS_PER_CORE = 16
"""With a GPU: enough for large inference batches."""
START_SECONDS = 240.0
"""Time limit in addition to the measurement: 32 Atari games take a minute to start on few cores."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    systems: tuple[str, ...] = OURS + PEERS
    num_envs: tuple[int, ...] = ()
    """Numbers of environments, instead of those of the workloads."""
    rounds: int = 3
    seconds: float | None = None
    """Length of each measurement, instead of those of the workloads."""
    tuned: bool = True
    """Try all settings of the peers before the rounds. Otherwise each peer uses its first."""
    install: bool = True
    """Create the Python environment of a peer that needs its own, if it does not exist."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the networks. Peers run on the CPU only."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Precision of Paceline's networks (`--compute.precision`). Peers have float32 only."""

    def workload(self, label: str) -> Workload:
        workload = WORKLOADS[label]
        if self.device == "cpu":
            return workload
        return replace(workload, task=None, envs=(ENVS_PER_CORE * len(available_core_ids()),), seconds=40.0)


Variants = dict[str, dict[str, Any]]
"""Options of a system in addition to those of the workload, by name of the setting."""


def variants(system: str, workload: Workload) -> Variants:
    """The settings of a system. Empty if it cannot run this workload."""
    cores = len(available_core_ids())
    threads: Variants = {"1 thread": {"threads": 1}} | ({f"{cores} threads": {"threads": cores}} if cores > 1 else {})
    if system in OURS:
        # Without `env` the pool runs the EnvPool task.
        where = {"env": None} if workload.task else {}
        return {"": {"system": system, "threads": None} | where}
    if system == ENVPOOL:
        return threads if workload.task else {}
    if system == SB3:
        return {} if workload.options["lstm"] else threads
    if system == SAMPLE_FACTORY:
        return {f"{count} worker{'s' * (count > 1)}": {"workers": count} for count in (1, 2, 4)}
    return {name: {"envpool_threads": count["threads"]} for name, count in threads.items()} if workload.task else {}


def measure_system(system: str, options: dict[str, Any]) -> dict[str, Any]:
    """Agent steps per second of one run and, for Paceline, its time shares."""
    timeout = options["seconds"] + START_SECONDS
    if system in SAMPLE_FACTORIES:
        python = environment.python_of("sample_factory", make=False)
        return run_file(python, SAMPLE_FACTORY_CELL, options, timeout)
    modules = {ENVPOOL: f"{__package__}.peers.ppo_envpool", SB3: f"{__package__}.peers.sb3_throughput"}
    return run_module(modules.get(system, f"{__package__}.ppo_cell"), options, timeout)


@dataclass
class Contestant:
    """One system on one workload."""

    system: str
    options: dict[str, Any]
    """Options that all systems have."""
    choices: Variants
    """Its settings. Empty if it cannot run this workload."""
    tried: dict[str, float] = field(default_factory=dict)
    """Steps per second of each setting when all were tried. They only choose the setting."""
    samples: list[float] = field(default_factory=list)
    """Steps per second of every round."""
    shares: dict[str, float] = field(default_factory=dict)
    """Time shares of the last round: of the main thread, and how busy the learner thread was."""
    failure: str | None = None
    """Why there is no figure. A system that failed is not measured again."""

    @property
    def chosen(self) -> str:
        """The fastest setting that was tried. Before that, the first."""
        return max(self.tried or self.choices, key=lambda name: self.tried.get(name, 0.0))

    @property
    def rate(self) -> float | None:
        return statistics.median(self.samples) if self.samples and self.failure is None else None

    def try_all(self) -> None:
        """Measure every setting once. The system fails if all settings fail."""
        for name in self.choices:
            rate = self._measure(name)
            if rate is not None:
                self.tried[name] = rate
        if self.tried:
            self.failure = None

    def take_turn(self) -> None:
        if self.choices and self.failure is None:
            rate = self._measure(self.chosen)
            if rate is not None:
                self.samples.append(rate)

    def _measure(self, name: str) -> float | None:
        try:
            found = measure_system(self.system, self.options | self.choices[name])
            self.shares = found.get("shares", {})
            return found["steps_per_second"]
        except CellError as error:
            self.failure = str(error)
            return None


def run(quick: bool) -> Result:
    plan = Plan(workloads=("CartPole",), rounds=1, seconds=4, tuned=False, install=False) if quick else Plan()
    return measure(plan, context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    if set(SAMPLE_FACTORIES) & set(plan.systems):
        facts["versions"] |= {"for Sample Factory:": sample_factory_versions(plan.install)}
    print_context(facts)
    contests, bounds = {}, {}
    for label in plan.workloads:
        workload = plan.workload(label)
        for num_envs in plan.num_envs or workload.envs:
            row = f"{label} / {num_envs}"
            progress(f"{row}: simulation alone")
            bounds[row] = simulate(workload, num_envs, seconds=0.5 if plan.seconds else 2.0)
            contests[row] = compete(plan, workload, num_envs, row)
    progress("")
    tables = show(bounds, contests, plan)
    results = {
        row: {"simulation": bounds[row], "training": {c.system: vars(c) for c in contest}}
        for row, contest in contests.items()
    }
    return make_result("throughput", facts, tables, measurements=results)


def sample_factory_versions(install: bool) -> str:
    """Versions in Sample Factory's environment, which `install` creates, or why it does not exist."""
    try:
        python = environment.python_of("sample_factory", make=install)
        return environment.versions_in(python, SAMPLE_FACTORY_PACKAGES)
    except CellError as error:
        return first_line(error)


def simulate(workload: Workload, num_envs: int, seconds: float) -> dict[str, float]:
    """Steps per second with random actions: of the fastest backend of the pool, and of EnvPool or plain loops."""
    if workload.task is not None:
        found = compare(workload.task, num_envs, rounds=3, seconds=seconds)
        return {"pool": found["ours"], "EnvPool": found["raw"]}
    backends = ["process", "process x2", "bound"]
    if len(available_core_ids()) < 4:
        backends.append("serial")  # on more cores one process is never the fastest
    found = {b: measure_cell(b, workload.env, num_envs, seconds)["steps_per_second"] for b in backends}
    return {"loops": found.pop("bound"), "pool": max(found.values())}


def compete(plan: Plan, workload: Workload, num_envs: int, row: str) -> list[Contestant]:
    """Measure all systems on one workload: first their settings, then alternating rounds."""
    options = workload.options | {"env": workload.env, "task": workload.task, "num_envs": num_envs}
    options |= {"seconds": plan.seconds or workload.seconds, "device": plan.device, "precision": plan.precision}
    systems = [system for system in plan.systems if plan.device == "cpu" or system in OURS]
    contest = [Contestant(system, options, variants(system, workload)) for system in systems]
    for contestant in contest:
        if plan.tuned and len(contestant.choices) > 1:
            progress(f"{row}, settings: {contestant.system}")
            contestant.try_all()
    for number in range(plan.rounds):
        for contestant in contest:
            progress(f"{row}, round {number + 1}/{plan.rounds}: {contestant.system}")
            contestant.take_turn()
            print(f"  {row}, {contestant.system}: {shown(contestant)} (median so far)", flush=True)
    return contest


def show(bounds: dict[str, dict[str, float]], contests: dict[str, list[Contestant]], plan: Plan) -> list[Table]:
    training = print_table(
        f"Agent steps per second, training, median of {plan.rounds} round{'s' * (plan.rounds > 1)}",
        [
            "workload / envs",
            *(c.system for c in next(iter(contests.values()))),
            "our best / best peer",
            *(f"appo / {name}" for name in SAMPLE_FACTORIES),
        ],
        [[row, *(shown(c) for c in contest), *ratios(contest)] for row, contest in contests.items()],
        name="training",
    )
    simulation = print_table(
        "Agent steps per second with random actions, without learning",
        ["workload / envs", "our pool", "EnvPool itself", "plain loops", "our best system / our pool", "/ plain loops"],
        [[row, *simulated(bound, contests[row])] for row, bound in bounds.items()],
        name="simulation",
    )
    tables = [training, simulation]
    shares = [
        [row, c.system, *(f"{c.shares.get(name, 0.0):.0%}" for name in SHARES)]
        for row, contest in contests.items()
        for c in contest
        if c.shares
    ]
    if shares:
        title = "Time shares of the main thread, and how busy the learner thread is"
        tables.append(print_table(title, ["workload / envs", "system", *SHARES], shares, name="shares"))
    peers = [system for system in plan.systems if system in PEERS]
    if peers:
        rows = [[row, *(settings(c) for c in contest if c.system in PEERS)] for row, contest in contests.items()]
        title = "Fastest settings of the peers" if plan.tuned else "Settings of the peers"
        tables.append(print_table(title, ["workload / envs", *peers], rows, name="settings"))
    for row, contest in contests.items():
        for contestant in contest:
            if contestant.failure is not None:
                print(f"\n{row}, {contestant.system} failed: {first_line(contestant.failure)}")
    return tables


def shown(contestant: Contestant) -> str:
    if contestant.failure is not None:
        return "failed"
    return "-" if contestant.rate is None else f"{contestant.rate:,.0f}"


def settings(contestant: Contestant) -> str:
    return contestant.chosen if contestant.rate is not None else "-"


def simulated(bound: dict[str, float], contest: list[Contestant]) -> list[str]:
    best = best_of(contest, OURS)
    rates = (f"{bound[name]:,.0f}" if name in bound else "-" for name in ("pool", "EnvPool", "loops"))
    return [*rates, quotient(best, bound["pool"]), quotient(best, bound.get("loops"))]


def ratios(contest: list[Contestant]) -> list[str]:
    """Paceline's best system over the best peer, and its APPO over Sample Factory in both settings."""
    return [
        quotient(best_of(contest, OURS), best_of(contest, PEERS)),
        *(quotient(best_of(contest, ("appo",)), best_of(contest, (name,))) for name in SAMPLE_FACTORIES),
    ]


def best_of(contest: list[Contestant], systems: tuple[str, ...]) -> float | None:
    """The highest median of these systems, if any has one."""
    return max((c.rate for c in contest if c.system in systems and c.rate is not None), default=None)


def quotient(above: float | None, below: float | None) -> str:
    return "-" if above is None or below is None else f"{above / below:.2f}"


def first_line(text: object) -> str:
    return str(text).partition("\n")[0]


if __name__ == "__main__":
    command_line("throughput", Plan, measure, __doc__)
