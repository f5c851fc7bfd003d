"""The league: how many matches are against past selves, and that seats change."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.population.config import LeagueConfig
from paceline.population.league import League, Snapshots
from paceline.population.mapping import RandomMapping


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (20, 100)])
@pytest.mark.parametrize("num_envs", [16, 512])
def test_the_share_of_past_selves_holds_and_all_of_them_play(tmp_path, num_envs, shortest, longest):
    """With two seats, however many matches take place at the same time."""
    config, generator = LeagueConfig(past_share=0.4, seats=2), np.random.default_rng(0)
    snapshots = Snapshots(Path(tmp_path), 1, 16, writes=False)
    for step in range(5):
        snapshots.add(step, [torch.nn.Linear(1, 1)])
    seats = [torch.nn.Linear(1, 1) for _ in range(2)]
    league = League(
        config,
        snapshots,
        RandomMapping(1, 2),
        seats=seats,
        first_seat=1,
        opponents=(),
        generator=generator,
        kinds=np.zeros(2, np.int64),
    )
    policies, players = np.zeros((num_envs, 2), np.int64), {}
    playing = policies.reshape(-1)
    league.assignment = SimpleNamespace(players=players, is_used=lambda policy: bool((playing == policy).any()))
    left, drawn = generator.integers(shortest, longest + 1, num_envs), Counter()
    for _ in range(40 * longest * 16 // num_envs + 20 * longest):
        league.refresh()
        left -= 1
        over = np.flatnonzero(left <= 0)
        left[over] = generator.integers(shortest, longest + 1, len(over))
        policies[over] = league(over, generator)
        assert ((policies[over] == 0).sum(1) >= 1).all(), "one agent learns"
        drawn.update(players.get(policy, "learning") for policy in policies[over].max(1).tolist())
    total = sum(drawn.values())
    assert 1 - drawn["learning"] / total == pytest.approx(0.4, abs=0.06)
    assert set(drawn) >= {"learning", *(f"0@{step}" for step in range(5))}
