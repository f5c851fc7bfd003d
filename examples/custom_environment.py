"""Steps an environment of your own in worker processes, without waiting for the slowest.

python examples/custom_environment.py
"""

import gymnasium as gym
import numpy as np

from paceline.pool import PoolConfig, make_pool


class Walk(gym.Env):
    """Walk right to the end of a corridor."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 20) -> None:
        self.length, self.place = length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self._observe(), {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        done = self.place == self.length
        return self._observe(), float(done), done, False, {}

    def _observe(self):
        return np.array([self.place / self.length], np.float32)


# This needs no `if __name__ == "__main__"`: worker processes do not run this file.
with make_pool(Walk, PoolConfig(kind="process", num_envs=8, workers=2)) as pool:
    rng = np.random.default_rng(0)
    steps = 0
    while steps < 20_000:
        batch = pool.recv(min_slots=4)  # returns as soon as four environments are ready
        actions = rng.choice(2, size=len(batch), p=[0.3, 0.7])
        pool.send(actions, batch.slots)
        steps += len(batch)
    episodes = pool.take_episodes()
    print(f"{steps} steps, {len(episodes)} episodes, {np.mean([e.length for e in episodes]):.1f} steps on average")
