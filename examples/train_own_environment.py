"""Trains an environment of your own from Python, stops when it is solved, and plays an episode.

python examples/train_own_environment.py [STEPS]
"""

import sys

import gymnasium as gym
import numpy as np

import paceline as pl


class Walk(gym.Env):
    """Walk right to the end of a corridor."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 10) -> None:
        self.length, self.place, self.steps = length, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        self.steps += 1
        done, truncated = self.place == self.length, self.steps == 100
        return self._observe(), float(done) - 0.01, done, truncated, {}

    def _observe(self):
        return np.array([self.place / self.length], np.float32)


class StopWhenSolved(pl.Callback):
    """Stops the run as soon as the mean return shows that nearly every episode takes the shortest way."""

    def on_update(self, session):
        mean = session.metrics["episode_return"]
        return mean is not None and mean > 0.85


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = pl.train(env=Walk, system="ver", steps=steps, callbacks=[StopWhenSolved()])
    print(f"{run.step} steps in {run.seconds:.0f} s; return {pl.evaluate(run.policy, episodes=20).episode_return}")
    env, done, state, count = Walk(), False, None, 0
    observation, _ = env.reset()
    while not done:
        action, state = run.policy.predict(observation, state)
        observation, _, terminated, truncated, _ = env.step(action)
        done, count = terminated or truncated, count + 1
    print(f"an episode of {count} steps; everything is in {run.folder}")
