"""A game of agents with different spaces. This module does not import PyTorch, which would take seconds in every worker
process."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

LIVES = {"wolf_0": (0, 3), "sheep_0": (0, 5), "sheep_1": (0, 2), "wolf_1": (0, 4), "sheep_2": (2, 5)}
"""The steps at which agents join and leave."""
TRUNCATED = ("sheep_1", "wolf_1")
"""The others die."""
NAMES = list(LIVES)


class Pasture:
    """Observations name the environment, the agent, the match and the step. A reward is 10 * agent number + steps, plus
    a quarter of the action."""

    def __init__(self, env: int) -> None:
        self.env, self.match, self.steps = env, -1, 0
        self.possible_agents = list(LIVES)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        if agent.startswith("wolf"):
            return spaces.Box(-np.inf, np.inf, (3,), np.float32)
        return spaces.Dict({"where": spaces.Box(-np.inf, np.inf, (5,), np.float32), "dry": spaces.Discrete(2)})

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2) if agent.startswith("wolf") else spaces.Box(-1, 1, (2,), np.float32)

    @property
    def unwrapped(self) -> Pasture:
        return self

    def reset(self, seed: int | None = None, options: Any = None):
        self.match += 1
        self.steps = 0
        self.agents = [agent for agent, (joins, _) in LIVES.items() if joins == 0]
        return {agent: self._observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]):
        assert set(actions) == set(self.agents), "exactly the living act"
        self.steps += 1
        playing, ends = self.agents, {agent: LIVES[agent][1] == self.steps for agent in self.agents}
        rewards = {a: 10.0 * NAMES.index(a) + self.steps + 0.25 * float(np.sum(actions[a])) for a in playing}
        terminations = {agent: ends[agent] and agent not in TRUNCATED for agent in playing}
        truncations = {agent: ends[agent] and agent in TRUNCATED for agent in playing}
        self.agents = [agent for agent, (joins, leaves) in LIVES.items() if joins <= self.steps < leaves]
        observations = {agent: self._observe(agent) for agent in {*playing, *self.agents}}
        return observations, rewards, terminations, truncations, {agent: {} for agent in playing}

    def _observe(self, agent: str) -> Any:
        number = NAMES.index(agent)
        if agent.startswith("wolf"):
            return np.array([10 * self.env + number, self.match, self.steps], np.float32)
        where = np.array([self.env, number, self.match, self.steps, -1], np.float32)
        return {"where": where, "dry": self.steps % 2}

    def close(self) -> None:
        pass


def pasture(env_index: int) -> Pasture:
    return Pasture(env_index)
