"""Plays with a recurrent policy by hand: the program keeps the policy's memory, for one episode and for a batch.

python examples/recurrent_policy.py [STEPS]
"""

import sys

import numpy as np

import paceline as pl
from paceline.envs.memory import Memory


def play_one(policy):
    """One episode. The state is None at its start, and goes from each call to the next."""
    env, total, done, state = Memory(length=12), 0.0, False, None
    observation, _ = env.reset(seed=1)
    while not done:
        action, state = policy.predict(observation, state)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, done = total + reward, terminated or truncated
    return total


def play_batch(policy, count, steps):
    """Several environments at a time. `episode_start` forgets the memory of those that begin an episode."""
    envs = [Memory(length=12) for _ in range(count)]
    observations = np.stack([env.reset(seed=seed)[0] for seed, env in enumerate(envs)])
    state, episode_start, total = None, np.ones(count, bool), 0.0
    for _ in range(steps):
        actions, state = policy.predict(observations, state, episode_start=episode_start)
        for number, env in enumerate(envs):
            observation, reward, terminated, truncated, _ = env.step(actions[number])
            episode_start[number] = terminated or truncated
            observations[number] = env.reset()[0] if episode_start[number] else observation
            total += reward
    return total


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = pl.train("memory", steps=steps)
    policy = pl.load(run.folder)
    print(f"return of one episode: {play_one(policy):.1f}")
    print(f"sum of rewards of eight environments: {play_batch(policy, 8, 48):.1f}")
