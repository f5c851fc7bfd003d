"""Trains with schedules of your own: a learning rate that warms up, and an entropy coefficient that falls.

python examples/own_schedule.py [STEPS]
paceline train cartpole --optimizer.schedule ./examples/own_schedule.py:warm_up
"""

import math
import sys

import paceline as pl


def warm_up(progress):
    """The factor of the learning rate after a share `progress` of the run: up in a tenth, then down like a cosine."""
    return progress / 0.1 if progress < 0.1 else 0.5 * (1 + math.cos(math.pi * (progress - 0.1) / 0.9))


class LessEntropy(pl.Callback):
    """Other hyper-parameters follow a callback. Every rank has its own copy of them."""

    ranks = "all"

    def on_update(self, session):
        left = max(0.0, 1 - session.step / session.config.steps)
        for learner in session.learners:
            learner.hyperparameters.set("ppo.entropy_coef", 0.01 * left)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = pl.train("cartpole", steps=steps, optimizer={"schedule": warm_up}, callbacks=[LessEntropy()])
    print(f"last learning rate {run.metrics['learning_rate'][-1]:.2g}, return {run.metrics['episode_return'][-1]:.1f}")
