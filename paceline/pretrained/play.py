"""Plays with a pretrained policy: a GIF, an HTML page with it, and the result in one line."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.errors import UsageError
from paceline.evaluation import report_page
from paceline.evaluation.charts import data_uri, short
from paceline.evaluation.compared_runs import measures_of
from paceline.evaluation.evaluators import SEED, EvaluationOptions, checked_evaluator
from paceline.evaluation.report_page import Tile, cell
from paceline.evaluation.report_words import duration
from paceline.evaluation.saved import run_config
from paceline.files import replace_text
from paceline.pretrained import PretrainedPolicy, find_policy
from paceline.wording import counted


@dataclass(frozen=True)
class Shown:
    """What `play` has written, and what came out."""

    gif: Path
    page: Path
    summary: str
    command: str
    """By which the policy was trained."""


def play(name: str, output: Path, *, episodes: int | None = None, seed: int = SEED) -> Shown:
    """Play episodes with the policy `name`, and write NAME.gif and NAME.html to the folder `output`."""
    policy, folder = find_policy(name)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {output} cannot be made: {error.strerror}; allowed: another --output") from error
    gif, page = output / f"{name}.gif", output / f"{name}.html"
    options = EvaluationOptions(episodes=episodes or policy.episodes, video=gif, seed=seed)
    result = _played(policy, folder, options)
    summary = f"{name}: {_in_words(policy, result)}"
    replace_text(page, _page(name, policy, folder, result, summary, gif))
    made = json.loads((folder / "about.json").read_text())
    return Shown(gif, page, summary, made["command"])


def _played(policy: PretrainedPolicy, folder: Path, options: EvaluationOptions) -> dict[str, Any]:
    if policy.opponent is not None:
        from paceline.evaluation.matches import evaluate_match

        return evaluate_match(folder, policy.opponent, options)
    return checked_evaluator(run_config(folder).env, options).evaluate_policy(folder, options)


def _in_words(policy: PretrainedPolicy, result: Mapping[str, Any]) -> str:
    """The result in one line."""
    if policy.opponent is not None:
        matches = counted(result["matches"], "match", "matches")
        return f"won {result['win_rate']:.0%} of {matches} against {policy.opponent_in_words}"
    episodes = counted(result["episodes"], "episode")
    if "success" in result:
        return f"reached the goal in {result['success']:.0%} of {episodes} in unseen flats, SPL {result['spl']:.2f}"
    return f"mean return {short(result['mean_return'])} over {episodes}"


def _page(name: str, policy: PretrainedPolicy, folder: Path, result: Mapping[str, Any], summary: str, gif: Path) -> str:
    made = json.loads((folder / "about.json").read_text())
    config = run_config(folder)
    image = report_page.figure(
        data_uri("image/gif", gif.read_bytes()), f"one episode of {name}", caption="One episode."
    )
    facts = {
        "Made by": made["command"],
        "Trained for": f"{short(made['steps'])} steps, {duration(made['seconds'])}, on {made['date']}",
        "Environment": config.env,
        "System": config.system,
        "Again": f"python -m paceline.pretrained.make {name}",
    }
    sections = [
        report_page.section("play", "One episode", policy.about[0].upper() + policy.about[1:] + ".", image),
        report_page.section("result", "Result", f"{summary[0].upper()}{summary[1:]}.", _table(result)),
        report_page.section("policy", "The policy", "", report_page.facts(facts)),
    ]
    tiles = report_page.tiles([Tile(label, value) for label, value in _tiles(result).items()])
    return report_page.page(
        title=name,
        kind="pretrained policy",
        about=f"{config.env}, trained by {config.system}.",
        body=tiles + "".join(sections),
        footer=f"Written on {time.strftime('%Y-%m-%d %H:%M')} by paceline {__version__}.",
    )


def _tiles(result: Mapping[str, Any]) -> dict[str, str]:
    names = {"win_rate": "Win rate", "success": "Success", "spl": "SPL", "mean_return": "Mean return"}
    return {label: short(result[key]) for key, label in names.items() if isinstance(result.get(key), int | float)}


def _table(result: Mapping[str, Any]) -> str:
    """The measures with an interval."""
    rows = []
    for measure, value, bounds in measures_of(result):
        interval = f"{short(bounds[0])} to {short(bounds[1])}" if bounds else "-"
        rows.append([cell(measure.replace("_", " ")), cell(short(value)), cell(interval)])
    return report_page.table(("measure", "mean", "95 % interval"), rows) if rows else ""
