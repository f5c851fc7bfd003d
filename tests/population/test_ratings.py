"""Elo ratings of players whose strengths are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from paceline.population.ratings import Matches, elo_ratings


def simulated(elo: np.ndarray, rounds: int, generator: np.random.Generator, draws: float = 0.0) -> Matches:
    """Everyone meets everyone. A share `draws` of the matches is drawn, without effect on the mean score."""
    matches = Matches([str(k) for k in range(len(elo))])
    for one, two in itertools.combinations(range(len(elo)), 2):
        mean = 1 / (1 + 10 ** ((elo[two] - elo[one]) / 400))
        share = draws * 2 * min(mean, 1 - mean)
        drawn = generator.random(rounds) < share
        wins = generator.random(rounds) < (mean - share / 2) / (1 - share)
        counts = int((wins & ~drawn).sum()), int(drawn.sum()), int((~wins & ~drawn).sum())
        matches.add_counts(str(one), str(two), wins=counts[0], draws=counts[1], losses=counts[2])
    return matches


def test_counts_of_wins_draws_and_losses():
    matches = Matches()
    matches.add({"a": 3.0, "b": 1.0})
    matches.add({"b": 2.0, "a": 2.0})
    matches.add({"c": 1.0, "a": 0.0, "b": 5.0})
    assert matches.players == ["a", "b", "c"]
    assert matches.wins.tolist() == [[0, 1, 0], [1, 0, 1], [1, 0, 0]]
    assert matches.draws.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert matches.losses.tolist() == matches.wins.T.tolist()
    assert matches.counts.tolist() == [[0, 3, 1], [3, 0, 1], [1, 1, 0]]
    assert matches.win_rate("a", "b") == 0.5 and matches.win_rate("c", "a") == 1.0
    assert matches.win_rate("a", "nobody") is None and math.isnan(matches.win_rates()[0, 0])
    again = Matches()
    again.load_state_dict(matches.state_dict())
    assert again.state_dict() == matches.state_dict()
    again.add_all(matches.state_dict())
    assert again.players == matches.players and again.wins.tolist() == (2 * matches.wins).tolist()
    again.add_all({"players": ["d", "b"], "wins": [[0, 7], [0, 0]], "draws": [[0, 1], [1, 0]]})
    again.sort(lambda player: -ord(player))
    assert again.players == ["d", "c", "b", "a"] and again.wins[0].tolist() == [0, 0, 7, 0]
    assert again.draws.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 2], [0, 0, 2, 0]]
    again.load_state_dict(matches.state_dict())
    again.forget("a")
    assert again.players == ["b", "c"] and again.wins.tolist() == [[0, 1], [0, 0]]
    with pytest.raises(ValueError, match="finite"):
        matches.add({"a": math.nan, "b": 1.0})
    with pytest.raises(ValueError, match="a against a"):
        matches.add_counts("a", "a", wins=1)


@pytest.mark.parametrize("draws", [0.0, 0.6])
@pytest.mark.parametrize("anchor", [None, "2"])
def test_intervals_cover_the_true_ratings(draws, anchor):
    """About 95 % of them. Draws make intervals a little too wide, never too narrow."""
    generator, covered = np.random.default_rng(5), []
    for _ in range(150):
        elo = generator.normal(0, 200, 6)
        true = elo - (elo[2] if anchor else elo.mean() - 1000)
        found = elo_ratings(simulated(elo, 40, generator, draws), anchor=anchor)
        covered += [found[str(k)].low <= true[k] <= found[str(k)].high for k in range(6) if str(k) != anchor]
    share = np.mean(covered)
    assert share > 0.93 and (draws > 0 or share < 0.97), share


def test_ratings_come_close_to_the_truth_with_many_matches():
    elo = np.array([-400.0, -150.0, 0.0, 120.0, 500.0])
    found = elo_ratings(simulated(elo, 20_000, np.random.default_rng(1)), anchor="0")
    assert [found[str(k)].elo for k in range(5)] == pytest.approx(elo + 400, abs=15)
    assert found["0"].low == found["0"].high == found["0"].elo == 0.0
    assert all(found[str(k)].high - found[str(k)].low < 30 for k in range(5))


def test_the_most_likely_ratings_of_two_players():
    matches = Matches()
    matches.add_counts("a", "b", wins=30_000, losses=10_000)
    found = elo_ratings(matches)
    assert found["a"].elo - found["b"].elo == pytest.approx(400 * math.log10(3), abs=0.1)
    assert found["a"].elo + found["b"].elo == pytest.approx(2000)


def test_players_without_a_loss_or_a_match_have_finite_ratings():
    matches = Matches(["never", "best", "middle", "worst"])
    matches.add_counts("best", "middle", wins=1000)
    matches.add_counts("middle", "worst", wins=1000)
    found = elo_ratings(matches)
    assert all(map(math.isfinite, (rating.high for rating in found.values())))
    assert found["best"].elo > found["middle"].elo > found["worst"].elo
    assert found["never"].high - found["never"].low > 2000
    assert found["best"].low > found["worst"].high


def test_the_order_of_players_does_not_matter():
    matches = simulated(np.array([0.0, 100.0, 300.0]), 50, np.random.default_rng(2))
    turned = Matches(["2", "0", "1"])
    for one, two in itertools.combinations(matches.players, 2):
        at = matches.players.index(one), matches.players.index(two)
        turned.add_counts(two, one, wins=matches.losses[at], draws=matches.draws[at], losses=matches.wins[at])
    for player, rating in elo_ratings(matches, anchor="0").items():
        other = elo_ratings(turned, anchor="0")[player]
        assert (other.elo, other.low, other.high) == pytest.approx((rating.elo, rating.low, rating.high), abs=1e-4)


def test_no_players_and_an_unknown_anchor():
    assert elo_ratings(Matches()) == {}
    with pytest.raises(ValueError, match="players: a, b"):
        elo_ratings(Matches(["a", "b"]), anchor="c")
