"""Tiles and table rows of measures in a report."""

from __future__ import annotations

from typing import Any

from paceline.evaluation.report_page import Tile, cell
from paceline.sims.navigation.evaluation.task_evaluation import ShownMeasures


def tile(evaluation: ShownMeasures, name: str, summary: dict[str, Any], where: str) -> Tile:
    """A measure and its interval."""
    measure = evaluation.measures[name]
    label = measure.label[0].upper() + measure.label[1:]
    return Tile(f"{label} {where}", measure.show(summary[name]), _interval(evaluation, name, summary), is_main=True)


def row(evaluation: ShownMeasures, name: str, result: dict[str, Any]) -> list[str]:
    """All measures of one agent. The main ones have intervals, and rates among them bars."""
    cells = [cell(name)]
    for key, measure in evaluation.measures.items():
        if key not in evaluation.main:
            cells.append(cell(measure.show(result[key])))
            continue
        share = result[key] if key in evaluation.rates else None
        cells.append(cell(measure.show(result[key]), _interval(evaluation, key, result), share))
    return cells


def _interval(evaluation: ShownMeasures, name: str, summary: dict[str, Any]) -> str:
    low, high = (evaluation.measures[name].show(value) for value in summary[f"{name}_ci95"])
    return f"{low} to {high}"
