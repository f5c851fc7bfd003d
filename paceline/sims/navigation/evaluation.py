"""`paceline eval` for PointGoal navigation: learned policies and baselines over the same fixed list of episodes.

The list belongs to the split, not to the run: how many scenes somebody trained on does not change what is played here.
Where actions are sampled, every episode can be played several times; it still counts once, by its mean, so that
intervals are over episodes.

Legend: L episodes of the list, S samples of each, N streams, T decisions of a stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console, Group
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from torch import Tensor

from paceline.envs.ids import EnvId
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.evaluation.evaluate import SEED
from paceline.evaluation.player import Playable
from paceline.evaluation.saved import SavedRun
from paceline.pool.protocol import PoolSpec
from paceline.sims.navigation.bank import SceneBank
from paceline.sims.navigation.baseline_episodes import (
    NUM_RESAMPLES,
    SUMMARIZED,
    Act,
    evaluate_agent,
    fixed_episodes,
    play,
    summarize,
)
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.family import MakeBatch
from paceline.sims.navigation.simulator import PointNav, load_bank

SPLIT = "val"
"""What is played unless something else is asked for."""
NUM_STREAMS = 256
"""At least so many at a time, if there are as many episodes: those that end early cost less than many small batches."""


class Navigator:
    """A policy as an `Act`: by the likeliest actions or by sampled ones. A stream's recurrent state starts from zero
    with each of its episodes, and at no other time."""

    def __init__(self, policy: Playable, num_streams: int, device: torch.device, generator: Any = None) -> None:
        self._policy, self._generator = policy, generator
        self._state = policy.initial_state(num_streams).to(device)

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        state = self._state.masked_fill(began[:, None], 0.0)
        actions, self._state = self._policy.play(obs, state, self._generator)
        return next(iter(actions.values()))


class Recorder:
    """An `Act` that asks another one, and notes where the streams were."""

    def __init__(self, simulator: PointNav, act: Act) -> None:
        self._simulator, self._act = simulator, act
        self._poses: list[Tensor] = []
        self._began: list[Tensor] = []

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        self._poses.append(self._simulator.poses)
        self._began.append(began.clone())
        return self._act(obs, began)

    def routes(self, count: int) -> list[np.ndarray]:
        """[T, 3] each, for the first `count` episodes of the list: the poses (x, y, heading) of all decisions."""
        poses, began = (torch.stack(rows).cpu().numpy() for rows in (self._poses, self._began))
        starts = [np.append(np.flatnonzero(column), len(column)) for column in began.T]
        routes = []
        for number in range(count):
            turn, stream = divmod(number, len(starts))  # see `PointNav.load_episodes`
            routes.append(poses[starts[stream][turn] : starts[stream][turn + 1], stream])
        return routes


@dataclass(frozen=True, kw_only=True)
class Navigated:
    """What came of the episodes of a list."""

    config: PointNavConfig
    bank: SceneBank
    scenes: list[int]
    numbers: list[int]
    """[L]: the episodes' scenes, and their numbers in these scenes."""
    measures: dict[str, np.ndarray]
    """[L] each, means over the samples; named as in `PointNav.last_measures`."""
    routes: list[np.ndarray]
    """Of the first sample of every episode; see `Recorder.routes`."""


def is_navigation(env: str) -> bool:
    return EnvId.parse(env).family == "pointnav"


def evaluate_policy(
    folder: Path,
    *,
    split: str | None = None,
    episodes: int | None = None,
    samples: int = 1,
    sampled: bool = False,
    seed: int = SEED,
    num_envs: int | None = None,
    env: str | None = None,
    checkpoint: str = "latest",
    video: Path | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Play the first `episodes` of the split's list, or all, with the policy of a run; what `--json` prints.

    `env` overrules what the run was trained in, scenes included. With `trust`, classes that the folder names are run.
    """
    _check(episodes=episodes, samples=samples, num_envs=num_envs, seed=seed)
    if samples > 1 and not sampled:
        raise UsageError(f"samples is {samples}, but the likeliest actions are the same every time; allowed: --sampled")
    run = SavedRun.load(folder, checkpoint, trust=trust)
    config = env_config(env, split) if env is not None else split_config(env_config(run.config.env), split)
    if video is not None:
        from paceline.evaluation.video import film

        film(run, video, env=_id_of(config), sampled=sampled, seed=seed)
    done = navigate(run, config, episodes=episodes, samples=samples, sampled=sampled, seed=seed, num_envs=num_envs)
    return {
        "run": str(folder),
        "checkpoint": run.checkpoint,
        "env": env or run.config.env,
        "tier": done.bank.tier,
        "split": config.split,
        "scenes": done.bank.num_scenes,
        "seed": seed,
        "sampled": sampled,
        "samples": samples,
        **summarize(done.measures),
        "video": None if video is None else str(video),
    }


def evaluate_baseline(
    agent: str,
    *,
    env: str = "pointnav",
    split: str | None = None,
    episodes: int | None = None,
    seed: int = SEED,
    num_envs: int | None = None,
) -> dict[str, Any]:
    """The same for an agent that nobody trained."""
    _check(episodes=episodes, num_envs=num_envs, seed=seed)
    if not is_navigation(env):
        raise UsageError(f"agent {agent!r} does not play {env}; allowed: pointnav, pointnav:small, pointnav:full")
    config = env_config(env, split)
    bank = load_bank(config)
    return evaluate_agent(
        agent,
        config.tier,
        config.split,
        episodes or bank.num_scenes * bank.num_episodes,
        num_envs=num_envs or NUM_STREAMS,
        resolution=config.resolution,
        seed=seed,
        bank=bank,
        config=config,
    )


def _check(**numbers: int | None) -> None:
    for name, value in numbers.items():
        least = 0 if name == "seed" else 1
        if value is not None and value < least:
            raise UsageError(f"{name} must be at least {least}, got {value}")


def env_config(env: str, split: str | None = None) -> PointNavConfig:
    """The options of an id; with a split, or that of evaluation where the id names none."""
    make = resolve(env).make
    if not isinstance(make, MakeBatch):
        raise UsageError(f"{env} is no PointGoal navigation; allowed: pointnav, pointnav:small, pointnav:full")
    named = EnvId.parse(env).options.get("split", SPLIT)
    return replace(make.config, split=split or named)


def _id_of(config: PointNavConfig) -> str:
    """The id of these options."""
    usual = asdict(PointNavConfig())
    return str(EnvId("pointnav", "", {name: value for name, value in asdict(config).items() if value != usual[name]}))


def split_config(config: PointNavConfig, split: str | None = None) -> PointNavConfig:
    """Tier, sensors and all else as in training, but the scenes of a split that everybody is evaluated on."""
    usual = PointNavConfig()
    if config.bank_file:  # then the file says what kind of scenes they are
        config = replace(config, tier=load_bank(config).tier)
    return replace(
        config, split=split or SPLIT, scenes=usual.scenes, bank_seed=usual.bank_seed, bank_file=usual.bank_file
    )


def navigate(
    run: SavedRun,
    config: PointNavConfig,
    *,
    episodes: int | None = None,
    samples: int = 1,
    sampled: bool = False,
    seed: int = SEED,
    num_envs: int | None = None,
) -> Navigated:
    """Play the first `episodes` of the list that `config` names, or all of them, `samples` times each."""
    device = run.device()
    bank = load_bank(config)
    scenes, numbers = fixed_episodes(bank, bank.num_scenes * bank.num_episodes if episodes is None else episodes)
    streams = num_envs or max(run.config.pool.num_envs, NUM_STREAMS)
    simulator = PointNav(min(streams, samples * len(scenes)), device, config, bank=bank)
    spec = PoolSpec(
        observation_space=simulator.observation_space,
        action_space=simulator.action_space,
        num_envs=simulator.num_envs,
    )
    generator = torch.Generator(device).manual_seed(seed) if sampled else None
    navigator = Navigator(run.policy(spec, device), simulator.num_envs, device, generator)
    recorder = Recorder(simulator, navigator.act)
    with _watched(recorder.act, samples * len(scenes)) as act:
        played = play(simulator, act, scenes * samples, numbers * samples)
    measures = {name: values.reshape(samples, -1).mean(0) for name, values in played.items()}
    return Navigated(
        config=config,
        bank=bank,
        scenes=scenes,
        numbers=numbers,
        measures=measures,
        routes=recorder.routes(len(scenes)),
    )


@contextlib.contextmanager
def _watched(act: Act, num_episodes: int) -> Iterator[Act]:
    """`act`, with a bar on stderr while this lasts if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("episodes", total=num_episodes)
        if not console.is_terminal:
            yield act  # counting would wait for the device
            return

        def watched(obs: dict[str, Tensor], began: Tensor) -> Tensor:
            progress.update(task, advance=int(began.sum()))
            return act(obs, began)

        yield watched


def for_people(report: dict[str, Any]) -> Group:
    """A report as a few lines of text and two tables."""
    who = report.get("agent") or f"{report['checkpoint']}, {'sampled' if report['sampled'] else 'deterministic'}"
    times = f", {report['samples']} samples each" if report.get("samples", 1) > 1 else ""
    where = f"{report['split']} ({report['tier']}, {report['scenes']} scenes)"
    title = f"{report['episodes']} episodes of {where}{times}: {who}"
    measures = Table("", "mean", "95 % interval", box=None, header_style="bold", pad_edge=False)
    for name in SUMMARIZED:
        low, high = report[f"{name}_ci95"]
        measures.add_row(name.replace("_", " "), f"{report[name]:.3f}", f"{low:.3f} to {high:.3f}")
    columns: tuple[str, ...] = ("distance", "episodes", *(name.replace("_", " ") for name in SUMMARIZED))
    distances = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for part in report["by_distance"]:
        values = [f"{part[name]:.3f}" for name in SUMMARIZED]
        distances.add_row(f"{part['from']:g} to {part['to']:g} m", str(part["episodes"]), *values)
    method = f"intervals of the mean by percentile bootstrap over episodes, {NUM_RESAMPLES} resamples"
    return Group(Text(title), measures, Text(method), Text(""), distances)
