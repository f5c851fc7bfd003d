"""`paceline eval`: how well a trained policy does, from a fixed number of whole episodes.

Which episodes count is decided before the first is played: every slot contributes its first few. Taking the first N to
finish, whoever plays them, would favour short ones, and with them the failures of one task and the successes of
another.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from torch import Tensor

from paceline.errors import UsageError
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.pool.protocol import Episode, Pool, StepBatch

SEED = 1_000_000
"""The same for all runs, so that they are compared in the same episodes, and far from the seeds of training."""
NUM_RESAMPLES = 2000
CI_METHOD = f"percentile bootstrap, {NUM_RESAMPLES} resamples"


@dataclass(frozen=True)
class Played:
    """The episodes that count, in the order of slots and then of time, whichever order they ended in."""

    episodes: list[Episode]
    num_lost: int
    """Episodes that would have counted, but whose simulator was lost; their slots played others instead."""


def evaluate(
    folder: Path,
    *,
    episodes: int = 100,
    checkpoint: str = "latest",
    sampled: bool = False,
    seed: int = SEED,
    num_envs: int | None = None,
    env: str | None = None,
    video: Path | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Play `episodes` episodes with the policy of the run in `folder`; what `paceline eval --json` prints.

    With `trust`, the environment that the folder names is run even if somebody else wrote the folder; `env` is the caller's own choice.
    """
    for name, value, least in (("episodes", episodes, 1), ("num_envs", num_envs, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise UsageError(f"{name} must be at least {least}, got {value}")
    run = SavedRun.load(folder, checkpoint, trust=trust)
    env = env or run.env()
    if video is not None:
        from paceline.evaluation.video import film

        film(run, video, env=env, sampled=sampled, seed=seed)  # first, as it may turn out to be impossible
    device = run.device()
    pool = run.pool(env, num_envs=num_envs or min(run.config.pool.num_envs, episodes), seed=seed, device=device)
    with contextlib.closing(pool):
        policy = run.policy(pool.spec, device)
        player = Player(policy, pool.spec.num_slots, device, sampled=sampled, seed=seed)
        with _progress(episodes) as show:
            played = play(pool, player, episodes, show)
    return {
        "run": str(folder),
        "checkpoint": run.checkpoint,
        "env": env,
        "seed": seed,
        "sampled": sampled,
        **summarize(played.episodes),
        "lost_episodes": played.num_lost,
        "video": None if video is None else str(video),
    }


@contextlib.contextmanager
def _progress(num_episodes: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while this lasts, if that is a terminal; called with the number of episodes done."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("episodes", total=num_episodes)
        yield lambda done: progress.update(task, completed=done)


def play(pool: Pool, player: Player, num_episodes: int, show: Callable[[int], None] | None = None) -> Played:
    """Play until every slot has contributed its share of `num_episodes`; what fast slots play beyond it is ignored.

    All simulators still needed are waited for: the batches, and with them the results, then do not depend on timing.
    """
    remaining = quotas(num_episodes, pool.spec.num_slots)
    finished: list[list[Episode]] = [[] for _ in remaining]
    num_lost, in_flight = 0, pool.spec.num_slots
    while True:
        batch = pool.recv(min_slots=in_flight)
        num_lost += int((_host(batch.lost) & (remaining[_host(batch.slots)] > 0)).sum())
        for episode in pool.take_episodes():
            if remaining[episode.slot]:
                remaining[episode.slot] -= 1
                finished[episode.slot].append(episode)
                if show is not None:
                    show(num_episodes - int(remaining.sum()))
        if not remaining.any():
            return Played([episode for slot in finished for episode in slot], num_lost)
        in_flight = _send_needed(pool, player, batch, remaining)


def quotas(num_episodes: int, num_slots: int) -> np.ndarray:
    """[num_slots]: how many episodes each slot contributes; they differ by at most one."""
    return num_episodes // num_slots + (np.arange(num_slots) < num_episodes % num_slots)


def _send_needed(pool: Pool, player: Player, batch: StepBatch, remaining: np.ndarray) -> int:
    """Let those environments go on that have slots with `remaining` episodes; how many slots that are."""
    actions = player.act(batch)
    if not isinstance(batch.slots, Tensor):  # simulators on a device only step together
        needed = np.repeat(remaining.reshape(pool.spec.num_envs, -1).any(1), pool.spec.agents_per_env)[batch.slots]
        if not needed.all():
            pool.send({name: values[needed] for name, values in actions.items()}, batch.slots[needed])
            return int(needed.sum())
    pool.send(actions, batch.slots)
    return len(batch)


def _host(values: Any) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def summarize(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Statistics of episodes that weigh the same each, as JSON can hold them."""
    info: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.info.items():
            info.setdefault(name, []).append(value)
    return {
        "episodes": len(episodes),
        **_statistics("return", [episode.episode_return for episode in episodes]),
        **_statistics("length", [episode.length for episode in episodes]),
        "ci95_method": CI_METHOD,
        # Of the episodes that have it: an Atari game's score, for one, is known only where the game was over.
        "info": {name: _number(np.mean(values)) for name, values in sorted(info.items())},
    }


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
    """95 % interval of the mean, by the percentile bootstrap: returns are rarely normal. One number says nothing.

    The resamples are the same in every call, so that a report is reproducible.
    """
    if len(data) < 2:
        return None
    generator = np.random.default_rng(0)
    means = [data[generator.integers(len(data), size=len(data))].mean() for _ in range(NUM_RESAMPLES)]
    return [float(bound) for bound in np.percentile(means, [2.5, 97.5])]


def _number(value: Any) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None


def for_people(report: dict[str, Any]) -> Group:
    """A report as a few lines of text and a table."""
    actions = "sampled" if report["sampled"] else "deterministic"
    title = f"{report['episodes']} episodes of {report['env']}, {report['checkpoint']}, {actions}"
    columns = ("", "mean", "95 % interval", "std", "min", "median", "max")
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for name in ("return", "length"):
        interval = report[f"ci95_{name}"]
        rest = [_shown(report[f"{statistic}_{name}"]) for statistic in ("std", "min", "median", "max")]
        shown = f"{_shown(interval[0])} to {_shown(interval[1])}" if interval else "-"
        table.add_row(name, _shown(report[f"mean_{name}"]), shown, *rest)
    for name, value in report["info"].items():
        table.add_row(name, _shown(value))
    lines: list[RenderableType] = [Text(title), table, Text(f"intervals of the mean by {report['ci95_method']}")]
    if report["lost_episodes"]:
        lines.append(Text(f"{report['lost_episodes']} episodes were lost with their simulators; others were played"))
    return Group(*lines)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
