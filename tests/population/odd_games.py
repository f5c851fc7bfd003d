"""Games by PettingZoo's rules that are unusual: some agents do not play, or are out before their first turn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces


class Game:
    """What both of PettingZoo's interfaces share."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    possible_agents: tuple[str, ...]

    def __init__(self, env_index: int = 0) -> None:
        self.agents: list[str] = []
        self.random = np.random.default_rng(0)
        self.game = -1

    @property
    def unwrapped(self) -> Game:
        return self

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(-10, 10, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(3)

    def close(self) -> None:
        pass


class Parallel(Game):
    """A parallel game of `possible_agents`. `playing` play, for `length` steps, with a reward of 1 for the action 1."""

    possible_agents = ("x", "y", "z")
    playing = possible_agents
    length = 5

    def seen_by(self) -> tuple[str, ...]:
        """The agents that get observations."""
        return tuple(self.agents)

    def observations(self) -> dict[str, np.ndarray]:
        return {agent: np.zeros(2, np.float32) for agent in self.seen_by()}

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.steps, self.agents, self.game = 0, list(self.playing), self.game + 1
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        playing, ends = list(self.agents), self.steps >= self.length
        observations = self.observations()
        rewards, infos = self.rewards(actions), self.infos(actions, ends=ends)
        if ends:
            self.agents = []
        no = dict.fromkeys(playing, False)
        return observations, rewards, dict.fromkeys(playing, ends), no, infos

    def rewards(self, actions):
        return {agent: float(action == 1) for agent, action in actions.items()}

    def infos(self, actions, *, ends):
        return {agent: {} for agent in actions}


class Guests(Parallel):
    """z never plays."""

    playing = ("x", "y")


class Regulars(Parallel):
    """z plays every fourth game."""

    def reset(self, seed=None, options=None):
        self.playing = self.possible_agents if self.game % 4 == 0 else ("x", "y")
        return super().reset(seed, options)


class Spectators(Guests):
    """z never plays, but is shown everything."""

    def seen_by(self) -> tuple[str, ...]:
        return self.possible_agents


class Dice(Parallel):
    """One roll each, and the highest gets 1. Nobody can be better than anybody."""

    possible_agents = ("p0", "p1", "p2", "p3")
    playing = possible_agents
    length = 1

    def rewards(self, actions):
        return {agent: float(roll == 3) for agent, roll in zip(actions, self.random.permutation(4), strict=True)}


class Undecided(Parallel):
    """Matches of two without a result: `win` is NaN."""

    possible_agents = ("x", "y")
    playing = possible_agents

    def infos(self, actions, *, ends):
        return {agent: {"win": math.nan} if ends else {} for agent in actions}


class Turns(Game):
    """An AEC game. `play` says what a move does."""

    possible_agents = ("a", "b", "c")

    def observe(self, agent: str) -> np.ndarray:
        return np.zeros(2, np.float32)

    def last(self):
        agent = self.agent_selection
        info = {"game": float(self.game)}
        return self.observe(agent), self.sums[agent], self.terminations[agent], self.truncations[agent], info

    def reset(self, seed=None, options=None) -> None:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.game += 1
        self.turn, self.agents = 0, list(self.possible_agents)
        self.sums = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.agent_selection = self.last_mover = self.agents[0]
        self.deal()

    def deal(self) -> None:
        """What happens before the first turn."""

    def step(self, action) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            assert action is None
            self.agents.remove(agent)
        else:
            self.turn += 1
            self.sums[agent], self.last_mover = 0.0, agent
            self.play(agent)
        self._choose()

    def play(self, agent: str) -> None:
        raise NotImplementedError

    def _choose(self) -> None:
        dead = [agent for agent in self.agents if self.terminations[agent]]
        after = self.possible_agents.index(self.last_mover) + 1
        order = [*self.possible_agents[after:], *self.possible_agents[:after]]
        living = [agent for agent in order if agent in self.agents]
        if dead or living:
            self.agent_selection = (dead or living)[0]


class Roulette(Turns):
    """Each move may end the game for the agent that makes it. The last one left wins."""

    def play(self, agent: str) -> None:
        if self.random.random() < 0.4:
            self.terminations[agent] = True
            self.sums[agent] -= 1
        living = [one for one in self.agents if not self.terminations[one]]
        if len(living) == 1:
            self.terminations[living[0]] = True
            self.sums[living[0]] += 2


class Cards(Turns):
    """The deal may end the game for the first player, before its turn."""

    possible_agents = ("a", "b")

    def deal(self) -> None:
        if self.random.random() < 0.3:
            self.terminations["a"], self.sums["a"] = True, 1.0

    def play(self, agent: str) -> None:
        if self.turn >= 4 or self.random.random() < 0.3:
            self.terminations = dict.fromkeys(self.terminations, True)
            self.sums[agent] += 1
