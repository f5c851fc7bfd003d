"""Evaluates the policy at every checkpoint, keeps the results in a file, and stops when it is good enough.

python examples/callback.py [STEPS]
"""

import json
import sys

import paceline as pl


class EvaluateCheckpoints(pl.Callback):
    """Plays episodes with every checkpoint. Stops the run once their mean return reaches `goal`."""

    def __init__(self, goal, episodes=16):
        self.goal, self.episodes, self.is_reached = goal, episodes, False

    def on_checkpoint(self, session, folder):
        result = pl.evaluate(pl.load(session.folder, folder.name), episodes=self.episodes).episode_return
        line = {"step": session.step, "mean": result.mean, "low": result.low, "high": result.high}
        with open(session.folder / "evaluation.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        self.is_reached = result.mean >= self.goal
        return self.is_reached

    def on_stop(self, session, error):
        why = "the goal is reached" if self.is_reached else "the run is over" if error is None else str(error)
        print(f"step {session.step}: {why}")


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = pl.train("cartpole", steps=steps, checkpoint={"seconds": 5.0}, callbacks=[EvaluateCheckpoints(goal=400)])
    print((run.folder / "evaluation.jsonl").read_text())
