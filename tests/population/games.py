"""Small games with PettingZoo's parallel API, and exact values of policies in them.

`MatrixGame` and its instances, `Coordination` and `Kuhn` are environments: `tests.population.games:Kuhn` is an id.
`TurnBasedKuhn` has PettingZoo's AEC API.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
from gymnasium import spaces

ByAgent = dict[str, Any]


class TwoPlayers:
    """What the games share: two agents with equal observation spaces, who start and end together."""

    possible_agents: Sequence[str]

    def __init__(self, num_features: int, num_actions: Sequence[int]) -> None:
        self._observation_space = spaces.Box(0.0, 1.0, (num_features,), np.float32)
        self._action_spaces = {
            agent: spaces.Discrete(count) for agent, count in zip(self.possible_agents, num_actions, strict=True)
        }
        self._rng = np.random.default_rng()
        self.agents: list[str] = []

    @property
    def unwrapped(self) -> TwoPlayers:
        return self

    def observation_space(self, agent: str) -> spaces.Space:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._begin()
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        assert set(actions) == set(self.agents), "both players act"
        (first, second), ended = self._play(*(int(actions[agent]) for agent in self.possible_agents))
        if ended:
            self.agents = []
        return (
            self._observe(),
            self._by_agent(first, second),
            self._by_agent(ended, ended),
            self._by_agent(False, False),
            {agent: {} for agent in self.possible_agents},
        )

    def close(self) -> None:
        pass

    def _begin(self) -> None:
        raise NotImplementedError

    def _play(self, first: int, second: int) -> tuple[tuple[float, float], bool]:
        """The rewards of the actions `first` and `second`, and whether the game is over."""
        raise NotImplementedError

    def _observe(self) -> ByAgent:
        raise NotImplementedError

    def _by_agent(self, first: Any, second: Any) -> ByAgent:
        return dict(zip(self.possible_agents, (first, second), strict=True))


class MatrixGame(TwoPlayers):
    """A zero-sum matrix game, played `rounds` times. For actions i and j the row player gets payoff[i][j], and the
    column player loses it.

    Observations begin with the role, one-hot. With `memory` the last actions of both players follow, one-hot, the
    player's own first. They are zero in the first round.
    """

    possible_agents = ("row", "column")

    def __init__(self, payoff: Any, rounds: int = 1, memory: bool = False) -> None:
        self._payoff, self._rounds, self._memory = np.array(payoff, np.float64), rounds, memory
        super().__init__(2 + memory * sum(self._payoff.shape), self._payoff.shape)

    def _begin(self) -> None:
        self._round, self._last = 0, None

    def _play(self, first: int, second: int) -> tuple[tuple[float, float], bool]:
        self._round, self._last = self._round + 1, (first, second)
        reward = float(self._payoff[first, second])
        return (reward, -reward), self._round == self._rounds

    def _observe(self) -> ByAgent:
        if not self._memory:
            return self._by_agent(*np.eye(2, dtype=np.float32))
        last = [np.zeros(count, np.float32) for count in self._payoff.shape]
        if self._last is not None:
            for vector, action in zip(last, self._last, strict=True):
                vector[action] = 1
        roles = np.eye(2, dtype=np.float32)
        return self._by_agent(np.concatenate([roles[0], *last]), np.concatenate([roles[1], *last[::-1]]))


ROCK_PAPER_SCISSORS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
BIASED = np.array([[0, -1, 2], [1, 0, -1], [-2, 1, 0]])
"""Rock, paper, scissors where rock wins 2. The value is 0."""
BIASED_EQUILIBRIUM = np.array([0.25, 0.5, 0.25])
"""The only equilibrium of `BIASED`, for both players."""
MATCHING_PENNIES = np.array([[1, -1], [-1, 1]])


def rock_paper_scissors(rounds: int = 1, memory: bool = False) -> MatrixGame:
    return MatrixGame(ROCK_PAPER_SCISSORS, rounds, memory)


def biased_rock_paper_scissors(rounds: int = 1, memory: bool = False) -> MatrixGame:
    return MatrixGame(BIASED, rounds, memory)


def matching_pennies(rounds: int = 1, memory: bool = False) -> MatrixGame:
    return MatrixGame(MATCHING_PENNIES, rounds, memory)


def exploitability(payoff: Any, row: Any, column: Any) -> float:
    """What the best responses to mixed strategies `row` and `column` gain, summed over both players (NashConv)."""
    payoff, row, column = (np.asarray(values, np.float64) for values in (payoff, row, column))
    return float((payoff @ column).max() - (row @ payoff).min())


def repeated_best_response(payoff: Any, rounds: int, column: Any) -> float:
    """The row player's highest return over `rounds` against a column player with memory.

    `column` [1 + I * J, J]: its probabilities in the first round, and in row 1 + i * J + j those after actions i and j.
    For the column player's best response pass -payoff.T, and the row player's policy with its own actions first.
    """
    payoff, column = np.asarray(payoff, np.float64), np.asarray(column, np.float64)
    future = np.zeros(1 + payoff.size)  # by state: the best return of the remaining rounds
    for _ in range(rounds):
        outcomes = payoff + future[1:].reshape(payoff.shape)
        future = (column @ outcomes.T).max(1)
    return float(future[0])


class Coordination(TwoPlayers):
    """The scout sees one of `num_items` items. First both act, and the mate sees the scout's action. Then both choose
    an item, and both get 1 if both choose the one that the scout saw.

    Random play gets 1 / num_items ** 2. Without a signal the best is 1 / num_items, with one it is 1.
    Observations: the role, one-hot; the step, one-hot; the item (scout) or the scout's action (mate), one-hot.
    """

    possible_agents = ("scout", "mate")

    def __init__(self, num_items: int = 3) -> None:
        super().__init__(4 + num_items, (num_items, num_items))
        self._num_items = num_items

    def _begin(self) -> None:
        self._item, self._signal, self._step = int(self._rng.integers(self._num_items)), -1, 0

    def _play(self, first: int, second: int) -> tuple[tuple[float, float], bool]:
        self._step += 1
        if self._step == 1:
            self._signal = first
            return (0.0, 0.0), False
        reward = float(first == second == self._item)
        return (reward, reward), True

    def _observe(self) -> ByAgent:
        step = np.eye(2, dtype=np.float32)[min(self._step, 1)]
        roles = np.eye(2, dtype=np.float32)
        shown = np.zeros((2, self._num_items), np.float32)
        shown[0, self._item] = 1
        if self._step:
            shown[1, self._signal] = 1
        return self._by_agent(*(np.concatenate([roles[i], step, shown[i]]) for i in range(2)))


HISTORIES = ("", "p", "b", "pb")
"""Decisions of Kuhn poker by what was played before: p is pass, b is bet. The first player decides at "" and "pb"."""
NUM_CARDS = 3
PASS, BET = range(2)
KUHN_VALUE = -1 / 18
"""What the first player wins on average if both play well."""


class Kuhn(TwoPlayers):
    """Kuhn poker: both players put in 1 and get one of three cards. They pass or bet 1 in turn. A pass after a bet
    folds.

    Both players act at every step, but only the action of the player whose turn it is counts. The other one's is a
    no-op. PettingZoo's parallel API has no other way for an agent to wait: an agent that leaves `agents` has ended its
    episode. The waiting player's steps have no reward of their own, so they only add decisions without effect.

    Observations: the role, one-hot; whether it is the player's turn; its card, one-hot; the history, one-hot over
    `HISTORIES`, zero at the end.
    """

    possible_agents = ("first", "second")

    def __init__(self) -> None:
        super().__init__(3 + NUM_CARDS + len(HISTORIES), (2, 2))

    def _begin(self) -> None:
        self._cards = [int(card) for card in self._rng.permutation(NUM_CARDS)[:2]]
        self._history = ""

    def _play(self, first: int, second: int) -> tuple[tuple[float, float], bool]:
        self._history += "pb"[(first, second)[len(self._history) % 2]]
        if self._history in HISTORIES:
            return (0.0, 0.0), False
        reward = kuhn_payoff(self._cards, self._history)
        return (reward, -reward), True

    def _observe(self) -> ByAgent:
        return self._by_agent(*(kuhn_observation(player, self._cards[player], self._history) for player in range(2)))


class TurnBasedKuhn:
    """Kuhn poker in turns: a player observes and acts only when it is its turn. Observations are those of `Kuhn`."""

    possible_agents = Kuhn.possible_agents

    def __init__(self) -> None:
        self._observation_space = spaces.Box(0.0, 1.0, (3 + NUM_CARDS + len(HISTORIES),), np.float32)
        self._action_space = spaces.Discrete(2)
        self._rng = np.random.default_rng()
        self.agents: list[str] = []

    @property
    def unwrapped(self) -> TurnBasedKuhn:
        return self

    def observation_space(self, agent: str) -> spaces.Space:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space:
        return self._action_space

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.agent_selection = self.agents[0]
        self._cards = [int(card) for card in self._rng.permutation(NUM_CARDS)[:2]]
        self._history, self._rewards, self._is_over = "", (0.0, 0.0), False

    def observe(self, agent: str) -> np.ndarray:
        player = self.possible_agents.index(agent)
        return kuhn_observation(player, self._cards[player], self._history)

    def last(self) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        reward = self._rewards[self.possible_agents.index(agent)]
        return self.observe(agent), reward, self._is_over, False, {}

    def step(self, action: int | None) -> None:
        assert (action is None) == self._is_over, "nobody acts after the end"
        if self._is_over:
            self.agents.remove(self.agent_selection)
        else:
            self._history += "pb"[int(action)]
            self._is_over = self._history not in HISTORIES
            if self._is_over:
                won = kuhn_payoff(self._cards, self._history)
                self._rewards = (won, -won)
        if self.agents:
            self.agent_selection = self.agents[0 if self._is_over else len(self._history) % 2]

    def close(self) -> None:
        pass


def kuhn_payoff(cards: Sequence[int], history: str) -> float:
    """What the first player wins at the end of `history`."""
    if history in ("bp", "pbp"):  # a fold
        return 1.0 if history == "bp" else -1.0
    return (1.0 if cards[0] > cards[1] else -1.0) * (2.0 if history.endswith("bb") else 1.0)


def kuhn_observation(player: int, card: int, history: str) -> np.ndarray:
    is_turn = history in HISTORIES and len(history) % 2 == player
    past = [float(history == known) for known in HISTORIES]
    return np.array([player == 0, player == 1, is_turn, *np.eye(NUM_CARDS)[card], *past], np.float32)


def kuhn_decisions() -> np.ndarray:
    """[4, 3, F]: the observation of the player whose turn it is, by history and card."""
    return np.array(
        [[kuhn_observation(len(history) % 2, card, history) for card in range(NUM_CARDS)] for history in HISTORIES]
    )


def kuhn_value(bets: np.ndarray) -> float:
    """The first player's expected win if both follow `bets` [4, 3]: the probability of a bet, by history and card."""

    def value(cards: tuple[int, ...], history: str) -> float:
        if history not in HISTORIES:
            return kuhn_payoff(cards, history)
        bet = bets[HISTORIES.index(history), cards[len(history) % 2]]
        return bet * value(cards, history + "b") + (1 - bet) * value(cards, history + "p")

    return float(np.mean([value(cards, "") for cards in permutations(range(NUM_CARDS), 2)]))


def kuhn_exploitability(bets: np.ndarray) -> float:
    """What the best responses to `bets` gain, summed over both players (NashConv).

    A best response is the best of all 64 pure strategies.
    """
    best = []
    for player, sign in ((0, 1.0), (1, -1.0)):
        own = [index for index, history in enumerate(HISTORIES) if len(history) % 2 == player]
        values = []
        for strategy in product((0.0, 1.0), repeat=2 * NUM_CARDS):
            response = np.array(bets, np.float64)
            response[own] = np.reshape(strategy, (2, NUM_CARDS))
            values.append(sign * kuhn_value(response))
        best.append(max(values))
    return sum(best)


def kuhn_equilibrium(alpha: float) -> np.ndarray:
    """An equilibrium in the form of `kuhn_value`, for any `alpha` between 0 and 1/3: how often the first player bets
    with the lowest card."""
    return np.array([[alpha, 0, 3 * alpha], [1 / 3, 0, 1], [0, 1 / 3, 1], [0, alpha + 1 / 3, 1]])
