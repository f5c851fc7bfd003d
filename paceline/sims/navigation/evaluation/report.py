"""The part of a report that only PointGoal navigation has: how well the policy does where it has never been, where it
went, and what it saw.

Legend: L episodes, T decisions of one.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.envs.ids import EnvId
from paceline.evaluation import charts, report_page
from paceline.evaluation.evaluate import confidence_interval
from paceline.evaluation.report_page import Tile, cell
from paceline.evaluation.saved import SavedRun
from paceline.sims.navigation.evaluation.episode_list import BIN_EDGES, evaluate_agent, summarize
from paceline.sims.navigation.evaluation.evaluator import NUM_STREAMS, Navigated, env_config, navigate, split_config
from paceline.sims.navigation.rendering import maps, render
from paceline.sims.navigation.scenes import geodesic

BASELINES = {"random": "random walk", "forward": "always forward", "goal-follower": "goal follower"}
"""Agents that cost little, and what they are called here."""
IMPERFECT = 0.95
"""An SPL below it is shown in the histogram: discrete steps alone cost a few hundredths."""
NUM_MAPS = 6
NUM_FRAMES = 8
NUM_MOVING = 60
"""Frames of the moving picture, at most."""
MAP_SIDE, VIEW_SIDE = 480, 160


@dataclass(frozen=True)
class NavigationPart:
    tiles: list[Tile]
    sections: list[str]


def navigation(folder: Path, episodes: int) -> NavigationPart:
    """Play `episodes` episodes of the val split with the latest policy and with the baselines, and show them."""
    run = SavedRun.load(folder)
    config = split_config(env_config(run.config.env))
    done = navigate(run, config, episodes=episodes)
    summary = summarize(done.measures)
    baselines = {
        label: evaluate_agent(
            agent,
            config.tier,
            config.split,
            episodes,
            num_envs=NUM_STREAMS,
            resolution=config.resolution,
            bank=done.bank,
            config=config,
        )
        for agent, label in BASELINES.items()
    }
    shown = chosen(done.measures, NUM_MAPS)
    return NavigationPart(
        [_tile("Success", "success", summary), _tile("SPL", "spl", summary)],
        [_evaluation(run, done, summary, baselines), _trajectories(done, shown), _views(done, shown)],
    )


def _tile(name: str, measure: str, summary: dict[str, Any]) -> Tile:
    low, high = summary[f"{measure}_ci95"]
    note = f"{_rate(measure, low)} to {_rate(measure, high)}"
    return Tile(f"{name} on val", _rate(measure, summary[measure]), note, is_main=True)


def _rate(measure: str, value: float) -> str:
    return f"{value:.1%}" if measure == "success" else f"{value:.3f}"


def _novelty(run: SavedRun, done: Navigated) -> str:
    trained = env_config(run.config.env, None)
    named = EnvId.parse(run.config.env).options.get("split", "train")
    return "" if trained.bank_file or named == done.config.split else "which training has never seen, "


def _evaluation(run: SavedRun, done: Navigated, summary: dict[str, Any], baselines: dict[str, dict]) -> str:
    lead = (
        f"{summary['episodes']} episodes in {min(done.bank.num_scenes, summary['episodes'])} apartments of the "
        f"{done.config.split} split, {_novelty(run, done)}played by {run.checkpoint} with the likeliest "
        "actions. The baselines know the goal's distance and direction, and play the same episodes. Intervals are of "
        "95 %."
    )
    rows = [_row(name, result) for name, result in {"this policy": summary, **baselines}.items()]
    header = ("", "success", "SPL", "SoftSPL", "distance to goal at the end", "collisions an episode")
    best = max(baselines, key=lambda name: baselines[name]["spl"])
    figures = [_distance_figure(done.measures, best, baselines[best]), _histogram_figure(done.measures)]
    return report_page.section(
        "evaluation",
        "Navigation in unseen apartments",
        lead,
        report_page.table(header, rows, main=0),
        '<div style="height: 1.6rem"></div>',
        report_page.grid(figures),
    )


def _row(name: str, result: dict[str, Any]) -> list[str]:
    cells = [cell(name)]
    for measure in ("success", "spl"):
        low, high = result[f"{measure}_ci95"]
        interval = f"{_rate(measure, low)} to {_rate(measure, high)}"
        cells.append(cell(_rate(measure, result[measure]), interval, result[measure]))
    cells.append(cell(f"{result['soft_spl']:.3f}"))
    return [*cells, cell(f"{result['distance_to_goal']:.2f} m"), cell(f"{result['collisions']:.1f}")]


def _distance_figure(measures: dict[str, np.ndarray], name: str, baseline: dict[str, Any]) -> str:
    bins = [
        (low, high, (measures["geodesic"] >= low) & (measures["geodesic"] < high))
        for low, high in itertools.pairwise(BIN_EDGES)
    ]
    bins = [(low, high, within) for low, high, within in bins if within.any()]
    labels = [f"{low:g}–{high:g} m\n{within.sum()} ep." for low, high, within in bins]
    bars = {}
    for measure, label in (("success", "success"), ("spl", "SPL")):
        values = [measures[measure][within] for _, _, within in bins]
        means = np.array([part.mean() for part in values])
        intervals = [confidence_interval(part) or [part.mean()] * 2 for part in values]
        bars[label] = (means, np.array(intervals))
    # Both have played the same episodes, so both have the same bins.
    marks = (f"SPL of the {name}", np.array([part["spl"] for part in baseline["by_distance"]]))
    uri = charts.bars_by_distance(labels, bars, marks)
    return report_page.figure(uri, "Success and SPL by distance", heading="By distance to go")


def _histogram_figure(measures: dict[str, np.ndarray]) -> str:
    spl = measures["spl"]
    imperfect = spl[spl < IMPERFECT]
    heading = "SPL of the imperfect episodes"
    if not len(imperfect):
        return f"<div>{report_page.heading(heading)}{report_page.paragraph('There are none.')}</div>"
    uri = charts.histogram(imperfect, x_label=f"SPL, where it is below {IMPERFECT:g}", split=0.0)
    others = f"the other {1 - len(imperfect) / len(spl):.0%} reach {IMPERFECT:g} or more"
    caption = f"{len(imperfect)} of {len(spl)} episodes; {others}."
    return report_page.figure(uri, heading, heading=heading, caption=caption)


def chosen(measures: dict[str, np.ndarray], count: int) -> list[int]:
    """Episodes at even ranks of distance, the nearest first; if all of them went the same way, well or badly, and
    others did not, one of these takes the place of its neighbour."""
    by_distance = np.argsort(measures["geodesic"], kind="stable")
    ranks = (np.arange(count) + 0.5) / count * len(by_distance)
    kept = list(dict.fromkeys(int(by_distance[rank]) for rank in ranks.astype(int)))
    success = measures["success"] > 0
    if len(set(success[kept])) == 1:
        others = [int(number) for number in by_distance if success[number] != success[kept[0]]]
        if others:
            other = others[len(others) // 2]
            gaps = [abs(measures["geodesic"][number] - measures["geodesic"][other]) for number in kept]
            kept[int(np.argmin(gaps))] = other
    return sorted(kept, key=lambda number: float(measures["geodesic"][number]))


def _trajectories(done: Navigated, shown: Sequence[int]) -> str:
    figures = [_map_figure(done, number) for number in shown]
    key = {
        "where the agent went, from dark to light": _css(maps.TRAJECTORIES[0][0]),
        "shortest path": _css(maps.PATH),
        "start": _css(maps.START),
        "goal": _css(maps.GOAL),
    }
    lead = "Seen from above, and sorted by distance. The agent itself never sees a map."
    return report_page.section(
        "trajectories",
        "Where it went",
        lead,
        report_page.legend(key),
        report_page.grid(figures, "17rem"),
    )


def _css(color: tuple[int, int, int]) -> str:
    return f"rgb{color}"


def _map_figure(done: Navigated, number: int) -> str:
    measures = {name: float(values[number]) for name, values in done.measures.items()}
    image = _map(done, number, MAP_SIDE, done.routes[number])
    # On a square, so that maps of any shape stand in line.
    board = np.full((MAP_SIDE, MAP_SIDE, 3), 255, np.uint8)
    top, left = (MAP_SIDE - image.shape[0]) // 2, (MAP_SIDE - image.shape[1]) // 2
    board[top : top + image.shape[0], left : left + image.shape[1]] = image
    result = f"SPL {measures['spl']:.2f}." if measures["success"] else "Failed."
    steps = f"{measures['steps']:.0f} step{'s' if measures['steps'] > 1 else ''}"
    caption = f"{measures['geodesic']:.1f} m to go, {measures['path_length']:.1f} m walked in {steps}"
    if not measures["success"]:
        caption += f"; {measures['distance_to_goal']:.1f} m from the goal at the end"
    return report_page.figure(png(board), f"Map of episode {number}", strong=result, caption=f"{caption}.")


def _map(done: Navigated, number: int, side: int, route: np.ndarray, pose: Sequence[float] | None = None) -> np.ndarray:
    scene = done.bank.scene(done.scenes[number])
    start_x, start_y, _, goal_x, goal_y, _ = done.bank.episodes[done.scenes[number], done.numbers[number]].tolist()
    return maps.top_down(
        scene,
        size=side,
        trajectories=[route[:, :2]],
        path=geodesic.shortest_path(scene, (start_x, start_y), (goal_x, goal_y)),
        start=(start_x, start_y),
        goal=(goal_x, goal_y),
        pose=pose,
    )


def _views(done: Navigated, shown: Sequence[int]) -> str:
    """One of the episodes that are shown, through the agent's eyes: of the farther half of those that went well, if
    any did, the best."""
    good = [number for number in shown if done.measures["success"][number] > 0] or list(shown)
    number = max(good[len(good) // 2 :], key=lambda candidate: float(done.measures["spl"][candidate]))
    route = done.routes[number]
    at = np.unique(np.linspace(0, len(route) - 1, NUM_FRAMES).round().astype(int))
    sensors, side = done.config.sensors, done.config.resolution
    seen = {"depth": "only the depth", "rgb": "only the colours", "depth+rgb": "both", "blind": "neither"}[sensors]
    distance = done.measures["geodesic"][number]
    lead = (
        f"The episode above with {distance:.1f} m to go, through the agent's camera. Colours are drawn "
        f"at {VIEW_SIDE} pixels a side, depth (the brighter, the farther) at {side}, as in training; this policy sees "
        f"{seen}."
    )
    colors, _ = look(done, number, route[at], VIEW_SIDE)
    _, depths = look(done, number, route[at], side)
    strips = [
        report_page.film(
            [report_page.figure(png(image), f"Colours at step {step}") for step, image in zip(at, colors, strict=True)]
        ),
        report_page.film(
            [
                report_page.figure(png(image), f"Depth at step {step}", caption=f"step {step}", pixels=True)
                for step, image in zip(at, depths, strict=True)
            ]
        ),
    ]
    moving = report_page.figure(_moving(done, number), "The episode as a moving picture")
    return report_page.section("views", "What it saw", lead, *strips, f'<div class="moving">{moving}</div>')


def look(done: Navigated, number: int, poses: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [T, side, side, 3] each: colours and depth from `poses` [T, 3] in the scene of an episode."""
    where = torch.from_numpy(poses)
    scenes = torch.full((len(poses),), done.scenes[number])
    camera = render.Camera(side)
    view = render.trace(done.bank, camera, scenes, where, surfaces=True)
    colors = render.shade(done.bank, camera, scenes, where, view).permute(0, 2, 3, 1).numpy()
    return colors, charts.colored((view.depth / view.depth.max()).numpy())


def _moving(done: Navigated, number: int) -> str:
    """An episode as a GIF: what lies ahead, and a map."""
    from PIL import Image

    route = done.routes[number]
    at = np.unique(np.linspace(0, len(route) - 1, NUM_MOVING).round().astype(int))
    colors, _ = look(done, number, route[at], 2 * VIEW_SIDE)
    frames = []
    for step, image in zip(at, colors, strict=True):
        chart = _map(done, number, 2 * VIEW_SIDE, route[: step + 1], route[step].tolist())
        board = np.full((2 * VIEW_SIDE, 2 * VIEW_SIDE + chart.shape[1] + 16, 3), 255, np.uint8)
        board[:, : 2 * VIEW_SIDE] = image
        top = (2 * VIEW_SIDE - chart.shape[0]) // 2
        board[top : top + chart.shape[0], 2 * VIEW_SIDE + 16 :] = chart
        frames.append(Image.fromarray(board).quantize(256))
    file = io.BytesIO()
    lengths = [120] * (len(frames) - 1) + [1500]  # milliseconds; the end stays for a while
    frames[0].save(file, "gif", save_all=True, append_images=frames[1:], duration=lengths, loop=0)
    return charts.data_uri("image/gif", file.getvalue())


def png(image: np.ndarray) -> str:
    """uint8 [H, W, 3] as a data URI."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "png", optimize=True)
    return charts.data_uri("image/png", file.getvalue())
