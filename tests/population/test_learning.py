"""Small games whose equilibria are known: policies learn them, apart, against each other and in a league.

In a zero-sum game the policies of two learners circle around the equilibrium, and their average approaches it: that is
what regret bounds promise of gradient learners. So the tests of such games measure the average policy. The entropy
bonus keeps the circles away from the edges. Adam's beta1 is 0, because momentum widens the circles.

Every test was measured with three seeds: `pytest tests/population/test_learning.py --learning-seeds 3`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from paceline.config import Config
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.population.config import LeagueConfig, PopulationConfig
from paceline.run import Run
from paceline.session import train
from tests.population import games

UNEVEN = np.array([[3, -1], [-1, 1]])
"""Matching pennies with uneven stakes. The value is 1/3; both players choose the first action in 1/3 of the cases."""
ROUNDS = 3


def uneven_pennies() -> games.MatrixGame:
    return games.MatrixGame(UNEVEN, rounds=ROUNDS, memory=True)


def playing(
    env: str, *, steps: int, seed: int, num_envs: int = 64, hidden: tuple[int, ...] = (32,), **changes: Any
) -> Config:
    """A run of a small game. `changes` are settings of any section."""
    ppo = {"discount": 1.0, "trace_decay": 1.0, "epochs": 4, "minibatches": 4}
    optimizer = {"learning_rate": 1e-2}
    return Config(
        env=f"tests.population.{env}",
        steps=steps,
        rollout_steps=changes.pop("rollout_steps", 8),
        seed=seed,
        deterministic=True,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=num_envs, kind="serial"),
        policy=PolicyConfig(hidden=hidden),
        ppo=PPOConfig(**ppo | changes.pop("ppo", {})),
        optimizer=OptimizerConfig(**optimizer | changes.pop("optimizer", {})),
        **changes,
    )


TWO = PopulationConfig(policies=2, mapping="agent")
"""Each player has a policy of its own."""


def iterates(config: Config, folder: Path, measure: Callable[[Sequence[ActorCritic]], np.ndarray]) -> np.ndarray:
    """Train. What `measure` says of the policies after every update."""
    plain, found = Run.report, []

    def report(run: Run, *arguments: Any) -> None:
        plain(run, *arguments)
        found.append(measure([learner.policy for learner in run.learners]))

    with mock.patch.object(Run, "report", report):
        train(config, folder)
    return np.array(found)


@torch.no_grad()
def probabilities(policy: ActorCritic, obs: Any) -> np.ndarray:
    """[B, actions]: of one discrete action, for observations [B, F]."""
    seen = torch.as_tensor(np.asarray(obs), dtype=torch.float32)
    params, _, _ = policy.act({"obs": seen}, policy.initial_state(len(seen)))
    return params.double().softmax(1).numpy()


# ---------------------------------------------------------------- a zero-sum game with memory


def pennies_observations(role: int) -> np.ndarray:
    """[5, 6]: at the start, and after each pair of actions (own, other's)."""
    last = [np.zeros(4), *(np.concatenate([own, other]) for own in np.eye(2) for other in np.eye(2))]
    return np.stack([np.concatenate([np.eye(2)[role], actions]) for actions in last])


def pennies_bounds(policies: np.ndarray) -> tuple[float, float]:
    """What the row player wins at least and at most, if `policies` [2, 5, 2] and a best response to them play."""
    row, column = policies
    by_row_first = np.concatenate([column[:1], column[1:].reshape(2, 2, 2).swapaxes(0, 1).reshape(4, 2)])
    by_column_first = np.concatenate([row[:1], row[1:].reshape(2, 2, 2).swapaxes(0, 1).reshape(4, 2)])
    most = games.repeated_best_response(UNEVEN, ROUNDS, by_row_first)
    return -games.repeated_best_response(-UNEVEN.T, ROUNDS, by_column_first), most


def test_bounds_of_the_equilibrium_meet_at_the_value():
    """A policy that depends on the last actions gives the best response a gain."""
    equilibrium = np.tile([1 / 3, 2 / 3], (2, 5, 1))
    assert pennies_bounds(equilibrium) == pytest.approx((1.0, 1.0))
    copies = equilibrium.copy()
    copies[1, 1:] = np.eye(2)[[0, 1, 0, 1]]  # the column player repeats what the row player has just played
    assert pennies_bounds(copies)[1] == pytest.approx(1 + 2 * (3 - 1 / 3))


def test_a_zero_sum_game_with_memory_goes_to_its_value(tmp_path, learning_seed):
    """Uniform play has bounds of 0 and 3. With three seeds they differ by 0.41, 0.52 and 0.39."""
    config = playing(
        "test_learning:uneven_pennies",
        steps=40_000,
        seed=learning_seed,
        num_envs=32,
        rollout_steps=12,
        population=TWO,
        ppo={"entropy_coef": 0.3},
        optimizer={"beta1": 0.0},
    )
    found = iterates(
        config,
        tmp_path,
        lambda policies: np.stack([probabilities(policies[p], pennies_observations(p)) for p in range(2)]),
    )
    low, high = pennies_bounds(found[len(found) // 3 :].mean(0))
    assert low <= 1.0 <= high
    assert high - low < 0.9


# ---------------------------------------------------------------- a league


def circling(seed: int, league: LeagueConfig | None, steps: int) -> Config:
    """Rock, paper, scissors by a policy that learns fast: within a few updates it has the best response."""
    return playing(
        "games:rock_paper_scissors",
        steps=steps,
        seed=seed,
        hidden=(),
        ppo={"entropy_coef": 0.3, "clip": 0.5, "minibatches": 2},
        optimizer={"learning_rate": 0.1},
        league=league or LeagueConfig(),
    )


def mean_exploitability(config: Config, folder: Path) -> float:
    """Of the current policy, over the second half of the run."""
    found = iterates(config, folder, lambda policies: probabilities(policies[0], np.eye(2)))
    return float(np.mean([games.exploitability(games.ROCK_PAPER_SCISSORS, *both) for both in found[len(found) // 2 :]]))


def test_self_play_cycles_without_past_selves(tmp_path, learning_seed):
    """A pair of pure strategies has an exploitability of 2, the equilibrium has 0. Three seeds: 1.52, 1.61, 1.55."""
    assert mean_exploitability(circling(learning_seed, None, 40_960), tmp_path) > 1.1


def test_self_play_does_not_cycle_with_past_selves(tmp_path, learning_seed):
    """The policy plays against all its past selves, which is fictitious play, and the entropy bonus makes its best
    response smooth. Smooth fictitious play converges in zero-sum games (Hofbauer and Sandholm, 2002), also for the
    current policy. Without an entropy bonus the current policy would cycle: the best response to the average is pure.
    Three seeds: 0.55, 0.49, 0.49."""
    league = LeagueConfig(past_share=1.0, every=512, keep=1000, seats=8)
    assert mean_exploitability(circling(learning_seed, league, 20_480), tmp_path) < 0.8


# ---------------------------------------------------------------- a cooperative game


def test_two_policies_learn_to_cooperate(tmp_path, learning_seed):
    """They agree on a signal: without one the best return is 1/3. Three seeds: 0.98, 0.97, 0.99."""
    config = playing(
        "games:Coordination",
        steps=24_000,
        seed=learning_seed,
        num_envs=32,
        population=TWO,
        ppo={"entropy_coef": 0.02},
        optimizer={"learning_rate": 5e-3},
    )
    run = train(config, tmp_path)
    mean = run.episodes.means()["episode_return"]
    assert mean is not None and mean > 0.85


# ---------------------------------------------------------------- Kuhn poker


def bets(policies: Sequence[ActorCritic]) -> np.ndarray:
    """[4, 3]: the probability of a bet, by history and card."""
    decisions = games.kuhn_decisions()
    return np.stack(
        [
            probabilities(policies[len(history) % 2], decisions[number])[:, games.BET]
            for number, history in enumerate(games.HISTORIES)
        ]
    )


def average_bets(found: np.ndarray) -> np.ndarray:
    """The policies that play one of `found` [K, 4, 3] at random: each counts as often as it comes to the decision.

    The first player comes to its second decision only if it has passed.
    """
    weights = np.ones_like(found)
    weights[:, games.HISTORIES.index("pb")] = 1 - found[:, games.HISTORIES.index("")]
    return (weights * found).sum(0) / weights.sum(0)


def test_the_exploitability_of_kuhn_poker_falls(tmp_path, learning_seed):
    """Uniform play has 0.92, an equilibrium has 0. The average of three seeds: 0.28, 0.35, 0.36."""
    config = playing(
        "games:TurnBasedKuhn",
        steps=40_000,
        seed=learning_seed,
        population=TWO,
        ppo={"entropy_coef": 0.05},
        optimizer={"beta1": 0.0},
    )
    found = iterates(config, tmp_path, bets)
    average = average_bets(found[len(found) // 3 :])
    assert games.kuhn_exploitability(found[0]) > 0.6
    assert games.kuhn_exploitability(average) < 0.5
    assert games.kuhn_value(average) == pytest.approx(games.KUHN_VALUE, abs=0.1)
