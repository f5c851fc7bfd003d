"""One sentence on what a run waits for, and what to try."""

from __future__ import annotations

from collections.abc import Mapping

ADVICE = {
    "simulation": "more cores, more --pool.workers, more --pool.num-envs",
    "inference": "a smaller policy, a GPU (--device cuda), or more --pool.num-envs to share each forward pass",
    "transfer": "fewer or smaller observations; --pool.pin-memory on a GPU",
    "learning": "fewer --ppo.epochs, larger mini-batches, a GPU (--device cuda)",
    "communication": "a faster network, larger rollouts, or stronger --preemption.threshold",
    "other": "the program itself: profile it with py-spy",
}


def bottleneck(shares: Mapping[str, float]) -> str:
    """What takes the most time."""
    activity = max(shares, key=lambda name: shares[name])
    return f"{activity} takes {shares[activity]:.0%} of the time; try: {ADVICE[activity]}"
