"""Whether the hand's tasks can be solved: a planner that simulates ahead picks a cylinder up, and turns one.

Five seeds for each task, 250 steps each. The plans are saved; tests replay some of them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.sims.control.hand.env import HandEnv
from paceline.sims.control.hand.tasks import PickUpAndOrient, RotateInHand

from .hand_goals import GOALS
from .hand_planning import SamplingPlanner, action_towards
from .report import Result, context, make_result, print_context, print_table

EXTRA = "mujoco"
"""What `paceline bench` checks before it begins."""
SEEDS, STEPS, LAST = range(5), 250, 100
PLANS = Path("hand_plans.npz")


class Planned(NamedTuple):
    """An episode, or the first steps of one."""

    targets: np.ndarray
    """[steps, actuators] uint8."""
    rewards: np.ndarray
    """[steps]."""


def run(quick: bool) -> Result:
    facts = context()
    print_context(facts)
    seeds, steps = (SEEDS[:1], 20) if quick else (SEEDS, STEPS)
    plans, rows = {}, []
    for task in GOALS:
        for seed in seeds:
            started = time.perf_counter()
            plans[f"{task}/{seed}"] = found = plan_episode(task, seed, steps)
            last, whole = found.rewards[-LAST:].mean(), found.rewards.mean()
            seconds = time.perf_counter() - started
            rows.append([f"`hand:{task}`", f"{seed}", f"{last:.2f}", f"{whole:.2f}", f"{seconds:.0f}"])
            print(f"{task}, seed {seed}: {last:.2f}", flush=True)
    table = print_table(
        f"Mean reward of a planner, {steps} steps",
        ["task", "seed", f"last {LAST} steps", "all steps", "seconds"],
        rows,
        name="rewards",
    )
    if not quick:
        targets: dict[str, Any] = {name: found.targets for name, found in plans.items()}
        np.savez_compressed(PLANS, **targets)
        print(f"\nplans: {PLANS}")
    rewards = {name: found.rewards.round(4).tolist() for name, found in plans.items()}
    return make_result("hand_planner", facts, [table], measurements=rewards)


def plan_episode(task: str, seed: int, steps: int) -> Planned:
    """Plan and act in the episode of a seed. It ends early if the cylinder falls."""
    env = HandEnv(task)
    env.reset(seed=seed)
    assert isinstance(env.task, PickUpAndOrient | RotateInHand)
    hand = env.task.hand
    planner = SamplingPlanner(env, hand, GOALS[task], seed)
    targets, rewards = [], []
    for _ in range(steps):
        targets.append(planner.next_target())
        _, reward, terminated, _, _ = env.step(action_towards(hand, env.data.ctrl, targets[-1]))
        rewards.append(reward)
        if terminated:
            break
    return Planned(np.stack(targets), np.array(rewards))
