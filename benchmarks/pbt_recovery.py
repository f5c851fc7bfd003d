"""Population-based training against a hyper-parameter that is set badly on purpose.

| task | bad value | why it is bad |
|---|---|---|
| CartPole | learning rate 100 times too high | the policy jumps to an extreme and stays there |
| chain | entropy coefficient 0 | the policy settles for the small reward before it has found the large one |

All runs have four policies and the same number of steps, and are judged by their best policy. So random search has the
compute of population-based training. `python -m benchmarks.pbt_recovery --help` lists the options.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from .learning import Job, final, interval, plot, train_all
from .report import Result, command_line, context, make_result, print_context, print_table

PLOT = Path("pbt_recovery.png")
POLICIES = 4
SPREAD = 100


class Chain(gymnasium.Env):
    """A chain of `length` fields. Right goes one field on, and pays 1 at the end of the chain. Left ends the episode,
    and pays 0.2 on the first field only.

    Random play gets more on average by left than by right, so a policy that does not explore learns to go left.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 9) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (length + 1,), np.float32)
        self._length, self._field = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._field = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if action == 0:
            return self._observe(), 0.2 * (self._field == 0), True, False, {}
        self._field += 1
        is_end = self._field == self._length
        return self._observe(), float(is_end), is_end, False, {}

    def _observe(self) -> np.ndarray:
        return np.eye(self._length + 1, dtype=np.float32)[self._field]


class Case(NamedTuple):
    """A task with one hyper-parameter."""

    arguments: list[str]
    path: str
    good: float
    bad: float


SMALL = [
    *("--optimizer.schedule", "constant"),  # a falling learning rate would become a good one by itself
    *("--pool.num-envs", "32", "--rollout-steps", "64"),
    *("--ppo.epochs", "4", "--ppo.minibatches", "4"),
]
CARTPOLE = ["cartpole", "--env", "tensor:cartpole", *SMALL]
CHAIN = [
    *("cartpole", "--env", f"{__package__}.pbt_recovery:Chain", "--pool.kind", "serial"),
    *("--ppo.no-normalize-advantage", *SMALL),
]
CASES = {
    "CartPole, learning rate": Case(CARTPOLE, "optimizer.learning_rate", 1.5e-3, 1.5e-1),
    "chain, entropy coefficient": Case(CHAIN, "ppo.entropy_coef", 0.1, 0.0),
}
PAPER, LARGE, SPREAD_OUT = "PBT, the paper's mutations", "PBT, large mutations", "PBT, spread"
GOOD, BAD, SEARCH = "fixed, good value", "fixed, bad value", "random search"
LATE = "PBT, spread, first round after half"
VARIANTS = (GOOD, BAD, PAPER, LARGE, SPREAD_OUT, SEARCH)
"""Those of a run without options. `LATE` has to be asked for."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    cases: tuple[str, ...] = tuple(CASES)
    variants: tuple[str, ...] = VARIANTS
    steps: int = 100_000
    """Steps of each run, of all its policies together."""
    every: int = 10_000
    """Steps between two rounds."""
    seeds: tuple[int, ...] = (1, 2, 3)
    at_once: int = 1
    """Runs at the same time. Times are not compared."""
    keep: str | None = None
    """Folder that keeps the reports of completed runs."""


def options(case: Case, variant: str, plan: Plan) -> list[str]:
    """The arguments of `paceline train` for a variant."""
    rounds = ["--pbt.every", str(plan.every)]
    given = {
        GOOD: [],
        BAD: [],
        PAPER: rounds,
        LARGE: [*rounds, "--pbt.factor", "3", "--pbt.mutation-rate", "0.5"],
        SPREAD_OUT: [*rounds, "--pbt.spread", str(SPREAD)],
        LATE: [*rounds, "--pbt.spread", str(SPREAD), "--pbt.start", str(plan.steps // 2)],
        # The same first values as with PBT, and no round before the end.
        SEARCH: ["--pbt.every", str(plan.steps), "--pbt.spread", str(SPREAD)],
    }[variant]
    tuned = ["--pbt.tuned", case.path] if given else []
    value = case.good if variant == GOOD else case.bad
    return [
        *case.arguments,
        *(f"--{case.path.replace('_', '-')}", str(value)),
        *("--population.policies", str(POLICIES), "--steps", str(plan.steps)),
        *(given + tuned),
    ]


def run(quick: bool) -> Result:
    plan = Plan(variants=(BAD, SPREAD_OUT), steps=30_000, seeds=(1,)) if quick else Plan()
    return measure(plan, context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    jobs: dict[Job, list[str]] = {
        (name, variant, seed): [*options(CASES[name], variant, plan), "--seed", str(seed)]
        for name in plan.cases
        for seed in plan.seeds
        for variant in plan.variants
    }
    keep = None if plan.keep is None else Path(plan.keep)
    runs = train_all(jobs, key="population/best", at_once=plan.at_once, keep=keep)
    curves = {
        (name, variant): [runs[name, variant, seed] for seed in plan.seeds]
        for name in plan.cases
        for variant in plan.variants
    }
    returns = {f"{name}, {variant}": [final(curve) for curve in found] for (name, variant), found in curves.items()}
    table = print_table(
        f"Return of the best of {POLICIES} policies after {plan.steps:,} steps in all, {len(plan.seeds)} seeds",
        ["variant", *plan.cases],
        [[variant, *(interval(returns[f"{name}, {variant}"]) for name in plan.cases)] for variant in plan.variants],
        name="returns",
    )
    plot(curves, list(plan.cases), list(plan.variants), PLOT)
    print(f"\nplot: {PLOT}")
    return make_result("pbt_recovery", facts, [table], measurements=returns)


if __name__ == "__main__":
    command_line("pbt_recovery", Plan, measure, __doc__)
