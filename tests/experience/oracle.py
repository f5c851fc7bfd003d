"""A slow, obviously right account of one rollout: episode by episode, with sums written out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Step:
    """One row of one slot: what acting knew, and what came of it."""

    value: float
    reward: float
    end: str
    """"" (goes on), "terminated", "truncated" or "lost"."""
    final_value: float
    """V(final observation), if truncated."""
    active: bool = True


def lambda_advantages(steps: list[Step], last_value: float, discount: float, trace_decay: float) -> list[float]:
    """GAE of one slot by its definition: the discounted sum of temporal-difference errors up to the next end."""
    count = len(steps)

    def usable(t: int) -> bool:
        return t < count and steps[t].active and steps[t].end != "lost"

    def error(t: int) -> float:
        step = steps[t]
        if step.end == "terminated":
            following = 0.0
        elif step.end == "truncated":
            following = step.final_value
        else:
            following = steps[t + 1].value if t + 1 < count else last_value
        return step.reward + discount * following - step.value

    advantages = []
    for t in range(count):
        if not usable(t):
            advantages.append(0.0)
            continue
        total, weight, at = 0.0, 1.0, t
        while True:
            total += weight * error(at)
            if steps[at].end or not usable(at + 1):
                break
            weight *= discount * trace_decay
            at += 1
        advantages.append(total)
    return advantages


def random_slot(rng: np.random.Generator, turns: int, *, faults: bool) -> list[Step]:
    ends = ["", "terminated", "truncated"] + (["lost"] if faults else [])
    weights = [0.7, 0.12, 0.12] + ([0.06] if faults else [])
    weights = np.array(weights) / sum(weights)
    steps = []
    for _ in range(turns):
        active = not faults or rng.random() > 0.1
        end = str(rng.choice(ends, p=weights)) if active else ""
        reward = 0.0 if end == "lost" or not active else float(rng.normal())
        steps.append(Step(float(rng.normal()), reward, end, float(rng.normal()), active))
    return steps
