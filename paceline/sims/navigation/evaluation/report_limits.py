"""The section of a report about the gap to the shortest path: where SPL is lost, beside planners."""

from __future__ import annotations

import numpy as np

from paceline.evaluation import charts, report_page
from paceline.evaluation.evaluate import confidence_interval
from paceline.evaluation.report_page import cell
from paceline.sims.navigation.evaluation.baselines import baseline_measures
from paceline.sims.navigation.evaluation.lost_spl import LostSpl, lost_spl
from paceline.sims.navigation.evaluation.policy_episodes import NUM_STREAMS, PlayedEpisodes
from paceline.sims.navigation.evaluation.task_evaluation import TaskEvaluation

NUM_EPISODES = 40
"""Most episodes that planners play."""
LABELS = {"oracle": "lost by the oracle too", "detours": "detours", "failures": "failures"}
"""Of the parts of `LostSpl`."""
BELOW_ZERO = "Detours below 0, to the left, are a lead over the oracle in the episodes that the agent solves."
"""Caption of a chart that has some."""


def limits(evaluation: TaskEvaluation, played: PlayedEpisodes) -> list[str]:
    """The section, or none for a task without planners."""
    if not evaluation.planners:
        return []
    count = min(NUM_EPISODES, len(played.routes))
    results = {"this policy": {name: values[:count] for name, values in played.measures.items()}}
    for name, label in evaluation.planners.items():
        results[label] = baseline_measures(evaluation, name, played.config, played.bank, count, num_envs=NUM_STREAMS)
    *_, oracle = results.values()
    lost = {label: lost_spl(one["spl"], one["success"], oracle["spl"]) for label, one in results.items()}
    lead = (
        f"What separates SPL from 1, in the first {count} episodes. The oracle knows the map: what it loses too is "
        "mainly the price of discrete steps and turns. Detours: what the agent loses beyond that in episodes that it "
        "solves. Failures: what it loses beyond that in the others. The three add up to 1 - SPL."
    )
    rows = [_row(label, results[label]["spl"], parts) for label, parts in lost.items()]
    table = report_page.table(("", "SPL", *LABELS.values()), rows, main=0)
    stacked = {label: np.array([getattr(parts, name) for parts in lost.values()]) for name, label in LABELS.items()}
    uri = charts.stacked_bars(list(lost), stacked, x_label="lost SPL")
    captions = [evaluation.about_planners] if evaluation.about_planners else []
    if any(parts.detours < 0 for parts in lost.values()):
        captions.append(BELOW_ZERO)
    figure = report_page.figure(uri, "Lost SPL by cause", caption=" ".join(captions))
    bars = report_page.grid([figure], "34rem")
    return [report_page.section("limits", "The gap to the shortest path", lead, table, report_page.GAP, bars)]


def _row(label: str, spl: np.ndarray, lost: LostSpl) -> list[str]:
    low, high = confidence_interval(spl) or [float(spl.mean())] * 2
    return [cell(label), cell(f"{spl.mean():.3f}", f"{low:.3f} to {high:.3f}"), *(cell(f"{part:.3f}") for part in lost)]
