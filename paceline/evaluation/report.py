"""`paceline report`: one HTML file about a run, from its configuration, its metrics and what its simulator adds.

A population of whole runs has a report too, about what became of its members. So have several runs side by side, and
the baselines of some simulators.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from paceline import __version__
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation import charts, experience, population_report, report_film, report_page
from paceline.evaluation.comparison import comparison
from paceline.evaluation.evaluators import EVALUATORS, Evaluator, evaluator_of
from paceline.evaluation.history import History
from paceline.evaluation.report_page import Tile
from paceline.evaluation.report_words import capitalized, duration, label_of, settings_in_words
from paceline.evaluation.saved import run_config
from paceline.files import replace_text
from paceline.pool.config import available_core_ids
from paceline.population.folders import member_folders

COUNTED = ("step", "frames", "seconds", "sps", "fps")
"""Metrics without a small chart: they are axes, tiles or large charts."""
LABELS = {"approx_kl": "approximate KL", "grad_norm": "gradient norm", "length": "episode length"}


def write_report(
    folder: Path,
    *,
    others: Sequence[Path] = (),
    metric: str | None = None,
    evaluate_episodes: int | None = None,
    output: Path | None = None,
    trust: bool = False,
) -> Path:
    """Write the report of the run in `folder` to `output`, by default report.html in `folder`; the file's path.

    `folder` may also be that of a population of whole runs. A simulator that adds sections to the report of a run plays
    `evaluate_episodes` episodes for them, by default `REPORT_EPISODES`. With `others` the report compares all runs by
    `metric`, and its file is comparison.html in `folder`. `trust` shows an episode also if
    another user wrote the run.
    """
    path = output or folder / ("comparison.html" if others else "report.html")
    members = member_folders(folder)
    config = run_config(members[0] if members else folder)
    if members and others:
        raise UsageError(f"{folder} is a population, which has a report of its own; allowed: several runs, or it alone")
    if metric is not None and not others:
        raise UsageError("--metric is for a report of several runs; the report of one run shows all metrics")
    _check(path, evaluate_episodes)
    title, about = config.env, f"{folder.resolve().name}: {_about(config)}."
    if others:
        kind, body = "comparison of runs", comparison([folder, *others], metric)
        about = f"{1 + len(others)} runs. `paceline report RUN` shows one of them in detail."
        title = " and ".join(dict.fromkeys(run_config(run).env for run in (folder, *others)))
    elif members:
        kind, body = f"population of {len(members)} {config.system} runs", _population(members, config)
    else:
        kind, body = f"{config.system} training run", _run(folder, config, evaluate_episodes, trust=trust)
    return _write(path, title, kind, about, body)


def write_baseline_report(agent: str, env: str, path: Path, *, episodes: int | None = None) -> Path:
    """Write what the simulator of `env` shows of a baseline to `path`; the file's path."""
    evaluator = evaluator_of(env)
    if evaluator.report_baseline is None:
        families = [family for family in EVALUATORS if evaluator_of(family).report_baseline is not None]
        raise UsageError(f"--agent has no report in {env}; allowed: environments of {', '.join(families)}")
    if agent not in evaluator.baselines:
        raise UsageError(f"agent {agent!r} does not play {env}; allowed: {', '.join(evaluator.baselines)}")
    _check(path, episodes)
    part = evaluator.report_baseline(agent, env, episodes)
    body = report_page.tiles(part.tiles) + "".join(part.sections)
    return _write(path, env, "baseline", f"{agent}, an agent without training.", body)


def _check(path: Path, episodes: int | None) -> None:
    if episodes is not None and episodes < 1:
        raise UsageError(f"episodes must be at least 1, got {episodes}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"output {str(path)!r}: the folder {path.absolute().parent} does not exist")


def _write(path: Path, title: str, kind: str, about: str, body: str) -> Path:
    footer = (
        f"Written on {time.strftime('%Y-%m-%d %H:%M')} by paceline {__version__}, PyTorch {torch.__version__} "
        f"and Python {platform.python_version()} on {_machine()}."
    )
    replace_text(path, report_page.page(title=title, kind=kind, about=about, body=body, footer=footer))
    return path


def _run(folder: Path, config: Config, episodes: int | None, *, trust: bool) -> str:
    """Tiles and sections of one run."""
    history, evaluator = History.load(folder), evaluator_of(config.env)
    tiles = _tiles(config, history)
    sections = [_learning(history, evaluator), _experience(history, evaluator)]
    sections += [_speed(history), _optimisation(history), _configuration(config)]
    data = population_report.data_of_run(folder, config, history)
    if data is not None:
        sections.insert(1, population_report.section(data))
    if (folder / "checkpoints" / "latest").exists():
        if evaluator.report is None:
            sections.insert(1, report_film.section(folder, config, history, trust=trust))
        else:
            part = evaluator.report(folder, episodes)
            tiles, sections = [*part.tiles, *tiles], [*part.sections, *sections]
    return report_page.tiles(tiles) + "".join(sections)


def _population(members: Sequence[Path], config: Config) -> str:
    """Tiles and sections of a population of whole runs. The configuration is that of the first member."""
    data = population_report.data_of_runs(members, config)
    latest = {name: y[np.isfinite(y)][-1] for name, (_, y) in data.results.items()}
    tiles = [Tile("Members", str(len(members)), f"{charts.short(data.end)} steps of {charts.short(config.steps)} each")]
    if latest:
        best = max(latest, key=lambda name: latest[name])
        tiles.append(Tile(f"Best {data.objective}", charts.short(latest[best]), best, is_main=True))
    rounds = [event.change for event in data.events]
    taken = sum(change.donor is not None for change in rounds)
    tiles.append(Tile("Weights taken over", str(taken), f"in {len(rounds)} rounds of members"))
    return report_page.tiles(tiles) + population_report.section(data) + _configuration(config)


def _about(config: Config) -> str:
    """The run in one line."""
    core, default = config.policy.core, Config().policy
    kind = core.kind if ":" in core.kind else core.kind.upper()
    memory = "no memory" if core.kind == "none" else f"{kind} of {core.layers} x {core.hidden}"
    memory = f"policy {config.policy.kind}" if config.policy.is_own else memory
    where = "" if config.device == "auto" else f", trained on {config.device}"
    encoder = "" if config.policy.encoder == default.encoder else f"{config.policy.encoder} encoder, "
    return (
        f"{config.pool.num_envs} environments of {config.rollout_steps} steps a rollout, {encoder}{memory}, "
        f"seed {config.seed}{where}"
    )


def _machine() -> str:
    cores = f"{platform.system()} {platform.machine()}, {len(available_core_ids())} cores"
    return f"{cores}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else cores


def _tiles(config: Config, history: History) -> list[Tile]:
    steps, seconds = history.last("step") or 0.0, history.last("seconds") or 0.0
    tiles = [
        Tile("Agent steps", charts.short(steps), f"of {charts.short(config.steps)} asked for"),
        Tile("Training time", duration(seconds), f"{steps / max(seconds, 1e-9):,.0f} steps a second"),
    ]
    last = history.last("episode_return")
    if last is not None:
        tiles.append(Tile("Episode return", charts.short(last), "in training, at the end"))
    length = history.last("episode_length")
    if length is not None:
        tiles.append(Tile("Episode length", f"{length:,.1f}", "steps, at the end"))
    return tiles


def _learning(history: History, evaluator: Evaluator) -> str:
    rates = {name: label_of(name, evaluator.labels) for name in evaluator.rates if history.has(f"episode_{name}")}
    figures = []
    if rates:
        heading = f"{capitalized(' and '.join(rates.values()))} in training"
        series = {label: history.columns[f"episode_{name}"] for name, label in rates.items()}
        figures += _over_steps_and_time(history, heading, series, (0.0, 1.0))
    if history.has("episode_return"):
        figures += _over_steps_and_time(history, "Episode return", {"return": history.columns["episode_return"]})
    if not figures:
        return report_page.section("learning", "Learning", "No episode has ended in this run.")
    lead = "Means over the latest episodes of training, in which actions are sampled."
    own = {f"episode_{name}" for name in ("return", *evaluator.rates)}
    others = [name for name in history.columns if name.startswith("episode_") and name not in own]
    small = _small_charts(history, others, evaluator.labels)
    return report_page.section("learning", "Learning", lead, report_page.grid(figures), small)


def _experience(history: History, evaluator: Evaluator) -> str:
    """The last rate of the evaluator that the run has. A return has no such section: its curve is shown already."""
    rates = [name for name in evaluator.rates if history.has(f"episode_{name}")]
    if not rates:
        return ""
    return experience.section({"run": [history]}, f"episode_{rates[-1]}", label_of(rates[-1], evaluator.labels))


def _over_steps_and_time(
    history: History, heading: str, series: dict[str, np.ndarray], limits: tuple[float, float] | None = None
) -> list[str]:
    """Two figures of the same curves."""
    figures = []
    axes = {"steps": (history.columns["step"], "agent steps")}
    if history.has("seconds"):
        axes["time"] = _time(history)
    for over, (x, x_label) in axes.items():
        uri = charts.curves(x, series, x_label=x_label, limits=limits)
        figures.append(report_page.figure(uri, f"{heading} over {over}", heading=f"{heading} over {over}"))
    return figures


def _time(history: History) -> tuple[np.ndarray, str]:
    """Training time in a readable unit, and its label."""
    seconds = history.columns["seconds"]
    unit, label = (
        (1.0, "seconds") if seconds[-1] < 180 else (60.0, "minutes") if seconds[-1] < 10800 else (3600.0, "hours")
    )
    return seconds / unit, f"{label} of training"


def _speed(history: History) -> str:
    x, x_label = _time(history) if history.has("seconds") else (history.columns["step"], "agent steps")
    figures = []
    if history.has("sps"):
        series = {"steps a second": history.columns["sps"]}
        top = 1.08 * float(np.nanmax(history.columns["sps"]))
        uri = charts.curves(x, series, x_label=x_label, limits=(0.0, max(top, 1e-9)))
        figures.append(report_page.figure(uri, "Throughput over time", heading="Agent steps trained on, a second"))
    parts = {name.removeprefix("time/"): history.columns[name] for name in history.columns if name.startswith("time/")}
    parts = {name: values for name, values in parts.items() if np.nanmax(values, initial=0.0) >= 0.005}
    if parts:
        uri = charts.shares(x, parts, x_label=x_label)
        figures.append(report_page.figure(uri, "Shares of time, stacked", heading="Where the time goes"))
    return report_page.section("speed", "Speed", _slowest(history), report_page.grid(figures))


def _slowest(history: History) -> str:
    """A sentence about the phase that takes most of the time."""
    shares = {name: np.nanmean(values) for name, values in history.columns.items() if name.startswith("time/")}
    if not shares:
        return ""
    name = max(shares, key=lambda key: float(shares[key]))
    return f"Most of the time, {shares[name]:.0%}, goes into {name.removeprefix('time/')}."


def _optimisation(history: History) -> str:
    """All other metrics."""
    shown_elsewhere = ("time/", "episode_")
    names = [name for name in history.columns if name not in COUNTED and not name.startswith(shown_elsewhere)]
    names = [name for name in names if not population_report.is_of_policies(name)]
    return report_page.section("optimisation", "Optimisation", "", _small_charts(history, names, {}))


def _small_charts(history: History, names: Iterable[str], labels: Mapping[str, str]) -> str:
    """A small chart of each metric that is not always zero."""
    figures = []
    for name in names:
        if history.has(name) and np.nan_to_num(history.columns[name]).any():
            label = label_of(name.removeprefix("episode_"), {**LABELS, **labels})
            values = {label: history.columns[name]}
            uri = charts.curves(history.columns["step"], values, x_label="agent steps", size=charts.SMALL)
            figures.append(report_page.figure(uri, f"{label} over steps", heading=capitalized(label)))
    return report_page.grid(figures, "13.5rem") if figures else ""


def _configuration(config: Config) -> str:
    """The settings that differ from the defaults, and all settings, folded at first."""
    values, usual = settings_in_words(config), settings_in_words(Config())
    changed = {name: value for name, value in values.items() if usual.get(name) != value}
    return report_page.section(
        "configuration",
        "Configuration",
        "What differs from the defaults.",
        report_page.facts(changed),
        report_page.config_table(values, changed),
    )
