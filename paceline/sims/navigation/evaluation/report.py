"""What navigation adds to a report: measures in unseen apartments, trajectories on maps, and camera images.

Legend: T decisions of an episode.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from paceline.envs.ids import EnvId
from paceline.evaluation import charts, report_page
from paceline.evaluation.evaluate import confidence_interval
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.report_page import ReportPart, Tile, cell
from paceline.evaluation.saved import SavedRun
from paceline.sims.navigation.evaluation.baselines import play_baseline
from paceline.sims.navigation.evaluation.measures import binned, summarize
from paceline.sims.navigation.evaluation.policy_episodes import (
    NUM_STREAMS,
    PlayedEpisodes,
    env_config,
    play_policy,
    split_config,
)
from paceline.sims.navigation.evaluation.task_evaluation import TaskEvaluation
from paceline.sims.navigation.rendering import maps, render
from paceline.sims.navigation.tasks.protocol import Marks

IMPERFECT = 0.95
"""The histogram shows episodes with a lower SPL. Discrete steps alone cost a few hundredths."""
NUM_MAPS = 6
NUM_FRAMES = 8
NUM_ANIMATED = 60
"""Most frames of the animation."""
MAP_SIDE, VIEW_SIDE = 480, 160


def report_part(evaluation: TaskEvaluation, folder: Path, episodes: int) -> ReportPart:
    """Play `episodes` episodes of the val split with the latest checkpoint and with baselines, and show them."""
    run = SavedRun.load(folder)
    config = split_config(env_config(run.config.env))
    played = play_policy(run, config, EvaluationOptions(episodes=episodes))
    summary = summarize(evaluation, played.measures)
    baselines = {
        label: play_baseline(evaluation, name, config, episodes, num_envs=NUM_STREAMS, bank=played.bank)
        for name, label in evaluation.in_report.items()
    }
    shown = chosen(played.measures, evaluation.order, NUM_MAPS)
    sections = [
        _evaluation(evaluation, run, played, summary, baselines),
        _trajectories(evaluation, played, shown),
        _views(evaluation, played, shown),
    ]
    return ReportPart([_tile(evaluation, name, summary) for name in evaluation.main], sections)


def _tile(evaluation: TaskEvaluation, name: str, summary: dict[str, Any]) -> Tile:
    measure = evaluation.measures[name]
    label = measure.label[0].upper() + measure.label[1:]
    return Tile(f"{label} on val", measure.show(summary[name]), _interval(evaluation, name, summary), is_main=True)


def _interval(evaluation: TaskEvaluation, name: str, summary: dict[str, Any]) -> str:
    low, high = (evaluation.measures[name].show(value) for value in summary[f"{name}_ci95"])
    return f"{low} to {high}"


def _novelty(run: SavedRun, played: PlayedEpisodes) -> str:
    trained = env_config(run.config.env, None)
    named = EnvId.parse(run.config.env).options.get("split", "train")
    return "" if trained.bank_file or named == played.config.split else "which training has never seen, "


def _evaluation(
    evaluation: TaskEvaluation,
    run: SavedRun,
    played: PlayedEpisodes,
    summary: dict[str, Any],
    baselines: dict[str, dict[str, Any]],
) -> str:
    lead = (
        f"{summary['episodes']} episodes in {min(played.bank.num_scenes, summary['episodes'])} apartments of the "
        f"{played.config.split} split, {_novelty(run, played)}played by {run.checkpoint} with the most likely "
        f"actions. {evaluation.about_baselines} Intervals are 95 % confidence intervals."
    )
    rows = [_row(evaluation, name, result) for name, result in {"this policy": summary, **baselines}.items()]
    header = ("", *evaluation.labels.values())
    histogram = _imperfect_figure if "spl" in evaluation.measures else _histogram_figure
    figures = [histogram(evaluation, played.measures)]
    if evaluation.bins is not None:
        figures.insert(0, _distance_figure(evaluation, played.measures, baselines))
    return report_page.section(
        "evaluation",
        "Navigation in unseen apartments",
        lead,
        report_page.table(header, rows, main=0),
        '<div style="height: 1.6rem"></div>',
        report_page.grid(figures),
    )


def _row(evaluation: TaskEvaluation, name: str, result: dict[str, Any]) -> list[str]:
    cells = [cell(name)]
    for key, measure in evaluation.measures.items():
        if key not in evaluation.main:
            cells.append(cell(measure.show(result[key])))
            continue
        share = result[key] if key in evaluation.rates else None
        cells.append(cell(measure.show(result[key]), _interval(evaluation, key, result), share))
    return cells


def _distance_figure(evaluation: TaskEvaluation, measures: dict[str, np.ndarray], baselines: dict[str, dict]) -> str:
    """The main measures by the size of the task, and the last of them of the best baseline."""
    assert evaluation.bins is not None
    *_, last = evaluation.main
    best = max(baselines, key=lambda name: baselines[name][last])
    bins = binned(evaluation.bins, measures)
    labels = [f"{low:g}–{high:g} m\n{within.sum()} ep." for low, high, within in bins]
    bars = {}
    for name in evaluation.main:
        values = [measures[name][within] for _, _, within in bins]
        means = np.array([part.mean() for part in values])
        intervals = [confidence_interval(part) or [part.mean()] * 2 for part in values]
        bars[evaluation.labels[name]] = (means, np.array(intervals))
    # The baseline has played the same episodes, so it has the same bins.
    by_baseline = np.array([part[last] for part in baselines[best]["by_distance"]])
    marks = (f"{evaluation.labels[last]} of the {best}", by_baseline)
    uri = charts.grouped_bars(labels, bars, marks, x_label=evaluation.bins.label)
    title = " and ".join(bars)
    return report_page.figure(uri, f"{title[0].upper()}{title[1:]} by distance", heading=evaluation.bins.heading)


def _histogram_figure(evaluation: TaskEvaluation, measures: dict[str, np.ndarray]) -> str:
    """All episodes by the first of the main measures."""
    name, *_ = evaluation.main
    label = evaluation.labels[name]
    edges = np.linspace(0.0, 1.0 if name in evaluation.rates else max(1.0, measures[name].max()), 21)
    uri = charts.histogram({"episodes": measures[name]}, x_label=label, edges=edges.tolist())
    return report_page.figure(uri, f"Episodes by {label}", heading=f"Episodes by {label}")


def _imperfect_figure(evaluation: TaskEvaluation, measures: dict[str, np.ndarray]) -> str:
    """Episodes with an SPL below `IMPERFECT`."""
    spl = measures["spl"]
    imperfect = spl[spl < IMPERFECT]
    heading = "SPL of the imperfect episodes"
    if not len(imperfect):
        return f"<div>{report_page.heading(heading)}{report_page.paragraph('There are none.')}</div>"
    groups = {"reached, but not on the shortest path": imperfect[imperfect > 0], "failed": imperfect[imperfect <= 0]}
    uri = charts.histogram(groups, x_label=f"SPL, where it is below {IMPERFECT:g}")
    others = f"the other {1 - len(imperfect) / len(spl):.0%} reach {IMPERFECT:g} or more"
    caption = f"{len(imperfect)} of {len(spl)} episodes; {others}."
    return report_page.figure(uri, heading, heading=heading, caption=caption)


def chosen(measures: dict[str, np.ndarray], order: str, count: int) -> list[int]:
    """Up to `count` episodes at even ranks of the measure `order`, lowest first.

    If they all succeed while others fail, or all fail while others succeed, one of the others replaces the episode
    nearest to it.
    """
    sizes = measures[order]
    by_size = np.argsort(sizes, kind="stable")
    ranks = (np.arange(count) + 0.5) / count * len(by_size)
    kept = list(dict.fromkeys(int(by_size[rank]) for rank in ranks.astype(int)))
    success = measures.get("success", np.ones(len(sizes))) > 0
    if len(set(success[kept])) == 1:
        others = [int(number) for number in by_size if success[number] != success[kept[0]]]
        if others:
            other = others[len(others) // 2]
            gaps = [abs(sizes[number] - sizes[other]) for number in kept]
            kept[int(np.argmin(gaps))] = other
    return sorted(kept, key=lambda number: float(sizes[number]))


def _trajectories(evaluation: TaskEvaluation, played: PlayedEpisodes, shown: Sequence[int]) -> str:
    figures = [_map_figure(evaluation, played, number) for number in shown]
    key = {"where the agent went, from dark to light": maps.TRAJECTORIES[0][0], "start": maps.START}
    if _marks(played, shown[0]).goal is not None:
        key |= {"shortest path": maps.PATH, "goal": maps.GOAL}
    lead = f"Seen from above, and sorted by {evaluation.order_words}. The agent itself never sees a map."
    legend = report_page.legend({name: f"rgb{color}" for name, color in key.items()})
    return report_page.section("trajectories", "Where it went", lead, legend, report_page.grid(figures, "17rem"))


def _map_figure(evaluation: TaskEvaluation, played: PlayedEpisodes, number: int) -> str:
    result, caption = evaluation.caption({name: float(values[number]) for name, values in played.measures.items()})
    image = maps.centered(_map(played, number, MAP_SIDE, played.routes[number]), MAP_SIDE, MAP_SIDE)
    return report_page.figure(png(image), f"Map of episode {number}", strong=result, caption=caption)


def _map(
    played: PlayedEpisodes, number: int, side: int, route: np.ndarray, pose: Sequence[float] | None = None
) -> np.ndarray:
    scene, marks = played.bank.scene(played.scenes[number]), _marks(played, number)._asdict()
    return maps.top_down(scene, size=side, trajectories=[route[:, :2]], pose=pose, **marks)


def _marks(played: PlayedEpisodes, number: int) -> Marks:
    return played.marks(played.scenes[number] * played.bank.num_episodes + played.numbers[number])


def _views(evaluation: TaskEvaluation, played: PlayedEpisodes, shown: Sequence[int]) -> str:
    """Camera images of one shown episode: the best of the second half of the good ones, if there are any."""
    *_, last = evaluation.main
    worth = played.measures[last]
    good = [number for number in shown if worth[number] > 0] or list(shown)
    number = max(good[len(good) // 2 :], key=lambda candidate: float(worth[candidate]))
    route = played.routes[number]
    at = np.unique(np.linspace(0, len(route) - 1, NUM_FRAMES).round().astype(int))
    sensors, side = played.config.sensors, played.config.resolution
    seen = {"depth": "only the depth", "rgb": "only the colours", "depth+rgb": "both", "blind": "neither"}[sensors]
    lead = (
        f"Map {shown.index(number) + 1} above, through the agent's camera. Colours are drawn at "
        f"{VIEW_SIDE} pixels a side, depth (the brighter, the farther) at {side}, as in training; this policy sees "
        f"{seen}."
    )
    colors, _ = look(played, number, route[at], VIEW_SIDE)
    _, depths = look(played, number, route[at], side)
    color_strip, depth_strip = [], []
    for step, color, depth in zip(at, colors, depths, strict=True):
        color_strip.append(report_page.figure(png(color), f"Colours at step {step}"))
        depth_alt = f"Depth at step {step}"
        depth_strip.append(report_page.figure(png(depth), depth_alt, caption=f"step {step}", pixels=True))
    strips = [report_page.film(color_strip), report_page.film(depth_strip)]
    animation = report_page.figure(_animation(played, number), "The episode as an animation")
    return report_page.section("views", "What it saw", lead, *strips, f'<div class="moving">{animation}</div>')


def look(played: PlayedEpisodes, number: int, poses: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [T, side, side, 3] each: colours and depth from `poses` [T, 3] in the scene of an episode."""
    where = torch.from_numpy(poses)
    scenes = torch.full((len(poses),), played.scenes[number])
    camera = render.Camera(side)
    view = render.trace(played.bank, camera, scenes, where, surfaces=True)
    colors = render.shade(played.bank, camera, scenes, where, view).permute(0, 2, 3, 1).numpy()
    return colors, charts.colored((view.depth / view.depth.max()).numpy())


def _animation(played: PlayedEpisodes, number: int) -> str:
    """An episode as a GIF: the view ahead beside a map."""
    route, side = played.routes[number], 2 * VIEW_SIDE
    at = np.unique(np.linspace(0, len(route) - 1, NUM_ANIMATED).round().astype(int))
    colors, _ = look(played, number, route[at], side)
    frames = []
    for step, image in zip(at, colors, strict=True):
        chart = _map(played, number, side, route[: step + 1], route[step].tolist())
        gap = np.full((side, 16, 3), 255, np.uint8)
        frame = np.concatenate([image, gap, maps.centered(chart, side, chart.shape[1])], 1)
        frames.append(Image.fromarray(frame).quantize(256))
    file = io.BytesIO()
    lengths = [120] * (len(frames) - 1) + [1500]  # milliseconds; the last frame stays longer
    frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=lengths, loop=0)
    return charts.data_uri("image/gif", file.getvalue())


def png(image: np.ndarray) -> str:
    """uint8 [H, W, 3] as a data URI."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png", optimize=True)
    return charts.data_uri("image/png", file.getvalue())
