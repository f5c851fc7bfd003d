"""A tournament of a run's policies and past selves: everybody plays everybody."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paceline.errors import UsageError
from paceline.evaluation.evaluators import EvaluationOptions, checked_evaluator
from paceline.evaluation.matches import open_pool, pair_fixtures, play_matches, player_of, result_of
from paceline.evaluation.saved import SavedRun, past_selves
from paceline.population.league import player_name
from paceline.population.ratings import Matches, elo_ratings
from paceline.wording import counted

log = logging.getLogger(__name__)

MATCHES_PER_PAIR = 20
MAX_PAST_SELVES = 8
"""Of more past selves, those of so many play whose steps are spread over training."""
MOST_COLUMNS = 16
"""Players in one table of win rates."""


def play_tournament(folder: Path, options: EvaluationOptions) -> dict[str, Any]:
    """Play matches of every pair; what `paceline eval --tournament --json` prints. The mean rating is 1000."""
    first = SavedRun.load(folder, options.checkpoint, policy="0", trust=options.trust)
    env = options.env or first.env()
    checked_evaluator(env, options)
    runs = _players(first, options)
    if len(runs) < 2:
        raise UsageError(
            f"{folder} has one policy and no past selves; allowed: a run with two players, by --population.policies or "
            "--league.past-share"
        )
    pairs = list(itertools.combinations(range(len(runs)), 2))
    per_pair = MATCHES_PER_PAIR if options.episodes is None else options.episodes
    device = first.device()
    with contextlib.closing(open_pool(first, env, per_pair * len(pairs), options, device)) as pool:
        makers = [
            player_of(run, sampled=options.sampled, seed=options.seed + index)
            for index, run in enumerate(runs.values())
        ]
        fixtures = np.concatenate([both_ways(per_pair, pool.spec.agents_per_env, *pair) for pair in pairs])
        played, num_lost = play_matches(pool, makers, fixtures, device)
    names, matches = list(runs), Matches(list(runs))
    for match in played:
        # The one that is alone. Of two agents it may be either, since the counts are symmetric.
        player = min(set(match.policies), key=match.policies.count)
        (other,) = set(match.policies) - {player}
        if (result := result_of(match, player)) is not None:
            won = {1: "wins", 0: "draws", -1: "losses"}[result.outcome]
            matches.add_counts(names[player], names[other], **{won: 1})
    return {
        "run": str(folder),
        "checkpoint": first.checkpoint,
        "env": env,
        "seed": options.seed,
        "sampled": options.sampled,
        "matches_per_pair": per_pair,
        "players": names,
        "wins": matches.wins.tolist(),
        "draws": matches.draws.tolist(),
        "ratings": {name: [rating.elo, rating.low, rating.high] for name, rating in elo_ratings(matches).items()},
        "lost_matches": num_lost,
    }


def both_ways(num_matches: int, num_agents: int, player: int, other: int) -> np.ndarray:
    """[M, A]: matches of two players. With more than two agents, one is alone against all others, who have it easier to
    win: each player is alone in half of the matches."""
    if num_agents == 2:
        return pair_fixtures(num_matches, num_agents, player, other)
    half = (num_matches + 1) // 2
    alone = [pair_fixtures(half, num_agents, player, other), pair_fixtures(half, num_agents, other, player)]
    return np.stack(alone, 1).reshape(-1, num_agents)[:num_matches]


def _players(first: SavedRun, options: EvaluationOptions) -> dict[str, SavedRun]:
    """By name: past selves, oldest first, and then the policies of the checkpoint."""
    found = past_selves(first.folder)
    names = [player_name(policy, step) for step, policy in _spread(found)]
    if len(names) < len(found):
        log.info("%d of %d past selves play, spread over training", len(names), len(found))
    step = int(first.checkpoint.removeprefix("step_"))
    latest = {player_name(policy, step): str(policy) for policy in range(first.num_policies)}
    return {
        name: SavedRun.load(first.folder, options.checkpoint, policy=policy, trust=options.trust)
        for name, policy in {**{name: name for name in names}, **latest}.items()
    }


def _spread(found: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most `MAX_PAST_SELVES`, all those of some steps that are spread evenly from the first to the last."""
    steps = sorted({step for step, _ in found})
    if len(found) <= MAX_PAST_SELVES:
        return list(found)
    count = max(1, MAX_PAST_SELVES * len(steps) // len(found))
    chosen = {steps[index] for index in np.linspace(0, len(steps) - 1, count).round().astype(int)}
    return [(step, policy) for step, policy in found if step in chosen][:MAX_PAST_SELVES]


def table(report: dict[str, Any]) -> Group:
    """A result of `play_tournament` for the terminal, best player first. It fits into 80 columns: players have numbers
    in the table of win rates."""
    names, ratings = report["players"], report["ratings"]
    order = sorted(names, key=lambda name: -ratings[name][0])
    rows = _columns("", "player", "elo", "95 % interval")
    for number, name in enumerate(order, 1):
        elo, low, high = ratings[name]
        rows.add_row(str(number), name, f"{elo:.0f}", f"{low:.0f} to {high:.0f}")
    per_pair = counted(report["matches_per_pair"], "match", "matches")
    title = f"{per_pair} of each pair in {report['env']}, {report['checkpoint']}; the mean Elo is 1000"
    about = "win rates in percent, of the row against the column; a draw is half a win"
    return Group(Text(title), rows, Text(""), Text(about), *_win_rates(report, order))


def _win_rates(report: dict[str, Any], order: Sequence[str]) -> Iterator[Table]:
    """Win rates of all players against a part of them."""
    matches = Matches()
    matches.load_state_dict(report)
    at = [report["players"].index(name) for name in order]
    rates = matches.win_rates()[np.ix_(at, at)]
    for first in range(0, len(order), MOST_COLUMNS):
        part = rates[:, first : first + MOST_COLUMNS]
        rows = _columns("", *(str(first + number) for number in range(1, part.shape[1] + 1)))
        for number, line in enumerate(part, 1):
            rows.add_row(str(number), *("" if np.isnan(rate) else f"{100 * rate:.0f}" for rate in line))
        yield rows


def _columns(*names: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name == "player" else "right", no_wrap=True)
    return table
