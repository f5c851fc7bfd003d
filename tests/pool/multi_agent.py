"""A small PettingZoo parallel environment in which agents die one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

LIVES = {"anna": 2, "bert": 4, "cleo": 3}
"""Steps that each agent lives; cleo is cut (truncated), the others die (terminated)."""


class Mortal:
    """Observations are [env, agent number, episode, step]; the reward is 10 * agent number + step."""

    def __init__(self, env: int) -> None:
        self.env, self.episode, self.steps = env, -1, 0
        self.possible_agents = list(LIVES)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(5)

    @property
    def unwrapped(self) -> Mortal:
        return self

    def reset(self, seed: int | None = None, options: Any = None):
        self.episode += 1
        self.steps = 0
        self.agents = list(self.possible_agents)
        return {agent: self._observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]):
        assert set(actions) == set(self.agents), "exactly the living act"
        self.steps += 1
        ends = {agent: LIVES[agent] == self.steps for agent in self.agents}
        observations = {agent: self._observe(agent) for agent in self.agents}
        rewards = {agent: 10.0 * self.possible_agents.index(agent) + self.steps for agent in self.agents}
        terminations = {agent: ends[agent] and agent != "cleo" for agent in self.agents}
        truncations = {agent: ends[agent] and agent == "cleo" for agent in self.agents}
        infos = {agent: {"lived": self.steps} for agent in self.agents}
        self.agents = [agent for agent in self.agents if not ends[agent]]
        return observations, rewards, terminations, truncations, infos

    def _observe(self, agent: str) -> np.ndarray:
        return np.array([self.env, self.possible_agents.index(agent), self.episode, self.steps], np.float32)

    def close(self) -> None:
        pass


def mortals(env_index: int) -> Mortal:
    return Mortal(env_index)
