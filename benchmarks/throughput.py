"""Training throughput of all systems on the same workloads, as in Sample Factory's table 1, beside simulation alone.

Agent steps (decisions) per second, learning on. The same environments and number of them, the same network, length of
rollouts, one epoch of four mini-batches. Measurements take turns over the rounds, and medians are compared, since
machines are noisy. Ours run as the library chooses. Peers get the best of several settings, tried once before the
rounds: PPO over EnvPool, as CleanRL writes it, and Stable-Baselines3 with one thread or one per core; Sample Factory
with its own environments in one, two or four workers, and, apart, with an EnvPool of one thread or one per core. Stable-Baselines3
has no recurrent PPO itself, and EnvPool's Doom is many times slower than ViZDoom's package: those cells are empty.
PPO over EnvPool counts the steps in which EnvPool resets an environment as steps, as CleanRL does; the others do not.

Simulation alone is random actions, through our pool and, where the environment is EnvPool's, through EnvPool itself; else
also without any pool, in one plain loop per core: what the cores can do. With `--device cuda` networks are on the GPU,
environments are ale-py's and ViZDoom's in processes, and there are as many of them as keep the cores busy.
`python -m benchmarks.throughput --help` has the choices of a part of it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.cells import CellError, run_file, run_module
from benchmarks.peers import environment
from benchmarks.pool import measure_cell
from benchmarks.pool_envpool import compare
from benchmarks.report import context, print_context, print_table, progress
from paceline.pool.config import available_core_ids
from paceline.telemetry.clock import ACTIVITIES

MLP = {"lstm": 0, "hidden": 64, "rollout_steps": 128, "epochs": 1, "minibatches": 4}
CNN = MLP | {"rollout_steps": 32}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What everybody trains on."""

    env: str
    """The id that peers without EnvPool go by; ours too, where there is no task."""
    task: str | None = None
    """EnvPool's name for it."""
    options: dict[str, Any]
    """Network and batches."""
    envs: tuple[int, ...]
    """Numbers of environments to measure with."""
    seconds: float = 12.0
    """Of each measurement."""


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
"""With a GPU: so many that decisions for half of them are made in batches that are worth it."""
START_SECONDS = 240.0
"""What a measurement may take beside what is measured: 32 Atari games take a minute to start on few cores."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which part of it to measure, and how long."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    systems: tuple[str, ...] = OURS + PEERS
    num_envs: tuple[int, ...] = ()
    """Numbers of environments, instead of each workload's own."""
    rounds: int = 3
    seconds: float | None = None
    """Of each measurement, instead of each workload's own."""
    tuned: bool = True
    """Try all settings of the peers before the rounds; otherwise the first of each."""
    install: bool = True
    """Make the environment of a peer that needs its own, if it is not there."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where networks are; peers run on the CPU only."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Of our networks (`--compute.precision`); peers have float32 only."""

    def workload(self, label: str) -> Workload:
        workload = WORKLOADS[label]
        if self.device == "cpu":
            return workload
        return replace(workload, task=None, envs=(ENVS_PER_CORE * len(available_core_ids()),), seconds=40.0)


Variants = dict[str, dict[str, Any]]
"""By name, the options that a system gets on top of the workload's."""


def variants(system: str, workload: Workload) -> Variants:
    """The settings that a system may choose from; none if it does not do this workload."""
    cores = len(available_core_ids())
    threads: Variants = {"1 thread": {"threads": 1}} | ({f"{cores} threads": {"threads": cores}} if cores > 1 else {})
    if system in OURS:
        # EnvPool's task where there is one: the pool then runs it by EnvPool
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
    """Agent steps per second of one run; of ours, also where its time went."""
    timeout = options["seconds"] + START_SECONDS
    if system in SAMPLE_FACTORIES:
        python = environment.python_of("sample_factory", make=False)
        return run_file(python, SAMPLE_FACTORY_CELL, options, timeout)
    modules = {ENVPOOL: "benchmarks.peers.ppo_envpool", SB3: "benchmarks.peers.sb3_throughput"}
    return run_module(modules.get(system, "benchmarks.ppo_cell"), options, timeout)


@dataclass
class Contestant:
    """One system on one workload."""

    system: str
    options: dict[str, Any]
    """What all systems get."""
    choices: Variants
    """None: the system does not do this workload."""
    tried: dict[str, float] = field(default_factory=dict)
    """What each choice gave when all were tried; these figures count for nothing else."""
    samples: list[float] = field(default_factory=list)
    """Steps per second, round by round."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the last round: where the time of the thread that decides went, and how busy the one that learns was."""
    failure: str | None = None
    """Why there is no figure; a system that failed is not tried again."""

    @property
    def chosen(self) -> str:
        """The name of its settings: the fastest that were tried, the first before any were."""
        return max(self.tried or self.choices, key=lambda name: self.tried.get(name, 0.0))

    @property
    def rate(self) -> float | None:
        return statistics.median(self.samples) if self.samples and self.failure is None else None

    def try_all(self) -> None:
        """Measure every choice once. The system fails if all of them do."""
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


def run(quick: bool) -> dict[str, Any]:
    plan = Plan(workloads=("CartPole",), rounds=1, seconds=4, tuned=False, install=False) if quick else Plan()
    return measure(plan, context())


def measure(plan: Plan, facts: dict[str, Any]) -> dict[str, Any]:
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
    show(bounds, contests, plan)
    results = {
        row: {"simulation": bounds[row], "training": {c.system: vars(c) for c in contest}}
        for row, contest in contests.items()
    }
    return {"context": facts, "plan": vars(plan), "results": results}


def sample_factory_versions(install: bool) -> str:
    """What is in its environment, which is made here if it may be; or why it is not there."""
    try:
        python = environment.python_of("sample_factory", make=install)
        return environment.versions_in(python, SAMPLE_FACTORY_PACKAGES)
    except CellError as error:
        return first_line(error)


def simulate(workload: Workload, num_envs: int, seconds: float) -> dict[str, float]:
    """Steps per second of random actions: through our pool, its fastest backend, and through EnvPool itself."""
    if workload.task is not None:
        found = compare(workload.task, num_envs, rounds=3, seconds=seconds)
        return {"pool": found["ours"], "EnvPool": found["raw"]}
    backends = ["process", "process x2", "bound"]
    if len(available_core_ids()) < 4:
        backends.append("serial")  # one process at a time is never the fastest of many
    found = {b: measure_cell(b, workload.env, num_envs, seconds)["steps_per_second"] for b in backends}
    return {"loops": found.pop("bound"), "pool": max(found.values())}


def compete(plan: Plan, workload: Workload, num_envs: int, row: str) -> list[Contestant]:
    """All systems on one workload: their settings first, then rounds in turns."""
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


def show(bounds: dict[str, dict[str, float]], contests: dict[str, list[Contestant]], plan: Plan) -> None:
    print_table(
        f"agent steps per second, training, median of {plan.rounds} round{'s' * (plan.rounds > 1)}",
        [
            "workload / envs",
            *(c.system for c in next(iter(contests.values()))),
            "our best / best peer",
            *(f"appo / {name}" for name in SAMPLE_FACTORIES),
        ],
        [[row, *(shown(c) for c in contest), *ratios(contest)] for row, contest in contests.items()],
    )
    print_table(
        "agent steps per second, random actions, nothing learned",
        ["workload / envs", "our pool", "EnvPool itself", "plain loops", "our best system / our pool", "/ plain loops"],
        [[row, *simulated(bound, contests[row])] for row, bound in bounds.items()],
    )
    print_table(
        "shares of the time of the thread that decides; of the one that learns beside it, how busy it is",
        ["workload / envs", "system", *SHARES],
        [
            [row, c.system, *(f"{c.shares.get(name, 0.0):.0%}" for name in SHARES)]
            for row, contest in contests.items()
            for c in contest
            if c.shares
        ],
    )
    peers = [system for system in plan.systems if system in PEERS]
    if peers:
        print_table(
            "settings that were fastest" if plan.tuned else "settings",
            ["workload / envs", *peers],
            [[row, *(settings(c) for c in contest if c.system in PEERS)] for row, contest in contests.items()],
        )
    for row, contest in contests.items():
        for contestant in contest:
            if contestant.failure is not None:
                print(f"\n{row}, {contestant.system} failed: {first_line(contestant.failure)}")


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
    """Our best system over the best peer, and our APPO over the original, both ways."""
    return [
        quotient(best_of(contest, OURS), best_of(contest, PEERS)),
        *(quotient(best_of(contest, ("appo",)), best_of(contest, (name,))) for name in SAMPLE_FACTORIES),
    ]


def best_of(contest: list[Contestant], systems: tuple[str, ...]) -> float | None:
    """The highest median of these systems; none if none has one."""
    return max((c.rate for c in contest if c.system in systems and c.rate is not None), default=None)


def quotient(above: float | None, below: float | None) -> str:
    return "-" if above is None or below is None else f"{above / below:.2f}"


def first_line(text: object) -> str:
    return str(text).partition("\n")[0]


if __name__ == "__main__":
    measure(tyro.cli(Plan, description=__doc__), context("python -m benchmarks.throughput"))
