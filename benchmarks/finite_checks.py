"""The cost of checking every observation for numbers that are not finite.

Figures are the processor time per step with the check and without it, measured alternately, as medians over many
rounds. The first table is a serial pool alone, with random actions. The second is training: `ddppo` with one epoch
per rollout. The no-op simulator only returns an array of 84x84x4 floats, so its step is the pool's own cost.

Two pools without checks are compared in the same way, to see how much of a ratio is the pools' own. Training varies
more from run to run than the checks cost. Its share is therefore the cost that the first table shows, in relation to a
step of training without checks.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from paceline.config import Config
from paceline.learner.config import PPOConfig
from paceline.pool import Pool, PoolConfig, make_pool
from paceline.pool.random_actions import RandomActions
from paceline.pool.spaces import Leaf
from paceline.run import Run
from paceline.session import train

from .report import Result, Table, context, make_result, print_context, print_table

EXTRA = "mujoco"
"""What `paceline bench` checks before it begins."""
ENVS = {
    "CartPole": "gym:CartPole-v1",
    "HalfCheetah": "gym:HalfCheetah-v5",
    "no-op 84x84x4 float32": "synthetic:constant?mean=0&obs=84x84x4&dtype=float32",
}
STEPS = {"CartPole": 32_768, "HalfCheetah": 16_384, "no-op 84x84x4 float32": 2048}
"""Of a training run in each environment. Images have a Nature CNN."""


def run(quick: bool) -> Result:
    facts = context()
    print_context(facts)
    found = {name: compare(env, rounds=5 if quick else 60) for name, env in ENVS.items()}
    tables = [show("pool", "Processor time per step, serial pool of 16 environments", found, control=True)]
    trained = {name: compare_training(ENVS[name], steps, rounds=1 if quick else 7) for name, steps in STEPS.items()}
    for name, row in trained.items():
        row["share"] = (found[name]["ratio"] - 1) * found[name]["without"] / row["without"]
    tables.append(show("training", "Processor time per step in training, `ddppo` with 16 environments", trained))
    return make_result("finite_checks", facts, tables, measurements={"steps": found, "trained": trained})


def show(name: str, title: str, found: dict[str, dict[str, float]], control: bool = False) -> Table:
    columns = ["environment", "µs without checks", "µs with checks", "ratio"]
    columns.append("two pools without checks" if control else "share of the pool's checks")
    rows = [
        [
            env,
            f"{row['without']:.2f}",
            f"{row['with']:.2f}",
            f"{row['ratio']:.3f}",
            f"{row['again']:.3f}" if control else f"{row['share']:.2%}",
        ]
        for env, row in found.items()
    ]
    return print_table(title, columns, rows, name=name)


def compare(env: str, rounds: int) -> dict[str, float]:
    """Microseconds per step with and without checks, and the median ratio of consecutive measurements. `again` is that
    ratio for two pools without checks: how much two equal pools differ."""
    config = PoolConfig(kind="serial", num_envs=16)
    with ExitStack() as stack:
        with mock.patch.object(Leaf, "is_floating", False):
            plain, other = (stack.enter_context(make_pool(env, config)) for _ in range(2))
        pools = (plain, stack.enter_context(make_pool(env, config)), other)
        for pool in pools:
            measure(pool)
        # Measured forwards and backwards, so that a machine that becomes slower or faster favours none.
        found = [[measure(pool) for pool in (*pools, *reversed(pools))] for _ in range(rounds)]
    sums = [[one[place] + one[-1 - place] for place in range(3)] for one in found]
    without, checks, _ = (statistics.median(times) / 2 for times in zip(*sums, strict=True))
    ratios = {
        name: statistics.median(one[place] / one[0] for one in sums) for place, name in ((1, "ratio"), (2, "again"))
    }
    return {"without": without, "with": checks, **ratios}


def compare_training(env: str, steps: int, rounds: int) -> dict[str, float]:
    """The same for steps of a training run."""
    pairs = []
    for _ in range(rounds):
        with mock.patch.object(Leaf, "is_floating", False):
            without = train_once(env, steps)
        pairs.append((without, train_once(env, steps)))
    without, checks = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"without": without, "with": checks, "ratio": statistics.median(b / a for a, b in pairs)}


def train_once(env: str, steps: int) -> float:
    """Microseconds of processor time per trained step. The first rollout does not count."""
    config = Config(
        env=env,
        steps=steps,
        rollout_steps=32,
        device="cpu",
        threads=1,
        pool=PoolConfig(kind="serial", num_envs=16),
        ppo=PPOConfig(epochs=1, minibatches=4),
    )
    marks: list[tuple[float, int]] = []
    plain = Run.report

    def report(run: Run, *arguments: Any) -> None:
        plain(run, *arguments)
        marks.append((time.process_time(), run.step))

    with mock.patch.object(Run, "report", report), tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder))
    (begin, first), (end, last) = marks[0], marks[-1]
    return (end - begin) / (last - first) * 1e6


def measure(pool: Pool, seconds: float = 0.1) -> float:
    """Microseconds of processor time per step. All slots are in flight before and after."""
    actions, count, begin = RandomActions(pool.spec), 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        batch = pool.recv(min_slots=None)
        pool.send(actions.next(batch.slots), batch.slots)
        count += len(batch)
    return spent / count * 1e6


if __name__ == "__main__":
    run(quick=False)
