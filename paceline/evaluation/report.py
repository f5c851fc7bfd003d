"""`paceline report`: all that is known of a run as one HTML file that needs nothing else.

What is in it comes from the run's folder: the configuration, the metrics and, for PointGoal navigation, episodes that
the latest checkpoint plays for the purpose. `charts` draws, `report_page` is the HTML, `report_navigation` the part
that only navigation has.
"""

from __future__ import annotations

import dataclasses
import math
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline import __version__
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation import charts, report_page
from paceline.evaluation.history import History
from paceline.evaluation.report_page import Tile
from paceline.files import replace_text
from paceline.pool.config import available_core_ids
from paceline.sims.navigation.evaluation import is_navigation

RATES = {"episode_success": "success", "episode_spl": "SPL"}
"""What is a share, and drawn together from 0 to 1."""
COUNTED = ("step", "frames", "seconds", "sps", "fps", "episode_return", *RATES)
"""What has charts of its own, or none."""
NAMES = {
    "approx_kl": "approximate KL",
    "grad_norm": "gradient norm",
    "soft_spl": "SoftSPL",
    "length": "episode length",
}


def write_report(folder: Path, *, evaluate_episodes: int = 200, output: Path | None = None) -> Path:
    """Write the report of the run in `folder` to `output`, by default its report.html; the file's path.

    Of a PointGoal navigation run, that many episodes of the val split are played.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is not the folder of a run: there is no config.json in it")
    if evaluate_episodes < 1:
        raise UsageError(f"episodes must be at least 1, got {evaluate_episodes}")
    path = output or folder / "report.html"
    if not path.absolute().parent.is_dir():
        raise UsageError(f"output {str(path)!r}: the folder {path.absolute().parent} does not exist")
    config, history = Config.load(folder / "config.json"), History.load(folder)
    text = _page(folder, config, history, evaluate_episodes)
    replace_text(path, text)  # a reader who reloads the page meanwhile sees the old one
    return path


def _page(folder: Path, config: Config, history: History, evaluate_episodes: int) -> str:
    shown = _tiles(config, history)
    sections = [_learning(history), _speed(history), _optimisation(history), _configuration(config)]
    if is_navigation(config.env) and (folder / "checkpoints" / "latest").exists():
        from paceline.sims.navigation.report import navigation

        found = navigation(folder, evaluate_episodes)
        shown, sections = [*found.tiles, *shown], [*found.sections, *sections]
    return report_page.page(
        title=config.env,
        kind=f"{config.system} training run",
        about=f"{folder.resolve().name}: {_about(config)}.",
        body=report_page.tiles(shown) + "".join(sections),
        footer=f"Written on {time.strftime('%Y-%m-%d %H:%M')} by paceline {__version__}, PyTorch {torch.__version__} "
        f"and Python {platform.python_version()} on {_machine()}.",
    )


def _about(config: Config) -> str:
    """The run in a line."""
    core = config.policy.core
    kind = core.kind if ":" in core.kind else core.kind.upper()
    memory = "no memory" if core.kind == "none" else f"{kind} of {core.layers} x {core.hidden}"
    where = "" if config.device == "auto" else f", trained on {config.device}"
    eyes = f"{config.policy.encoder} encoder, " if is_navigation(config.env) else ""
    return (
        f"{config.pool.num_envs} environments of {config.rollout_steps} steps a rollout, {eyes}{memory}, "
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
        values = history.columns["episode_return"]
        tiles.append(Tile("Episode return", charts.short(last), f"best {charts.short(float(np.nanmax(values)))}"))
    length = history.last("episode_length")
    if length is not None:
        tiles.append(Tile("Episode length", f"{length:,.1f}", "steps, at the end"))
    return tiles


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _learning(history: History) -> str:
    """What training is for, over steps and over time."""
    figures = []
    groups = (("Success and SPL in training", RATES), ("Episode return", {"episode_return": "return"}))
    for heading, names in groups:
        series = {label: history.columns[name] for name, label in names.items() if history.has(name)}
        limits = (0.0, 1.0) if names is RATES else None
        for (x, x_label), over in zip(_axes(history), ("steps", "time"), strict=True):
            if series:
                uri = charts.curves(x, series, x_label=x_label, limits=limits)
                figures.append(report_page.figure(uri, f"{heading} over {over}", heading=f"{heading} over {over}"))
    if not figures:
        return report_page.section("learning", "Learning", "No episode has ended in this run.")
    lead = "Means over the latest episodes of training, in which actions are sampled."
    others = [name for name in history.columns if name.startswith("episode_") and name not in COUNTED]
    return report_page.section("learning", "Learning", lead, report_page.grid(figures), _multiples(history, others))


def _axes(history: History) -> tuple[tuple[np.ndarray, str], tuple[np.ndarray, str]]:
    return (history.columns["step"], "agent steps"), _time(history)


def _time(history: History) -> tuple[np.ndarray, str]:
    seconds = history.columns["seconds"]
    unit, label = (
        (1.0, "seconds") if seconds[-1] < 180 else (60.0, "minutes") if seconds[-1] < 10800 else (3600.0, "hours")
    )
    return seconds / unit, f"{label} of training"


def _speed(history: History) -> str:
    x, x_label = _time(history)
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
    """What takes most of the time, in words."""
    shares = {name: np.nanmean(values) for name, values in history.columns.items() if name.startswith("time/")}
    if not shares:
        return ""
    name = max(shares, key=lambda key: float(shares[key]))
    return f"Most of the time, {shares[name]:.0%}, goes into {name.removeprefix('time/')}."


def _optimisation(history: History) -> str:
    """Everything else that was measured."""
    own = (*COUNTED, *(name for name in history.columns if name.startswith(("time/", "episode_"))))
    names = [name for name in history.columns if name not in own]
    return report_page.section("optimisation", "Optimisation", "", _multiples(history, names))


def _multiples(history: History, names: Iterable[str]) -> str:
    """A small chart of each; what is nothing but zeros has nothing to show."""
    figures = []
    for name in names:
        if history.has(name) and np.nan_to_num(history.columns[name]).any():
            label = name.removeprefix("episode_")
            label = NAMES.get(label, label.replace("_", " ").replace("/", ", "))
            values = {label: history.columns[name]}
            uri = charts.curves(history.columns["step"], values, x_label="agent steps", size=charts.SMALL)
            figures.append(report_page.figure(uri, f"{label} over steps", heading=label[0].upper() + label[1:]))
    return report_page.grid(figures, "13.5rem") if figures else ""


def _configuration(config: Config) -> str:
    """The settings that were chosen, and all others to unfold."""
    values, usual = _flat(dataclasses.asdict(config)), _flat(dataclasses.asdict(Config()))
    changed = {name: value for name, value in values.items() if usual.get(name) != value}
    return report_page.section(
        "configuration",
        "Configuration",
        "What differs from the defaults.",
        report_page.facts(changed),
        report_page.config_table(values, changed),
    )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = _shown(value)
    return flat


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
