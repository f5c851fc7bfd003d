"""The report's section about a population: the policies of one run, or the members of a population of whole runs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from paceline.config import Config
from paceline.evaluation import charts, population_charts, report_page
from paceline.evaluation.history import History
from paceline.evaluation.population_charts import Curve, Ratings, TakeOver
from paceline.population.history import PopulationEvent, ancestors, read_events, values_over_time
from paceline.population.ratings import Matches

log = logging.getLogger(__name__)

OWN = r"policy_(\d+)/(.+)"
"""A metric of one policy."""
RATINGS = "ratings.json"
LEAST_MATCHES = 5
"""Pairs with fewer matches are blank in the matrix."""
LEAST_RATED = 10
"""Players with fewer matches have no rating, because their intervals would hide the others."""
MOST_PLAYERS = 16
"""Of more players, those that have met most others are in the matrix."""
STEPS = "agent steps"


@dataclass(frozen=True, kw_only=True)
class PopulationData:
    """What there is to show."""

    kind: str
    """What a member is called: policy or member."""
    members: Sequence[str]
    objective: str
    """The label of what members are compared by."""
    results: Mapping[str, Curve]
    """By member: its objective over steps."""
    summary: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None
    """Steps, best, mean and standard deviation."""
    events: Sequence[PopulationEvent] = ()
    losses: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)
    """Further metrics by name, and then by member."""
    ratings: dict[str, Any] | None = None
    """The content of ratings.json."""
    end: float = 0.0
    """The last step."""


def is_of_policies(name: str) -> bool:
    """Whether a metric is shown in the population's section."""
    return name == "elo" or name.startswith("population/") or re.fullmatch(OWN, name) is not None


def data_of_run(folder: Path, config: Config, history: History) -> PopulationData | None:
    """The policies of one run. None if it has one policy and no opponents."""
    own: dict[str, dict[str, Curve]] = {}
    for name in history.columns:
        if (match := re.fullmatch(OWN, name)) and history.has(name):
            own.setdefault(match[2], {})[match[1]] = history.columns["step"], history.columns[name]
    if not own:
        return None
    events, ratings = read_events([folder]), _read_ratings(folder)
    members = sorted({member for curves in own.values() for member in curves}, key=int)
    objective = _objective_column(config, own)
    tuned = {path for event in events for path in event.change.after}
    summary = None
    if history.has("population/best"):
        best, mean, spread = (history.columns[f"population/{name}"] for name in ("best", "mean", "spread"))
        summary = history.columns["step"], best, mean, spread
    hidden = {objective, f"episode_{objective}", "elo", *tuned}
    return PopulationData(
        kind="policy",
        members=members,
        objective=objective.removeprefix("episode_").replace("_", " "),
        results=own.get(objective, {}),
        summary=summary,
        events=events,
        losses={name: curves for name, curves in own.items() if name not in hidden},
        ratings=ratings,
        end=history.last("step") or 0.0,
    )


def _objective_column(config: Config, own: Mapping[str, Any]) -> str:
    names = (config.pbt.objective, f"episode_{config.pbt.objective}")
    return next((name for name in names if name in own), "episode_return")


def data_of_runs(folders: Sequence[Path], config: Config) -> PopulationData:
    """The members of a population of whole runs."""
    histories = {folder.name: History.load(folder) for folder in folders if (folder / "metrics.jsonl").exists()}
    column = f"episode_{config.pbt.objective}"
    results = {
        name: (history.columns["step"], history.columns[column])
        for name, history in histories.items()
        if history.has(column)
    }
    return PopulationData(
        kind="member",
        members=[folder.name for folder in folders],
        objective=config.pbt.objective.replace("_", " "),
        results=results,
        summary=_summary(list(results.values())),
        events=read_events(folders),
        end=max((history.last("step") or 0.0 for history in histories.values()), default=0.0),
    )


def _summary(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Best, mean and deviation at common steps, at which all members have results."""
    known = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in curves]
    if len(known) < 2:
        return None
    first, last = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    if first >= last:
        return None
    steps = np.linspace(first, last, 100)
    values = np.stack([np.interp(steps, x, y) for x, y in known])
    return steps, values.max(0), values.mean(0), values.std(0)


def section(data: PopulationData) -> str:
    """The section, as HTML."""
    colors = population_charts.member_colors(data.members)
    lead = (
        f"One colour for each {data.kind}." if len(data.members) > 1 else "Matches against opponents that do not learn."
    )
    key = report_page.legend({f"{data.kind} {name}" if name.isdigit() else name: c for name, c in colors.items()})
    figures = [*_results(data, colors), *_hyperparameters(data, colors)]
    body = [key if len(data.members) > 1 else "", report_page.grid(figures) if figures else ""]
    body += [_lineage(data, colors), _matches(data, colors), _losses(data, colors)]
    return report_page.section("population", "Population", lead, *filter(None, body))


def _results(data: PopulationData, colors: Mapping[str, str]) -> list[str]:
    figures = []
    if len(data.results) > 1:
        uri = population_charts.member_curves(data.results, colors, x_label=STEPS)
        heading = f"{_capitalized(data.objective)} of each {data.kind}"
        figures.append(report_page.figure(uri, f"{heading} over steps", heading=heading))
    if data.summary is not None:
        uri = population_charts.spread(*data.summary, x_label=STEPS)
        heading = f"{_capitalized(data.objective)} of the population"
        caption = "The spread is one standard deviation around the mean."
        figures.append(report_page.figure(uri, f"{heading} over steps", heading=heading, caption=caption))
    return figures


def _hyperparameters(data: PopulationData, colors: Mapping[str, str]) -> list[str]:
    """A chart of each hyper-parameter that was ever different from its start."""
    figures = []
    for path in dict.fromkeys(path for event in data.events for path in event.change.after):
        found = {member: values for member, values in values_over_time(data.events, path).items() if member in colors}
        values = {member: _curve(found[member]) for member in data.members if member in found}
        if not values or all(np.ptp(y) == 0 for _, y in values.values()):
            continue
        taken = [
            (float(event.step), event.change.after[path], event.change.member, event.change.donor)
            for event in data.events
            if event.change.donor is not None and {event.change.donor, event.change.member} <= set(colors)
        ]
        uri = population_charts.steps_over_time(values, taken, colors, x_label=STEPS, end=data.end)
        caption = f"A dot: taken over from the {data.kind} of that colour." if taken else ""
        figures.append(report_page.figure(uri, f"{path} over steps", heading=path, caption=caption))
    return figures


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    x, y = np.array(points, np.float64).T
    return x, y


def _lineage(data: PopulationData, colors: Mapping[str, str]) -> str:
    if not data.events:
        return ""
    descents = ancestors(data.events)
    shown = {m: [(s, a if a in colors else m) for s, a in descents.get(m, [(0, m)])] for m in data.members}
    take_overs, mutations = [], []
    before = {(event.change.member, event.step): event.change.before for event in data.events}
    for event in data.events:
        change = event.change
        if change.donor is not None:
            take_overs.append(TakeOver(change.member, event.step, change.donor, change.donor_step or event.step))
        # What a member took over is known if the donor was in the same round.
        source = change.before if change.donor is None else before.get((change.donor, event.step), change.after)
        if change.after != source and change.member in colors:
            mutations.append((change.member, float(event.step)))
    uri = population_charts.lineage(shown, take_overs, mutations, colors, x_label=STEPS, end=data.end)
    caption = (
        f"A lane has the colour of the {data.kind} in which its present weights began. An arrow: weights and "
        "hyper-parameters were taken over. A white tick: a hyper-parameter mutated."
    )
    words = f"{len(take_overs)} take-overs and {len(mutations)} mutations over steps"
    return report_page.figure(uri, words, heading="Lineage", caption=caption)


def _read_ratings(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / RATINGS).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read and is left out: %s", folder / RATINGS, error)
        return None


def _matches(data: PopulationData, colors: Mapping[str, str]) -> str:
    """Elo over training, and the win-rate matrix."""
    if data.ratings is None:
        return ""
    matches = Matches()
    matches.load_state_dict(data.ratings)
    figures = [_elo(data.ratings["ratings"], matches, colors), _matrix(matches)]
    return report_page.grid(filter(None, figures)) if any(figures) else ""


def _elo(ratings: Mapping[str, Sequence[float]], matches: Matches, colors: Mapping[str, str]) -> str:
    counts = dict(zip(matches.players, matches.counts.sum(1).tolist(), strict=True))
    points: dict[str, list[tuple[int, float, float, float]]] = {}
    fixed: dict[str, tuple[float, float, float]] = {}
    for name, (elo, low, high) in ratings.items():
        policy, _, step = name.partition("@")
        if counts.get(name, 0) < LEAST_RATED:
            continue
        if step.isdigit() and policy in colors:
            points.setdefault(policy, []).append((int(step), elo, low, high))
        else:
            fixed[name.rpartition(":")[2].rpartition("/")[2]] = elo, low, high
    rated = {policy: Ratings(*np.array(sorted(rows), np.float64).T) for policy, rows in sorted(points.items())}
    if not rated:
        return ""
    uri = population_charts.ratings_over_time(rated, fixed, colors, x_label=STEPS)
    caption = f"With 95 % intervals, from the matches of training. The zero is the first player, {matches.players[0]}."
    return report_page.figure(uri, "Elo ratings over steps", heading="Elo rating", caption=caption)


def _matrix(matches: Matches) -> str:
    rates = np.where(matches.counts >= LEAST_MATCHES, matches.win_rates(), np.nan)
    met = np.isfinite(rates).sum(1)
    chosen = [int(index) for index in np.argsort(-met, kind="stable")[:MOST_PLAYERS] if met[index]]
    if not chosen:
        return ""
    chosen.sort(key=lambda index: _age(matches.players[index]))
    rates = rates[np.ix_(chosen, chosen)]
    uri = population_charts.win_rate_matrix([_short_name(matches.players[index]) for index in chosen], rates)
    caption = (
        "In per cent, of the row against the column; a draw is half a win. 0@40k is policy 0 up to step 40,000. "
        f"Pairs with fewer than {LEAST_MATCHES} matches are grey."
    )
    if len(matches.players) > len(chosen):
        caption += f" These are {len(chosen)} of {len(matches.players)} players, those that have met most others."
    return report_page.figure(uri, "Win rates of all pairs of players", heading="Win rates", caption=caption)


def _age(player: str) -> tuple[float, str]:
    """Fixed opponents first, then by step and policy."""
    policy, _, step = player.partition("@")
    return (float(step), policy.rjust(6)) if step.isdigit() else (-1.0, player)


def _short_name(player: str) -> str:
    policy, _, step = player.partition("@")
    return f"{policy}@{charts.short(float(step))}" if step.isdigit() else player.rpartition(":")[2].rpartition("/")[2]


def _losses(data: PopulationData, colors: Mapping[str, str]) -> str:
    """A small chart of each further metric that is not always zero, with a line for each member."""
    figures = []
    for name, curves in data.losses.items() if len(data.members) > 1 else ():
        if any(np.nan_to_num(y).any() for _, y in curves.values()):
            label = name.removeprefix("episode_").replace("_", " ")
            uri = population_charts.member_curves(curves, colors, x_label=STEPS, size=charts.SMALL)
            figures.append(report_page.figure(uri, f"{label} over steps", heading=_capitalized(label)))
    return report_page.grid(figures, "13.5rem") if figures else ""


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
