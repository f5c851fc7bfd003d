"""D4PG without each of its parts (the paper's figure 2), and DDPG.

The parts are the distributional critic, priorities, and N-step returns with N = 5. DDPG has none of them, and three
acting streams instead of many. Returns are of episodes without noise, as means of the latest ten. `python -m
benchmarks.d4pg_ablation --help` lists the options.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .learning import Job, final, interval, plot, train_all
from .report import Result, command_line, context, make_result, print_context, print_table

KINDS = {"D3PG": "scalar", "D4PG": "categorical"}
VARIANTS = {
    f"{kind}, {'' if prioritized else 'not '}prioritized, N = {steps}": [
        *("--control.value.kind", KINDS[kind]),
        "--replay.prioritized" if prioritized else "--replay.no-prioritized",
        *("--d4pg.steps", str(steps)),
    ]
    for kind in KINDS
    for prioritized in (False, True)
    for steps in (1, 5)
} | {
    # Four environments is the smallest number for which one evaluates: three act.
    "DDPG": ["--control.value.kind", "scalar", "--replay.no-prioritized", "--d4pg.steps", "1", "--pool.num-envs", "4"]
}
PLOT = Path("d4pg_ablation.png")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    tasks: tuple[str, ...] = ("pendulum", "dmc_cartpole_swingup")
    """Recipes."""
    variants: tuple[str, ...] = tuple(VARIANTS)
    seconds: float = 300.0
    """Length of each run. A run has two cores."""
    seeds: tuple[int, ...] = (1,)
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the networks."""


def run(quick: bool) -> Result:
    plan = Plan(tasks=("pendulum",), variants=(next(iter(VARIANTS)), "DDPG"), seconds=12.0) if quick else Plan()
    return measure(plan, context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    jobs: dict[Job, list[str]] = {
        (task, variant, seed): [task, *VARIANTS[variant], "--seed", str(seed), "--seconds", str(plan.seconds)]
        for task in plan.tasks
        for seed in plan.seeds
        for variant in plan.variants
    }
    runs = train_all(jobs, key="evaluation_return", device=plan.device)
    curves = {
        (task, variant): [runs[task, variant, seed] for seed in plan.seeds]
        for task in plan.tasks
        for variant in plan.variants
    }
    returns = {f"{task}, {variant}": [final(curve) for curve in found] for (task, variant), found in curves.items()}
    table = print_table(
        f"Return without noise after {plan.seconds:.0f} s, mean of {len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}",
        ["variant", *plan.tasks],
        [[variant, *(interval(returns[f"{task}, {variant}"]) for task in plan.tasks)] for variant in plan.variants],
        name="returns",
    )
    plot(curves, list(plan.tasks), list(plan.variants), PLOT)
    print(f"\nplot: {PLOT}")
    return make_result("d4pg_ablation", facts, [table], measurements=returns)


if __name__ == "__main__":
    command_line("d4pg_ablation", Plan, measure, __doc__)
