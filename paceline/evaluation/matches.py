"""Matches between two players: the policies of runs, past selves and scripted opponents.

In every match one agent is the evaluated policy, and the opponent plays all others. Each agent is the evaluated policy
equally often, up to one match, so an advantage of the first move does not count.

Legend: M matches, A agents of an environment.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.collect.policy_assignment import PlayedMatch
from paceline.envs.ids import EnvId
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.evaluation.evaluate import NUM_EPISODES, confidence_interval, info_means, progress_bar, send_needed, shown
from paceline.evaluation.evaluators import EvaluationOptions, checked_evaluator
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun, is_policy_name
from paceline.evaluation.seated_players import Fixtures, SeatedPlayers, TakesTurns
from paceline.own_code import is_path
from paceline.pool.protocol import Pool, PoolSpec, StepBatch
from paceline.population.opponents import ScriptedActor
from paceline.population.ratings import NORMAL_95
from paceline.wording import counted

CI_METHOD = "Wilson; a draw is half a win"
BATCHED_ENVS = 256
"""Matches at a time in a batched simulator."""


class ScriptedPlayer:
    """A scripted opponent as a player. It has no state."""

    def __init__(self, name: str, spec: PoolSpec, device: torch.device) -> None:
        self._actor = ScriptedActor(name, spec, device)

    def act(self, batch: StepBatch, *, on_device: bool) -> dict[str, Any]:
        return self._actor.env_actions(self._actor.decide(batch).actions)

    def start_anew(self, slots: np.ndarray) -> None:
        """Nothing to forget."""


MakePlayer = Callable[[PoolSpec, torch.device], TakesTurns]


@dataclass(frozen=True)
class Opponent:
    """A player, and what to call it."""

    name: str
    make: MakePlayer


def player_of(run: SavedRun, *, sampled: bool, seed: int) -> MakePlayer:
    """The policy of a run as a player."""

    def make(spec: PoolSpec, device: torch.device) -> Player:
        return Player(run.policy(spec, device), spec.num_slots, device, sampled=sampled, seed=seed)

    return make


def find_opponent(name: str, run: SavedRun, env: str, options: EvaluationOptions) -> Opponent:
    """The opponent that `name` means: a policy or past self of the same run, another run, or a scripted opponent."""
    folder, _, policy = name.rpartition(":")
    if is_policy_name(name):
        other = SavedRun.load(run.folder, options.checkpoint, policy=name, trust=options.trust)
        called = f"policy {other.policy_name}"
    elif Path(name).is_dir():
        other = SavedRun.load(Path(name), trust=options.trust)
        called = f"{name}, policy {other.policy_name}"
    elif folder and Path(folder).is_dir() and is_policy_name(policy):
        other = SavedRun.load(Path(folder), policy=policy, trust=options.trust)
        called = f"{folder}, policy {other.policy_name}"
    elif is_path(name):
        return Opponent(name, lambda spec, device: ScriptedPlayer(name, spec, device))
    else:
        raise UsageError(
            f"opponent {name!r} does not exist; allowed: a policy of the run (K, best, K@STEP), the folder of another "
            "run (FOLDER or FOLDER:K), or package.module:Class for a scripted one"
        )
    theirs, ours = EnvId.parse(other.config.env), EnvId.parse(env)
    if (theirs.family, theirs.name) != (ours.family, ours.name):
        raise UsageError(f"opponent {name} was trained in {other.config.env}; allowed: runs of the same game, {env}")
    return Opponent(called, player_of(other, sampled=options.sampled, seed=options.seed + 1))


def pair_fixtures(num_matches: int, num_agents: int, player: int = 0, other: int = 1) -> np.ndarray:
    """[M, A]: matches of two players. `player` is one agent after the other, `other` is all others."""
    agents = np.arange(num_matches)[:, None] % num_agents
    return np.where(agents == np.arange(num_agents), player, other)


def play_matches(
    pool: Pool, makers: Sequence[MakePlayer], fixtures: np.ndarray, device: torch.device, what: str = "matches"
) -> tuple[list[PlayedMatch], int]:
    """Play the matches of `fixtures` [M, A]; those that are over, and the number that were lost and played again.

    Each `recv` waits for all simulators that still play, so results do not depend on timing.
    """
    spec, drawn, over = pool.spec, Fixtures(fixtures, pool.spec.num_envs), []
    players = SeatedPlayers(spec, [make(spec, device) for make in makers], drawn)
    with progress_bar(len(fixtures), what) as show:
        while True:
            batch = pool.recv(min_slots=pool.num_in_flight)
            actions = players.act(batch, on_device=spec.on_device)
            over += players.take_finished(pool.take_episodes())
            if show is not None:
                show(len(over))
            if not drawn.remaining.any():
                return over, players.num_lost
            send_needed(pool, actions, batch, drawn.remaining > 0)


@dataclass(frozen=True)
class MatchResult:
    """One match as one of its players sees it."""

    agent: int
    """Which agent the player was."""
    outcome: int
    """1 for a win, 0 for a draw, -1 for a loss."""
    episode_return: float
    other_return: float
    """The mean of the other agents."""
    length: int
    info: tuple[tuple[str, float], ...] = ()
    """Names and values of the numbers in the last `info` of the player."""
    other_info: tuple[tuple[str, float], ...] = ()
    """The same of the first of the other agents, which all have the same player."""


def result_of(match: PlayedMatch, player: int) -> MatchResult | None:
    """The result of `player`, who was one agent of the match. None if a side never played.

    Agents are compared by their `win` where all of them report it, else by their returns. A win is a score above those
    of all other agents.
    """
    took_part = {agent: played for agent, played in enumerate(match.episodes) if played}
    own = next((agent for agent in took_part if match.policies[agent] == player), None)
    others = [agent for agent in took_part if match.policies[agent] != player]
    if own is None or not others:
        return None
    returns = {agent: sum(episode.episode_return for episode in played) for agent, played in took_part.items()}
    scores = returns
    if all("win" in played[-1].info for played in took_part.values()):
        scores = {agent: sum(episode.info.get("win", 0.0) for episode in p) for agent, p in took_part.items()}
    if not all(map(math.isfinite, [*scores.values(), *returns.values()])):
        raise UsageError(f"a match has no result, because its scores are not finite: {list(scores.values())}")
    best = max(scores[agent] for agent in others)
    return MatchResult(
        agent=own,
        outcome=(scores[own] > best) - (scores[own] < best),
        episode_return=returns[own],
        other_return=sum(returns[agent] for agent in others) / len(others),
        length=sum(episode.length for episode in took_part[own]),
        info=tuple(took_part[own][-1].info.items()),
        other_info=tuple(took_part[others[0]][-1].info.items()),
    )


def wilson_interval(score: float, count: int) -> list[float] | None:
    """95 % interval of a rate: `score` successes, possibly with halves, of `count` trials. None without trials."""
    if count == 0:
        return None
    rate, square = score / count, NORMAL_95**2
    center = (rate + square / (2 * count)) / (1 + square / count)
    half = NORMAL_95 * math.sqrt(rate * (1 - rate) / count + square / (4 * count**2)) / (1 + square / count)
    return [0.0 if score == 0 else center - half, 1.0 if score == count else center + half]


def evaluate_match(folder: Path, opponent: str, options: EvaluationOptions) -> dict[str, Any]:
    """Play matches with a policy of the run in `folder` against `opponent`; what `paceline eval --json` prints."""
    run = SavedRun.load(folder, options.checkpoint, policy=options.policy, trust=options.trust)
    env = options.env or run.env()
    checked_evaluator(env, options)
    other = find_opponent(opponent, run, env, options)
    num_matches = NUM_EPISODES if options.episodes is None else options.episodes
    makers, device = [player_of(run, sampled=options.sampled, seed=options.seed), other.make], run.device()
    with contextlib.closing(open_pool(run, env, num_matches, options, device)) as pool:
        if options.video is not None:
            _film_match(env, makers, options, device)
        agents = pool.spec.agents or tuple(map(str, range(pool.spec.agents_per_env)))
        matches, num_lost = play_matches(pool, makers, pair_fixtures(num_matches, len(agents)), device)
    results = [result for result in (result_of(match, 0) for match in matches) if result is not None]
    return {
        "run": str(folder),
        "checkpoint": run.checkpoint,
        "policy": run.policy_name,
        "opponent": other.name,
        "env": env,
        "seed": options.seed,
        "sampled": options.sampled,
        **summarize(results),
        "by_agent": {name: _counts([r for r in results if r.agent == agent]) for agent, name in enumerate(agents)},
        "lost_matches": num_lost,
        "video": None if options.video is None else str(options.video),
    }


def open_pool(run: SavedRun, env: str, num_matches: int, options: EvaluationOptions, device: torch.device) -> Pool:
    """A pool for matches. Refused if the environment has one agent, or agents that one policy cannot play."""
    at_once = run.config.pool.num_envs if resolve(env).steps_singly else max(BATCHED_ENVS, run.config.pool.num_envs)
    num_envs = options.num_envs or min(at_once, num_matches)
    pool = run.pool(env, num_envs=num_envs, seed=options.seed, device=device)
    spec = pool.spec
    if spec.agents_per_env > 1 and len(spec.kinds) == 1:
        return pool
    pool.close()
    if spec.agents_per_env == 1:
        raise UsageError(f"{env} has one agent, so there are no matches; allowed: environments of several agents")
    kinds = ", ".join(kind.name for kind in spec.kinds)
    raise UsageError(
        f"the agents of {env} have different spaces ({kinds}), so players cannot swap sides; allowed: without "
        "--opponent and --tournament"
    )


def _film_match(env: str, makers: Sequence[MakePlayer], options: EvaluationOptions, device: torch.device) -> None:
    """Film one match. The evaluated policy is the first agent."""
    from paceline.evaluation.video import film_player

    def make(spec: PoolSpec, device: torch.device) -> SeatedPlayers:
        fixtures = Fixtures(pair_fixtures(1, spec.agents_per_env), 1)
        return SeatedPlayers(spec, [maker(spec, device) for maker in makers], fixtures)

    assert options.video is not None
    film_player(make, options.video, env=env, seed=options.seed, device=device)


def _counts(results: Sequence[MatchResult]) -> dict[str, int]:
    outcomes = [result.outcome for result in results]
    return {
        "matches": len(outcomes),
        "wins": outcomes.count(1),
        "draws": outcomes.count(0),
        "losses": outcomes.count(-1),
    }


def summarize(results: Sequence[MatchResult]) -> dict[str, Any]:
    """Statistics over matches, as JSON can hold them."""
    counts = _counts(results)
    score = counts["wins"] + 0.5 * counts["draws"]
    found: dict[str, Any] = {
        **counts,
        "win_rate": score / len(results) if results else None,
        "ci95_win_rate": wilson_interval(score, len(results)),
        "ci95_method": CI_METHOD,
    }
    for name, field in {"return": "episode_return", "opponent_return": "other_return", "length": "length"}.items():
        values = np.array([getattr(result, field) for result in results], np.float64)
        found[f"mean_{name}"] = float(values.mean()) if len(values) else None
        found[f"ci95_{name}"] = confidence_interval(values)
    found |= info_means(dict(result.info) for result in results)
    found |= info_means((dict(result.other_info) for result in results), "opponent_")
    num_agents = len({result.agent for result in results})
    return {**found, "all_alike": len(set(results)) == num_agents < len(results)}


def table(report: dict[str, Any]) -> Group:
    """A result of `evaluate_match` for the terminal."""
    actions = "sampled" if report["sampled"] else "deterministic"
    title = f"{counted(report['matches'], 'match', 'matches')} of {report['env']}, {report['checkpoint']}, {actions}: "
    title += f"policy {report['policy']} against {report['opponent']}"
    rows = Table("", "matches", "wins", "draws", "losses", box=None, header_style="bold", pad_edge=False)
    for name, counts in {"all": report, **{f"as {agent}": c for agent, c in report["by_agent"].items()}}.items():
        rows.add_row(name, *(str(counts[column]) for column in ("matches", "wins", "draws", "losses")))
    lines: list[RenderableType] = [Text(title), rows]
    low, high = report["ci95_win_rate"] or (None, None)
    lines.append(
        Text(
            f"win rate {_percent(report['win_rate'])}, 95 % interval {_percent(low)} to {_percent(high)} "
            f"({report['ci95_method']})"
        )
    )
    returns = f"mean return {shown(report['mean_return'])}, of the opponent {shown(report['mean_opponent_return'])}"
    lines.append(Text(f"{returns}, mean length {shown(report['mean_length'])}"))
    for name, value in report["info"].items():
        lines.append(Text(f"mean {name} {shown(value)}, of the opponent {shown(report['opponent_info'].get(name))}"))
    if report["all_alike"]:
        lines.append(Text("all matches of an agent were the same: try --sampled, because neither side is random"))
    if report["lost_matches"]:
        lost = counted(report["lost_matches"], "match was", "matches were")
        lines.append(Text(f"{lost} lost with the simulator and played again"))
    return Group(*lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
