"""Ratings of several ranks have every match once, also after a resume."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.checkpoint import CheckpointFolder
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.population import shared_matches
from paceline.population.config import PBTConfig, PopulationConfig
from paceline.population.population import Population
from paceline.population.shared_matches import SharedMatches
from paceline.session import train
from tests.integration.ranks import on_ranks
from tests.population.test_rounds import populated


@pytest.mark.parametrize(("system", "seconds"), [("ver", 0.0), ("ddppo", 1e9)])
def test_matches_of_all_ranks_are_counted_once(tmp_path, system, seconds):
    """Two ranks train two policies each. The run is resumed once. `seconds`: how often ranks meet besides
    checkpoints."""
    config = populated(
        env="tests.population.games:Kuhn",
        system=system,
        deterministic=False,
        steps=1024,
        population=PopulationConfig(policies=4, spread=True),
        pbt=PBTConfig(),
    )
    folder = str(tmp_path)

    def work():
        account, count = Counter(), Population._count

        def counted(population, match):
            returns = [sum(episode.episode_return for episode in episodes) for episodes in match.episodes]
            one, two = match.policies
            account[one, two] += returns[0] > returns[1] and one != two
            account[two, one] += returns[1] > returns[0] and one != two
            count(population, match)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Population, "_count", counted)
            patch.setattr(shared_matches, "SECONDS", seconds)
            train(config, Path(folder))
            run = train(dataclasses.replace(config, steps=2048), Path(folder), resume="latest")
        return account, run.population._matches.table.state_dict()

    (mine, table), (theirs, other) = on_ranks(2, work)
    ratings = json.loads((tmp_path / "ratings.json").read_text())
    assert ratings["players"] == [f"{policy}@1000000" for policy in range(4)] and set(ratings["ratings"]) <= set(
        ratings["players"]
    )
    wins = np.array(ratings["wins"])
    assert wins.tolist() == [[(mine + theirs)[one, two] for two in range(4)] for one in range(4)]
    assert wins[1, 3] + wins[3, 1] > 20 and wins[0, 2] + wins[2, 0] > 20, "both policies of a rank have met"
    saved = CheckpointFolder(tmp_path / "checkpoints").load().state["population"]["matches"]
    assert table == other == saved and table["wins"] == ratings["wins"] and table["draws"] == ratings["draws"]


def test_a_single_rank_counts_at_once_and_never_meets():
    matches = SharedMatches(Group(RankInfo(), torch.device("cpu"), None))
    matches.add({"0@10": 1.0, "1@10": 0.0})
    assert matches.table.wins.tolist() == [[0, 1], [0, 0]] and not matches.is_due
    matches.share()
    matches.load_state_dict(matches.table.state_dict())
    matches.add({"1@10": 1.0, "bot": 0.0})
    assert matches.table.counts.sum() == 4 and matches.first_player == "0@10"


def test_players_have_an_order_that_does_not_depend_on_the_ranks(monkeypatch):
    """The earliest first, then opponents that do not learn. A rank is due when it has counted something."""
    group = Group(RankInfo(rank=0, size=2), torch.device("cpu"), None)
    matches, others = SharedMatches(group), {"players": ["bot", "0@5"], "wins": [[0, 1], [0, 0]]}
    others["draws"] = [[0, 0], [0, 0]]
    monkeypatch.setattr(shared_matches, "gather_to_all", lambda group, mine: [mine, others])
    assert not matches.is_due
    matches.add({"1@20": 1.0, "0@20": 0.0})
    assert matches.is_due and not matches.table.players
    matches.share()
    assert matches.table.players == ["0@5", "0@20", "1@20", "bot"] and not matches.is_due
    matches.add({"0@5": 1.0, "bot": 0.0})
    assert not matches.is_due, "ranks have just met"
    matches.load_state_dict(matches.table.state_dict())
    matches.share()
    assert matches.table.wins[3].tolist() == [2, 0, 0, 0] and matches.table.wins.sum() == 3
