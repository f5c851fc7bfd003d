"""D4PG without each of its parts (the paper's figure 2): scalar critic or distribution, priorities or not, N = 1 or 5; and DDPG.

Returns of episodes without noise, means of the latest ten, over steps and over time. DDPG is what is left without all of the parts, with
three streams that act. `python -m benchmarks.d4pg_ablation --help` has the choices of a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.learning import Job, final, interval, plot, train_all
from benchmarks.report import context, print_context, print_table

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
    # Of four environments, the fewest that spare one for it, one evaluates.
    "DDPG": ["--control.value.kind", "scalar", "--replay.no-prioritized", "--d4pg.steps", "1", "--pool.num-envs", "4"]
}
PLOT = Path("d4pg_ablation.png")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which part of it to run."""

    tasks: tuple[str, ...] = ("pendulum", "dmc_cartpole_swingup")
    """Recipes."""
    variants: tuple[str, ...] = tuple(VARIANTS)
    seconds: float = 300.0
    """Of each run, which has two cores."""
    seeds: tuple[int, ...] = (1,)
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the networks are."""


def run(quick: bool) -> dict[str, Any]:
    plan = Plan(tasks=("pendulum",), variants=(next(iter(VARIANTS)), "DDPG"), seconds=12.0) if quick else Plan()
    return measure(plan, context())


def measure(plan: Plan, facts: dict[str, Any]) -> dict[str, Any]:
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
    print_table(
        f"return without noise after {plan.seconds:.0f} s, mean of {len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}",
        ["variant", *plan.tasks],
        [[variant, *(interval(returns[f"{task}, {variant}"]) for task in plan.tasks)] for variant in plan.variants],
    )
    plot(curves, list(plan.tasks), list(plan.variants), PLOT)
    print(f"\nplot: {PLOT}")
    return {"context": facts, "plan": vars(plan), "final_returns": returns}


if __name__ == "__main__":
    measure(tyro.cli(Plan, description=__doc__), context("python -m benchmarks.d4pg_ablation"))
