"""A PettingZoo AEC game of random turns, deaths and late joiners that keeps the account of every decision itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

AGENTS = ["anna", "bert", "cleo", "dora"]
MAX_TURNS = 14


@dataclass
class Decision:
    """One decision of an agent, and what the game made of it."""

    obs: list[float]
    action: int
    reward: float = 0.0
    end: str = ""
    final_obs: list[float] = field(default_factory=list)
    is_first: bool = False


class Court:
    """Observations are [env, agent number, game, turn]. Whoever is in the game gets a random reward in every turn."""

    def __init__(self, env: int) -> None:
        self.env, self.game = env, -1
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self.account: dict[str, list[Decision]] = {agent: [] for agent in AGENTS}
        self.lives: list[tuple[str, int, float, int]] = []
        """(agent, game, return, decisions) of lives that are over."""

    @property
    def unwrapped(self) -> Court:
        return self

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(5)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.game += 1
        self.turn = 0
        self.agents, self.terminations, self.truncations, self._sums = [], {}, {}, {}
        self._total: dict[str, float] = {}
        self._decided: dict[str, int] = {}
        for agent in self.rng.permutation(AGENTS)[: self.rng.integers(1, 4)].tolist():
            self._join(agent)
        self.agent_selection = str(self.rng.choice(self.agents))

    def observe(self, agent: str) -> np.ndarray:
        return np.array([self.env, AGENTS.index(agent), self.game, self.turn], np.float32)

    def last(self) -> tuple[Any, ...]:
        agent = self.agent_selection
        ends = self.terminations[agent], self.truncations[agent]
        return (self.observe(agent), self._sums[agent], *ends, {"decided": self._decided[agent]})

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None, "the dead do not act"
            self._bury(agent)
        else:
            assert action is not None
            self._act(agent, int(action))
        dead = [a for a in self.agents if self.terminations[a] or self.truncations[a]]
        if dead:
            self.agent_selection = dead[0]
        elif self.agents:
            self.agent_selection = str(self.rng.choice(self.agents))

    def _act(self, agent: str, action: int) -> None:
        is_first = self._decided[agent] == 0
        self.account[agent].append(Decision(self.observe(agent).tolist(), action, is_first=is_first))
        self._decided[agent] += 1
        self._sums[agent] = 0.0
        self.turn += 1
        for other in self.agents:
            self._pay(other, float(self.rng.integers(-9, 10)) + 100.0 * action * (other == agent))
        for other in self.agents:
            if self.turn >= MAX_TURNS:
                self.truncations[other] = True
            elif self.rng.random() < 0.08:
                self.terminations[other] = True
        for other in AGENTS:
            if other not in self.agents and self.rng.random() < 0.1 and self.turn < MAX_TURNS:
                self._join(other)

    def _pay(self, agent: str, reward: float) -> None:
        self._sums[agent] += reward
        self._total[agent] += reward
        if self._decided[agent]:
            self.account[agent][-1].reward += reward

    def _join(self, agent: str) -> None:
        self.agents.append(agent)
        self.terminations[agent] = self.truncations[agent] = False
        self._sums[agent] = self._total[agent] = 0.0
        self._decided[agent] = 0

    def _bury(self, agent: str) -> None:
        if self._decided[agent]:
            last = self.account[agent][-1]
            last.end = "terminated" if self.terminations[agent] else "truncated"
            last.final_obs = self.observe(agent).tolist()
        self.lives.append((agent, self.game, self._total[agent], self._decided[agent]))
        self.agents.remove(agent)

    def close(self) -> None:
        pass
