"""Evaluation of a trained policy by the returns of a fixed number of whole episodes.

Every slot contributes its first few episodes, so it is known in advance which episodes count. Counting the first N
that end would favour short episodes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from paceline.evaluation.evaluators import EvaluationOptions, Evaluator, checked_evaluator
from paceline.evaluation.saved import SavedRun, run_config
from paceline.evaluation.seated_players import Acts, make_player, quotas
from paceline.pool.protocol import Episode, Pool, PoolSpec, StepBatch
from paceline.wording import counted

log = logging.getLogger(__name__)

NUM_EPISODES = 100
NUM_RESAMPLES = 2000
CI_METHOD = f"percentile bootstrap, {NUM_RESAMPLES} resamples"
PATIENCE_SECONDS = 60.0
"""If no episode has ended after this time, a warning says that it may never happen."""


def evaluate(folder: Path, **options: Any) -> dict[str, Any]:
    """Evaluate the policy of the run in `folder`; what `paceline eval --json` prints.

    Keyword arguments are the fields of `EvaluationOptions`.
    """
    chosen = EvaluationOptions(**options)
    evaluator = checked_evaluator(chosen.env or run_config(folder).env, chosen)
    return evaluator.evaluate_policy(folder, chosen)


def evaluate_policy(folder: Path, options: EvaluationOptions) -> dict[str, Any]:
    """Play episodes with the policy of the run in `folder`."""
    run = SavedRun.load(folder, options.checkpoint, policy=options.policy, trust=options.trust)
    env = options.env or run.env()  # `options.env` is the user's own choice and needs no trust
    if options.video is not None:
        from paceline.evaluation.video import film

        film(run, options.video, env=env, sampled=options.sampled, seed=options.seed)  # first, because it may fail
    num_episodes = NUM_EPISODES if options.episodes is None else options.episodes
    num_envs = options.num_envs or min(run.config.pool.num_envs, num_episodes)
    device = run.device()
    with contextlib.closing(run.pool(env, num_envs=num_envs, seed=options.seed, device=device)) as pool:
        spec = pool.spec
        player = make_player(run, spec, device, sampled=options.sampled, seed=options.seed)
        with progress_bar(num_episodes) as show:
            played = play(pool, player, num_episodes, show)
    return {
        "run": str(folder),
        "checkpoint": run.checkpoint,
        "policy": run.policy_name,
        "policies": run.num_policies,
        "env": env,
        "seed": options.seed,
        "sampled": options.sampled,
        **summarize(played.episodes),
        "agents": spec.agents_per_env,
        "games": num_games(num_episodes, spec),
        **({"kinds": _by_kind(run, spec, played.episodes)} if len(spec.kinds) > 1 else {}),
        "lost_episodes": played.num_lost,
        "video": None if options.video is None else str(options.video),
    }


@contextlib.contextmanager
def progress_bar(num_episodes: int, what: str = "episodes") -> Iterator[Callable[[int], None] | None]:
    """A progress bar on stderr: a function to call with the number that are finished. None without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(what, total=num_episodes)
        yield lambda done: progress.update(task, completed=done)


@dataclass(frozen=True)
class Played:
    """The episodes that count, ordered by slot and then by time."""

    episodes: list[Episode]
    num_lost: int
    """Episodes that ended with a failure of their simulator. Their slots played others instead."""


def play(pool: Pool, player: Acts, num_episodes: int, show: Callable[[int], None] | None = None) -> Played:
    """Play until every slot has finished its share of `num_episodes`. Further episodes of fast slots are ignored.

    Each `recv` waits for all simulators that still play, so batches and results do not depend on timing.
    """
    remaining = quotas(num_episodes, pool.spec.num_slots)
    games = GamesToPlay(pool.spec, remaining)
    wanted = remaining.reshape(pool.spec.num_envs, -1).sum(0).tolist()
    finished: list[list[Episode]] = [[] for _ in remaining]
    num_lost = 0
    patience_ends = time.monotonic() + PATIENCE_SECONDS
    while True:
        batch = pool.recv(min_slots=pool.num_in_flight)
        lost, slots = (values.cpu().numpy() if pool.spec.on_device else values for values in (batch.lost, batch.slots))
        num_lost += int((lost & (remaining[slots] > 0)).sum())
        for episode in pool.take_episodes():
            if remaining[episode.slot]:
                remaining[episode.slot] -= 1
                finished[episode.slot].append(episode)
                if show is not None:
                    show(num_episodes - int(remaining.sum()))
        absent = [slot for slot in games.slots_without(batch).tolist() if not finished[slot]]
        remaining[absent] = 0
        if show is not None and absent:
            show(num_episodes - int(remaining.sum()))
        if not remaining.any():
            _warn_of_absent_agents(pool.spec, wanted, finished)
            return Played([episode for slot in finished for episode in slot], num_lost)
        if time.monotonic() > patience_ends:
            patience_ends = math.inf
            if not any(finished):
                _warn_of_endless_episodes()
        actions = player.act(batch, on_device=pool.spec.on_device)
        send_needed(pool, actions, batch, remaining.reshape(pool.spec.num_envs, -1).max(1) > 0)


class GamesToPlay:
    """Counts the games of every environment, where the pool numbers them. An agent may play in none of them."""

    def __init__(self, spec: PoolSpec, quotas: np.ndarray) -> None:
        """`quotas` [N]: how many episodes each slot should play."""
        self._agents = spec.agents_per_env
        self._games = quotas.reshape(spec.num_envs, -1).max(1)
        self._first = np.full(spec.num_envs, -1)
        """[E]: the number of the first game that counts."""

    def slots_without(self, batch: StepBatch) -> np.ndarray:
        """The slots whose environments have played as many games as their agents should play episodes."""
        if batch.episode is None or self._agents == 1:
            return np.zeros(0, np.int64)
        envs, rows = np.unique(batch.slots // self._agents, return_index=True)
        numbers = batch.episode[rows]
        self._first[envs] = np.where(self._first[envs] < 0, numbers, self._first[envs])
        self._first[np.unique(batch.slots[batch.lost] // self._agents)] += 1  # a lost game is played again
        over = envs[numbers - self._first[envs] >= self._games[envs]]
        return (over[:, None] * self._agents + np.arange(self._agents)).ravel()


def _warn_of_absent_agents(spec: PoolSpec, wanted: list[int], finished: Sequence[Sequence[Episode]]) -> None:
    """`wanted` are the episodes that each agent should have played."""
    counts = np.array([len(episodes) for episodes in finished]).reshape(spec.num_envs, -1).sum(0)
    names = spec.agents or tuple(map(str, range(spec.agents_per_env)))
    absent = [name for name, count, of in zip(names, counts.tolist(), wanted, strict=True) if of and not count]
    if absent:
        log.warning("agents that played in no game: %s", ", ".join(absent))


def _warn_of_endless_episodes() -> None:
    log.warning(
        "no episode has ended in %.0f s of evaluation; with this policy the environment may never end one: it needs a "
        "time limit (truncated)",
        PATIENCE_SECONDS,
    )


def num_games(num_episodes: int, spec: PoolSpec) -> int:
    """Games in which agents play `num_episodes` episodes: all agents of an environment play the same games."""
    return int(quotas(num_episodes, spec.num_slots).reshape(spec.num_envs, -1).max(1).sum())


def send_needed(pool: Pool, actions: dict[str, Any], batch: StepBatch, needed: np.ndarray) -> None:
    """Step the environments that are `needed` (bool [num_envs])."""
    if not pool.spec.on_device:  # simulators on a device only step together
        rows = np.repeat(needed, pool.spec.agents_per_env)[batch.slots]
        if not rows.all():
            pool.send({name: values[rows] for name, values in actions.items()}, batch.slots[rows])
            return
    pool.send(actions, batch.slots)


def summarize(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Statistics over episodes, as JSON can hold them."""
    return {
        "episodes": len(episodes),
        **_statistics("return", [episode.episode_return for episode in episodes]),
        **_statistics("length", [episode.length for episode in episodes]),
        "ci95_method": CI_METHOD,
        **info_means([episode.info for episode in episodes]),
    }


def info_means(infos: Iterable[Mapping[str, float]], prefix: str = "") -> dict[str, Any]:
    """Means of the numbers in last `info`s, and their intervals, over the episodes that have the number: for example,
    Atari scores exist only at the end of a game."""
    found: dict[str, list[float]] = {}
    for info in infos:
        for name, value in info.items():
            found.setdefault(name, []).append(value)
    values = {name: np.asarray(found[name], np.float64) for name in sorted(found)}
    return {
        f"{prefix}info": {name: _number(data.mean()) for name, data in values.items()},
        f"ci95_{prefix}info": {
            name: confidence_interval(data) if np.isfinite(data).all() else None for name, data in values.items()
        },
    }


def _by_kind(run: SavedRun, spec: PoolSpec, episodes: Sequence[Episode]) -> dict[str, dict[str, Any]]:
    """By kind of agents: who played it, and how well."""
    found = {}
    for member, kind in zip(run.team(spec), spec.kinds, strict=True):
        returns = [e.episode_return for e in episodes if e.slot % spec.agents_per_env in kind.agents]
        mean = _number(np.mean(returns)) if returns else None
        found[kind.name] = {"policy": member.policy_name, "episodes": len(returns), "mean_return": mean}
    return found


def _statistics(name: str, values: Sequence[float]) -> dict[str, Any]:
    data = np.asarray(values, np.float64)
    return {
        f"mean_{name}": _number(data.mean()),
        f"std_{name}": _number(data.std(ddof=1)) if len(data) > 1 else None,
        f"ci95_{name}": confidence_interval(data),
        f"min_{name}": _number(data.min()),
        f"median_{name}": _number(np.median(data)),
        f"max_{name}": _number(data.max()),
    }


def confidence_interval(data: np.ndarray) -> list[float] | None:
    """95 % interval of the mean by the percentile bootstrap, because returns are rarely normal; None for one number.

    Every call draws the same resamples, so reports are reproducible. `scipy.stats.bootstrap` computes the same. It is
    not used, because SciPy would be a dependency of every installation for these three lines.
    """
    if len(data) < 2:
        return None
    generator = np.random.default_rng(0)
    means = [data[generator.integers(len(data), size=len(data))].mean() for _ in range(NUM_RESAMPLES)]
    return [float(bound) for bound in np.percentile(means, [2.5, 97.5])]


def _number(value: Any) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None


def table(report: dict[str, Any]) -> Group:
    """A result of `evaluate_policy` for the terminal."""
    actions = "sampled" if report["sampled"] else "deterministic"
    who = f", policy {report['policy']}" if report["policies"] > 1 or "@" in report["policy"] else ""
    title = f"{counted(report['episodes'], 'episode')} of {report['env']}, {report['checkpoint']}{who}, {actions}"
    if report["agents"] > 1:
        agents = f"of {report['agents']} agents"
        games = counted(report["games"], f"game {agents} was", f"games {agents} were")
        title += f"; an episode is one agent's, and {games} played"
    columns = ("", "mean", "95 % interval", "std", "min", "median", "max")
    rows = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for name in ("return", "length"):
        rest = [shown(report[f"{statistic}_{name}"]) for statistic in ("std", "min", "median", "max")]
        rows.add_row(name, shown(report[f"mean_{name}"]), _bounds(report[f"ci95_{name}"]), *rest)
    for name, value in report["info"].items():
        rows.add_row(name, shown(value), _bounds(report["ci95_info"][name]))
    for name, kind in report.get("kinds", {}).items():
        rows.add_row(f"return of {name}, policy {kind['policy']}", shown(kind["mean_return"]))
    lines: list[RenderableType] = [Text(title), rows, Text(f"intervals of the mean by {report['ci95_method']}")]
    if report["lost_episodes"]:
        lost = counted(report["lost_episodes"], "episode was", "episodes were")
        lines.append(Text(f"{lost} lost with the simulator; others were played"))
    return Group(*lines)


def _bounds(interval: list[float] | None) -> str:
    return f"{shown(interval[0])} to {shown(interval[1])}" if interval else "-"


def shown(value: float | None) -> str:
    """A number in a table."""
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


EVALUATOR = Evaluator(evaluate_policy=evaluate_policy, table=table)
