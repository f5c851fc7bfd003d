"""The games of the population tests: payoffs, observations, and exact values against known ones."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from paceline.envs.registry import resolve
from paceline.pool.config import PoolConfig
from paceline.pool.serial import SerialPool
from tests.population import games

UNIFORM = np.full(3, 1 / 3)


def play(game, actions, seed=0):
    """The observations, the rewards and the ends of a game with the joint `actions`."""
    first, second = game.possible_agents
    observations, _ = game.reset(seed=seed)
    seen, rewards, ends = [(observations[first], observations[second])], [], []
    for mine, yours in actions:
        observations, reward, terminated, truncated, _ = game.step({first: mine, second: yours})
        seen.append((observations[first], observations[second]))
        rewards.append((reward[first], reward[second]))
        ends.append(terminated[first])
        assert terminated[first] == terminated[second] == (not game.agents)
        assert not any(truncated.values())
    return seen, rewards, ends


@pytest.mark.parametrize("payoff", [games.ROCK_PAPER_SCISSORS, games.BIASED, games.MATCHING_PENNIES])
def test_a_matrix_game_pays_its_matrix(payoff):
    for i, j in product(*map(range, payoff.shape)):
        _, rewards, ends = play(games.MatrixGame(payoff), [(i, j)])
        assert rewards == [(payoff[i, j], -payoff[i, j])]
        assert ends == [True]


def test_a_matrix_game_with_memory_shows_the_last_actions_from_both_sides():
    game = games.MatrixGame([[1, 2, 3], [4, 5, 6]], rounds=3, memory=True)
    seen, rewards, ends = play(game, [(1, 2), (0, 1), (1, 0)])
    assert [reward[0] for reward in rewards] == [6, 2, 4]
    assert ends == [False, False, True]
    assert seen[0][0].tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert seen[0][1].tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert seen[1][0].tolist() == [1, 0, 0, 1, 0, 0, 1]
    assert seen[1][1].tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert seen[2][0].tolist() == [1, 0, 1, 0, 0, 1, 0]
    assert (game.action_space("row").n, game.action_space("column").n) == (2, 3)
    assert all(game.observation_space("row").contains(one) for pair in seen for one in pair)


def test_a_matrix_game_without_memory_shows_the_role_only():
    seen, _, _ = play(games.rock_paper_scissors(rounds=2), [(0, 1), (2, 2)])
    assert [(row.tolist(), column.tolist()) for row, column in seen] == [([1, 0], [0, 1])] * 3


def test_exploitability_of_matrix_games():
    biased = games.BIASED_EQUILIBRIUM
    assert games.exploitability(games.ROCK_PAPER_SCISSORS, UNIFORM, UNIFORM) == pytest.approx(0)
    assert games.exploitability(games.BIASED, biased, biased) == pytest.approx(0)
    assert games.exploitability(games.BIASED, UNIFORM, UNIFORM) == pytest.approx(2 / 3)
    assert games.exploitability(games.MATCHING_PENNIES, [0.5, 0.5], [0.5, 0.5]) == pytest.approx(0)
    assert games.exploitability(games.MATCHING_PENNIES, [0.75, 0.25], [0.5, 0.5]) == pytest.approx(0.5)
    # Always rock against always scissors: rock is already the best response, and paper would win 1.
    assert games.exploitability(games.ROCK_PAPER_SCISSORS, [1, 0, 0], [0, 0, 1]) == pytest.approx(1 + 1)


def test_the_best_response_to_a_memory():
    def policy(act):
        """One-hot rows: `act` of the last joint action (row, column), None at first."""
        return np.eye(3)[[act(None), *(act(pair) for pair in product(range(3), range(3)))]]

    payoff = games.ROCK_PAPER_SCISSORS
    always = np.tile(games.BIASED_EQUILIBRIUM, (10, 1))
    assert games.repeated_best_response(games.BIASED, 7, always) == pytest.approx(0)
    assert games.repeated_best_response(payoff, 5, np.tile(UNIFORM, (10, 1))) == pytest.approx(0)
    # It repeats the row player's last action, which is beaten in every round.
    assert games.repeated_best_response(payoff, 5, policy(lambda last: last[0] if last else 0)) == pytest.approx(5)
    # Random at first, and after rock; otherwise rock. The row player wins every round that follows another action.
    shy = policy(lambda last: 0)
    shy[[0, 1, 2, 3]] = UNIFORM
    assert games.repeated_best_response(payoff, 4, shy) == pytest.approx(3)


def test_coordination_needs_the_signal():
    for seed, mate in product(range(6), range(3)):
        game = games.Coordination()
        first, _ = game.reset(seed=seed)
        item = int(first["scout"][4:].argmax())
        assert first["scout"].tolist() == [1, 0, 1, 0, *np.eye(3)[item]]
        assert first["mate"].tolist() == [0, 1, 1, 0, 0, 0, 0]
        seen, rewards, ends = play(game, [(item, mate), (item, mate)], seed)
        assert seen[1][1].tolist() == [0, 1, 0, 1, *np.eye(3)[item]]
        assert rewards == [(0, 0), (mate == item, mate == item)]
        assert ends == [False, True]
        assert play(game, [(item, item), ((item + 1) % 3, item)], seed)[1][1] == (0, 0)
    items = {int(games.Coordination(4).reset(seed=seed)[0]["scout"][4:].argmax()) for seed in range(40)}
    assert items == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("moves", "stakes"),
    [("pp", None), ("bp", 1.0), ("bb", None), ("pbp", -1.0), ("pbb", None)],
)
def test_kuhn_poker_pays_by_the_rules(moves, stakes):
    """Folds by what was put in, showdowns by the cards. The action of the player who waits is a no-op."""
    deals = set()
    for seed, noise in product(range(20), range(2)):
        joint = ["pb".index(move) for move in moves]
        actions = [(action, noise) if turn % 2 == 0 else (noise, action) for turn, action in enumerate(joint)]
        seen, rewards, ends = play(games.Kuhn(), actions, seed)
        cards = [int(one[3:6].argmax()) for one in seen[0]]
        deals.add(tuple(cards))
        won = (1 if cards[0] > cards[1] else -1) * (2 if moves.endswith("bb") else 1) if stakes is None else stakes
        assert rewards == [(0, 0)] * (len(moves) - 1) + [(won, -won)]
        assert ends == [False] * (len(moves) - 1) + [True]
        for turn, pair in enumerate(seen[:-1]):
            assert [one[2] for one in pair] == [turn % 2 == 0, turn % 2 == 1]
            mover = games.HISTORIES.index(moves[:turn])
            assert (pair[turn % 2] == games.kuhn_decisions()[mover, cards[turn % 2]]).all()
        assert not seen[-1][0][[2, 6, 7, 8, 9]].any()
    assert deals == set(permutations(range(3), 2))


def test_values_of_kuhn_poker():
    for alpha in (0, 0.2, 1 / 3):
        assert games.kuhn_value(games.kuhn_equilibrium(alpha)) == pytest.approx(games.KUHN_VALUE)
        assert games.kuhn_exploitability(games.kuhn_equilibrium(alpha)) == pytest.approx(0)
    uniform = np.full((4, 3), 0.5)
    assert games.kuhn_value(uniform) == pytest.approx(1 / 8)
    assert games.kuhn_exploitability(uniform) == pytest.approx(11 / 12)
    assert games.kuhn_exploitability(games.kuhn_equilibrium(0.5)) > 0.01


def test_the_value_of_kuhn_poker_is_the_mean_of_played_games():
    rng = np.random.default_rng(1)
    bets = rng.uniform(size=(4, 3))
    game, total, num_games = games.Kuhn(), 0.0, 4000
    game.reset(seed=2)
    for _ in range(num_games):
        observations, _ = game.reset()
        while game.agents:
            actions = {}
            for agent, seen in observations.items():
                bet = bets[seen[6:].argmax(), seen[3:6].argmax()]
                actions[agent] = int(rng.random() < bet)
            observations, rewards, *_ = game.step(actions)
        total += rewards["first"]
    assert total / num_games == pytest.approx(games.kuhn_value(bets), abs=0.1)  # four standard errors


@pytest.mark.parametrize("env", ["matching_pennies?rounds=3&memory=true", "Coordination?num_items=2", "Kuhn"])
def test_pools_run_the_games(env):
    def play(pool, num):
        stream = []
        for turn in range(num):
            batch = pool.recv(min_slots=None)
            stream.append((batch.obs["obs"].tolist(), batch.reward.tolist(), batch.terminated.tolist()))
            pool.send((np.arange(6) + turn) // 2 % 2, batch.slots)
        return stream, pool.take_episodes()

    factory = resolve(f"tests.population.games:{env}")
    with SerialPool(factory, PoolConfig(num_envs=3), seed=5) as pool:
        assert pool.spec.agents_per_env == 2
        play(pool, 20)
        pool.recv(min_slots=None)
        state = pool.state()
        pool.restore(state)
        want, episodes = play(pool, 20)
        assert episodes
        pool.recv(min_slots=None)
        pool.restore(state)
        assert play(pool, 20) == (want, episodes)


def test_kuhn_poker_in_turns_is_kuhn_poker():
    """The same cards, histories and wins as in the parallel version, for every line of play."""
    for seed, actions in product(range(8), product((games.PASS, games.BET), repeat=3)):
        parallel, turns, step = games.Kuhn(), games.TurnBasedKuhn(), 0
        observations, _ = parallel.reset(seed=seed)
        turns.reset(seed=seed)
        while parallel.agents:
            agent = turns.agent_selection
            seen, reward, terminated, truncated, _ = turns.last()
            assert agent == turns.possible_agents[step % 2] and seen.tolist() == observations[agent].tolist()
            assert not (reward or terminated or truncated)
            observations, rewards, _, _, _ = parallel.step(dict.fromkeys(parallel.agents, actions[step]))
            turns.step(actions[step])
            step += 1
        for agent in list(turns.agents):
            assert turns.agent_selection == agent
            assert turns.last()[1:4] == (rewards[agent], True, False)
            turns.step(None)
        assert turns.agents == []
