"""Matches between policies: who plays whom, sides, results, and the errors of `paceline eval`."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console

from paceline.checkpoint import CheckpointFolder
from paceline.cli import main as cli
from paceline.collect.policy_assignment import PlayedMatch
from paceline.config import Config
from paceline.envs.factory import Factory
from paceline.errors import UsageError
from paceline.evaluation.evaluate import evaluate
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.matches import (
    MatchResult,
    evaluate_match,
    pair_fixtures,
    play_matches,
    player_of,
    result_of,
    summarize,
    table,
    wilson_interval,
)
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.evaluation.seated_players import Fixtures
from paceline.evaluation.tournament import _spread, play_tournament
from paceline.evaluation.tournament import table as tournament_table
from paceline.export import export
from paceline.learner.config import PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool import make_pool
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import Episode
from paceline.population.config import LeagueConfig, PBTConfig, PopulationConfig
from paceline.session import train
from tests.evaluation.runs import make_run
from tests.pool.multi_agent import LIVES, Mortal
from tests.population.test_kinds import several

CPU = torch.device("cpu")
PONG = "tensor:pong?points=1&max_episode_steps=60"


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    """Three policies with two past selves each."""
    folder = tmp_path_factory.mktemp("runs") / "pong"
    config = Config(
        env=PONG,
        steps=3000,
        rollout_steps=32,
        device="cpu",
        deterministic=False,
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(hidden=(16,)),
        ppo=PPOConfig(epochs=1, minibatches=1),
        population=PopulationConfig(policies=3),
        pbt=PBTConfig(every=1000, objective="win"),
        league=LeagueConfig(past_share=0.3, every=1000, keep=2),
    )
    train(config, folder)
    return folder


class Recorder:
    """Always takes the same action, and keeps what it saw in which slot."""

    def __init__(self, action: int) -> None:
        self._action = action
        self.seen: list[tuple[int, ...]] = []

    def act(self, batch, *, on_device):
        assert not on_device
        for slot, obs, active in zip(batch.slots, batch.obs["obs"], batch.active, strict=True):
            if active:
                self.seen.append((int(slot), *np.asarray(obs, int).tolist()))
        return {"action": np.full(len(batch), self._action)}

    def start_anew(self, slots) -> None:
        pass


def test_each_agent_is_the_evaluated_policy_equally_often():
    for num_matches, num_agents in ((10, 2), (7, 3), (1, 2)):
        fixtures = pair_fixtures(num_matches, num_agents)
        assert ((fixtures == 0).sum(1) == 1).all() and fixtures.shape == (num_matches, num_agents)
        assert np.ptp((fixtures == 0).sum(0)) <= 1
    assert set(pair_fixtures(4, 2, 5, 3).ravel().tolist()) == {5, 3}


def test_environments_divide_the_fixtures_and_repeat_lost_ones():
    fixtures = Fixtures(np.arange(5)[:, None], 2)
    assert fixtures.remaining.tolist() == [3, 2]
    generator, both = np.random.default_rng(0), np.arange(2)
    assert fixtures(both, generator).ravel().tolist() == [0, 3]
    fixtures.repeat(np.array([1]))
    assert [fixtures(both, generator).ravel().tolist() for _ in range(2)] == [[1, 3], [2, 4]]


def test_a_match_has_the_same_players_until_all_its_agents_are_gone():
    """Agents of Mortal die one after the other. The observation says which episode it is."""
    players, num_matches = [Recorder(1), Recorder(2)], 9
    with make_pool(Factory(make=Mortal), PoolConfig(kind="serial", num_envs=2)) as pool:
        fixtures = pair_fixtures(num_matches, 3)
        matches, num_lost = play_matches(pool, [lambda *_, p=p: p for p in players], fixtures, CPU)
    assert len(matches) == num_matches and num_lost == 0
    assert all(tuple(map(len, match.episodes)) == (1, 1, 1) for match in matches)
    assert sorted(match.policies for match in matches) == sorted(map(tuple, fixtures.tolist()))
    for number, player in enumerate(players):
        for slot, env, agent, episode, _ in player.seen:
            first = 0 if env == 0 else 5  # the fixtures of the second environment begin with number 5
            if episode < (5, 4)[env]:
                assert slot == env * 3 + agent and fixtures[first + episode][agent] == number
    lives = sum(LIVES.values())
    assert len(players[0].seen) + len(players[1].seen) >= num_matches * lives


def test_turn_based_matches():
    """In tic-tac-toe a player that always marks the first cell loses at its second turn: the move is illegal."""

    class FirstFree:
        def act(self, batch, *, on_device):
            taken = batch.obs["observation"].any(-1).reshape(len(batch), 9)
            return {"action": taken.argmin(1)}

        def start_anew(self, slots) -> None:
            pass

    class Stubborn(FirstFree):
        def act(self, batch, *, on_device):
            return {"action": np.full(len(batch), 8)}

    makers = [lambda *_: FirstFree(), lambda *_: Stubborn()]
    config = PoolConfig(kind="serial", num_envs=3)
    with make_pool("pettingzoo:classic.tictactoe_v3", config) as pool:
        matches, _ = play_matches(pool, makers, pair_fixtures(8, 2), CPU)
    results = [result_of(match, 0) for match in matches]
    assert [result.outcome for result in results] == [1] * 8
    assert sorted(result.agent for result in results) == [0] * 4 + [1] * 4


def test_a_match_that_is_lost_with_its_simulator_is_played_again():
    failed = []

    class Failing(Mortal):
        def step(self, actions):
            if self.env == 0 and self.episode == 1 and not failed:
                failed.append(self.env)
                raise RuntimeError("failure")
            return super().step(actions)

    with make_pool(Factory(make=Failing), PoolConfig(kind="serial", num_envs=2, on_error="restart")) as pool:
        fixtures = pair_fixtures(6, 3)
        matches, num_lost = play_matches(pool, [lambda *_: Recorder(0)] * 2, fixtures, CPU)
    assert num_lost == 1
    assert sorted(match.policies for match in matches) == sorted(map(tuple, fixtures.tolist()))


def match(*agents: tuple[float, dict[str, float]], policies: tuple[int, ...] = (0, 1)) -> PlayedMatch:
    episodes = tuple((Episode(slot, value, 5, info),) for slot, (value, info) in enumerate(agents))
    return PlayedMatch(tuple(map(str, policies)), policies, episodes)


def test_results_are_by_win_or_else_by_return():
    assert result_of(match((1.0, {}), (2.0, {})), 0).outcome == -1
    assert result_of(match((1.0, {}), (2.0, {})), 1).outcome == 1
    assert result_of(match((1.0, {"win": 1.0}), (2.0, {"win": 0.0})), 0).outcome == 1
    assert result_of(match((1.0, {"win": 0.5}), (2.0, {"win": 0.5})), 0).outcome == 0
    assert result_of(match((3.0, {"win": 1.0}), (2.0, {})), 0).outcome == 1, "not all have a win: by return"
    several = match((2.0, {}), (1.0, {}), (3.0, {}), policies=(0, 1, 1))
    assert result_of(several, 0) == MatchResult(0, -1, 2.0, 2.0, 5)
    nobody = PlayedMatch(("0", "1"), (0, 1), ((Episode(0, 1.0, 1),), ()))
    assert result_of(nobody, 0) is None
    with pytest.raises(UsageError, match="not finite"):
        result_of(match((float("nan"), {}), (2.0, {})), 0)


def test_wilson_intervals():
    # Known values: 7 of 10 is 0.3968 to 0.8922 (Wilson, 1927, without correction).
    assert wilson_interval(7, 10) == pytest.approx([0.3968, 0.8922], abs=1e-4)
    assert wilson_interval(0, 10)[0] == 0.0 and wilson_interval(10, 10)[1] == 1.0
    assert wilson_interval(0, 0) is None


def test_statistics_of_matches():
    results = [MatchResult(0, 1, 3.0, -3.0, 4), MatchResult(1, 0, 0.0, 0.0, 6), MatchResult(0, -1, -3.0, 3.0, 4)]
    found = summarize(results)
    assert [found[name] for name in ("matches", "wins", "draws", "losses", "win_rate")] == [3, 1, 1, 1, 0.5]
    assert found["mean_return"] == 0.0 and found["mean_length"] == pytest.approx(14 / 3) and not found["all_alike"]
    assert summarize([results[0]] * 4)["all_alike"]
    assert summarize([])["win_rate"] is None


def test_numbers_of_both_sides():
    """The means of the numbers in the last `info`, with intervals, of the player and of the opponent."""
    played = [match((0.0, {"frags": 3.0, "win": 1.0}), (0.0, {"frags": 1.0, "win": 0.0}))]
    played.append(match((0.0, {"frags": 2.0, "win": 0.0}), (0.0, {"frags": 4.0, "win": 1.0}), policies=(1, 0)))
    found = summarize([result_of(one, 0) for one in played])
    assert found["info"] == {"frags": 3.5, "win": 1.0} and found["opponent_info"] == {"frags": 1.5, "win": 0.0}
    assert found["ci95_info"] == {"frags": [3.0, 4.0], "win": [1.0, 1.0]}
    assert found["ci95_opponent_info"]["frags"] == [1.0, 2.0]


def test_a_match_of_two_policies_is_reproducible(population):
    options = EvaluationOptions(policy="0", episodes=9, num_envs=4, sampled=True)
    found = evaluate_match(population, "1", options)
    assert evaluate_match(population, "1", options) == found
    assert found["matches"] == found["wins"] + found["draws"] + found["losses"] == 9
    assert {name: counts["matches"] for name, counts in found["by_agent"].items()} == {"left": 5, "right": 4}
    assert found["mean_return"] == -found["mean_opponent_return"], "the game is zero-sum"
    assert found["policy"] == "0" and found["opponent"] == "policy 1"
    json.dumps(found, allow_nan=False)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(found))
    assert "9 matches" in (text := console.export_text()) and "as left" in text and "95 % interval" in text


def test_players_are_told_apart(population):
    """The same matches, with the players in the other order."""
    makers = [player_of(SavedRun.load(population, policy=name), sampled=False, seed=0) for name in ("0", "1@1000")]
    fixtures, played = pair_fixtures(12, 2), []
    for order, numbers in ((makers, fixtures), (makers[::-1], 1 - fixtures)):
        with make_pool(PONG, PoolConfig(num_envs=3), seed=3) as pool:
            played.append(play_matches(pool, order, numbers, CPU)[0])
    returns = [[[e[0].episode_return for e in match.episodes] for match in matches] for matches in played]
    assert returns[0] == returns[1] and len({tuple(pair) for pair in returns[0]}) > 1
    assert [match.policies for match in played[0]] == [match.policies[::-1] for match in played[1]]


@pytest.mark.parametrize(
    "opponent", ["best", "2@1000", "FOLDER", "FOLDER:1", "FOLDER:0@1000", "paceline.envs.pong_opponents:RandomOpponent"]
)
def test_all_kinds_of_opponents(population, opponent):
    name = opponent.replace("FOLDER", str(population))
    found = evaluate_match(population, name, EvaluationOptions(policy="0@1000", episodes=4))
    assert found["matches"] == 4 and found["policy"] == "0@1000"


def test_policies_of_a_run_have_their_own_weights(population):
    checkpoint = CheckpointFolder(population / "checkpoints").load()
    for policy in range(3):
        run = SavedRun.load(population, policy=str(policy))
        assert run.policy_name == str(policy) and run.num_policies == 3
        assert all(torch.equal(run.weights[name], value) for name, value in checkpoint.weights_of(policy).items())
    past = SavedRun.load(population, policy="1@1000")
    assert not all(torch.equal(past.weights[name], value) for name, value in checkpoint.weights_of(1).items())


def test_the_best_policy_has_the_highest_objective(population, monkeypatch):
    objectives = [[(1, 0.1), (9, 0.9)], [(4, 2.0)], []]
    plain = CheckpointFolder.load

    def load(self, which="latest"):
        found = plain(self, which)
        found.state["population"]["objectives"] = objectives
        return found

    monkeypatch.setattr(CheckpointFolder, "load", load)
    assert SavedRun.load(population).policy_name == "1"
    assert evaluate(population, episodes=1)["policy"] == "1"
    objectives[:] = [[], [], []]
    assert SavedRun.load(population, policy="best").policy_name == "0"


def test_export_of_a_policy(population, tmp_path):
    done = export(population, "torchscript", policy="2", output=tmp_path / "policy.pt")
    assert done.policy == "2"


def test_a_recurrent_state_does_not_pass_to_the_next_player():
    class Counter:
        def initial_state(self, count):
            return torch.zeros(count, 1)

        def play(self, obs, state, generator=None):
            return {"action": state[:, 0].long()}, state + 1

    player = Player(Counter(), 3, CPU)
    obs, fresh = {"obs": torch.zeros(3, 1)}, torch.zeros(3, dtype=torch.bool)
    player.decide(obs, fresh)
    player.start_anew(np.array([1]))
    assert player.decide(obs, fresh)["action"].tolist() == [1, 0, 1]


def test_all_matches_of_training_are_between_named_players(population):
    """Also the first ones, which are drawn before the players have names."""
    players = json.loads((population / "ratings.json").read_text())["players"]
    assert players and all("@" in player for player in players)


def test_tournament(population):
    found = play_tournament(population, EvaluationOptions(episodes=2))
    names = found["players"]
    assert len(names) == 9 and names[-1].startswith("2@") and set(found["ratings"]) == set(names)
    counts = np.array(found["wins"]) + np.array(found["wins"]).T + np.array(found["draws"])
    assert (counts == 2 * (1 - np.eye(len(names)))).all()
    json.dumps(found, allow_nan=False)
    assert all(name in "".join(lines_of(found)) for name in names)


def lines_of(tournament):
    """The table of a tournament, on a terminal of 80 columns."""
    console = Console(width=80, file=io.StringIO())
    console.print(tournament_table(tournament))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_tournament_of_many_players_is_readable_at_80_columns():
    names = [f"{policy}@{2_000_000_000 + policy}" for policy in range(18)]
    wins = np.triu(np.full((18, 18), 3), 1) + np.tril(np.full((18, 18), 1), -1)
    ratings = {name: [1000.0 - 10 * at, -50.0, 2000.0] for at, name in enumerate(names)}
    lines = lines_of(
        {
            "env": "tensor:pong",
            "checkpoint": "step_2000000000",
            "matches_per_pair": 4,
            "players": names,
            "wins": wins.tolist(),
            "draws": np.zeros((18, 18), int).tolist(),
            "ratings": ratings,
        }
    )
    assert lines[2].split() == ["1", "0@2000000000", "1000", "-50", "to", "2000"]
    first, second = (lines.index(line) for line in lines if line.split()[:2] in (["1", "2"], ["17", "18"]))
    assert lines[first].split() == [str(number) for number in range(1, 17)]
    assert lines[first + 2].split() == ["2", "25", *["75"] * 14]
    assert lines[second + 18].split() == ["18", "25"]


def test_past_selves_of_a_tournament_are_spread_over_training():
    found = [(step, policy) for step in range(100, 1700, 100) for policy in range(2)]
    assert [step for step, policy in _spread(found) if policy == 0] == [100, 600, 1100, 1600]
    assert _spread(found[:6]) == found[:6]
    assert len(_spread([(100, policy) for policy in range(20)])) == 8


def test_a_match_is_filmed(population, tmp_path):
    path = tmp_path / "match.gif"
    evaluate_match(population, "1", EvaluationOptions(policy="0", episodes=2, video=path))
    assert path.read_bytes().startswith(b"GIF")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "3"], "has no policy 3; allowed: best, 0 to 2, K@STEP for a past self"),
        (["--policy", "worst"], "policy 'worst' does not exist; allowed: best, 0 to 2"),
        (["--opponent", "1@999"], "has no past self 1@999"),
        (["--opponent", "nowhere"], "opponent 'nowhere' does not exist; allowed: a policy of the run"),
        (["--opponent", "nowhere:Class"], "module 'nowhere' of 'opponent nowhere:Class' does not exist"),
        (["--opponent", "OTHER"], "was trained in gym:CartPole-v1; allowed: runs of the same game"),
        (["--tournament", "--opponent", "1"], "allowed: without --policy, --opponent, --video"),
        (["--opponent", "1", "--split", "val"], "--split does not apply"),
    ],
)
def test_bad_input_is_one_line(population, cartpole, monkeypatch, capsys, arguments, message):
    arguments = [str(cartpole) if argument == "OTHER" else argument for argument in arguments]
    monkeypatch.setattr("sys.argv", ["paceline", "eval", str(population), *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and message in printed and "\n" not in printed


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "cartpole", "gym:CartPole-v1")


def test_one_agent_has_no_opponent(cartpole):
    with pytest.raises(UsageError, match="has one agent, so there are no matches"):
        evaluate_match(cartpole, "0", EvaluationOptions())
    with pytest.raises(UsageError, match="one policy and no past selves"):
        play_tournament(cartpole, EvaluationOptions())


def test_agents_of_different_kinds_are_played_by_policies_of_their_own(tmp_path):
    """Of 5 policies, 0, 2 and 4 play wolves, 1 and 3 play sheep."""
    folder = tmp_path / "pasture"
    train(several("ddppo", steps=200), folder)
    found = evaluate(folder, policy="3", episodes=10, num_envs=2)
    assert found["policy"] == "3" and found["kinds"]["sheep"]["policy"] == "3"
    assert int(found["kinds"]["wolf"]["policy"]) % 2 == 0
    assert {name: kind["episodes"] for name, kind in found["kinds"].items()} == {"wolf": 4, "sheep": 6}
    assert evaluate(folder, policy="3", episodes=10, num_envs=2) == found
    run = SavedRun.load(folder, policy="3")
    assert [leaf.name for leaf in run.spec().obs] == ["dry", "where"]
    with pytest.raises(UsageError, match=r"different spaces \(wolf, sheep\), so players cannot swap sides"):
        evaluate_match(folder, "0", EvaluationOptions())
