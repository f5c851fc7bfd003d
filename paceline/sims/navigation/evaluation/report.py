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
from paceline.sims.navigation.evaluation.measures import distance_bins, summarize
from paceline.sims.navigation.evaluation.policy_episodes import (
    NUM_STREAMS,
    PlayedEpisodes,
    env_config,
    play_policy,
    split_config,
)
from paceline.sims.navigation.rendering import maps, render
from paceline.sims.navigation.scenes import geodesic

BASELINES = {"random": "random walk", "forward": "always forward", "goal-follower": "goal follower"}
"""The baselines that take little time, and their names in the report."""
IMPERFECT = 0.95
"""The histogram shows episodes with a lower SPL. Discrete steps alone cost a few hundredths."""
NUM_MAPS = 6
NUM_FRAMES = 8
NUM_ANIMATED = 60
"""Most frames of the animation."""
MAP_SIDE, VIEW_SIDE = 480, 160


def report_part(folder: Path, episodes: int) -> ReportPart:
    """Play `episodes` episodes of the val split with the latest checkpoint and with baselines, and show them."""
    run = SavedRun.load(folder)
    config = split_config(env_config(run.config.env))
    played = play_policy(run, config, EvaluationOptions(episodes=episodes))
    summary = summarize(played.measures)
    baselines = {
        label: play_baseline(name, config, episodes, num_envs=NUM_STREAMS, bank=played.bank)
        for name, label in BASELINES.items()
    }
    shown = chosen(played.measures, NUM_MAPS)
    return ReportPart(
        [_tile("Success", "success", summary), _tile("SPL", "spl", summary)],
        [_evaluation(run, played, summary, baselines), _trajectories(played, shown), _views(played, shown)],
    )


def _tile(name: str, measure: str, summary: dict[str, Any]) -> Tile:
    low, high = summary[f"{measure}_ci95"]
    note = f"{_rate(measure, low)} to {_rate(measure, high)}"
    return Tile(f"{name} on val", _rate(measure, summary[measure]), note, is_main=True)


def _rate(measure: str, value: float) -> str:
    return f"{value:.1%}" if measure == "success" else f"{value:.3f}"


def _novelty(run: SavedRun, played: PlayedEpisodes) -> str:
    trained = env_config(run.config.env, None)
    named = EnvId.parse(run.config.env).options.get("split", "train")
    return "" if trained.bank_file or named == played.config.split else "which training has never seen, "


def _evaluation(run: SavedRun, played: PlayedEpisodes, summary: dict[str, Any], baselines: dict[str, dict]) -> str:
    lead = (
        f"{summary['episodes']} episodes in {min(played.bank.num_scenes, summary['episodes'])} apartments of the "
        f"{played.config.split} split, {_novelty(run, played)}played by {run.checkpoint} with the most likely "
        "actions. The baselines know the goal's distance and direction, and play the same episodes. Intervals are "
        "95 % confidence intervals."
    )
    rows = [_row(name, result) for name, result in {"this policy": summary, **baselines}.items()]
    header = ("", "success", "SPL", "SoftSPL", "distance to goal at the end", "collisions an episode")
    best = max(baselines, key=lambda name: baselines[name]["spl"])
    figures = [_distance_figure(played.measures, best, baselines[best]), _histogram_figure(played.measures)]
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
    bins = distance_bins(measures)
    labels = [f"{low:g}–{high:g} m\n{within.sum()} ep." for low, high, within in bins]
    bars = {}
    for measure, label in (("success", "success"), ("spl", "SPL")):
        values = [measures[measure][within] for _, _, within in bins]
        means = np.array([part.mean() for part in values])
        intervals = [confidence_interval(part) or [part.mean()] * 2 for part in values]
        bars[label] = (means, np.array(intervals))
    # The baseline has played the same episodes, so it has the same bins.
    marks = (f"SPL of the {name}", np.array([part["spl"] for part in baseline["by_distance"]]))
    uri = charts.grouped_bars(labels, bars, marks, x_label="geodesic distance from start to goal")
    return report_page.figure(uri, "Success and SPL by distance", heading="By distance to go")


def _histogram_figure(measures: dict[str, np.ndarray]) -> str:
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


def chosen(measures: dict[str, np.ndarray], count: int) -> list[int]:
    """Up to `count` episodes at even ranks of distance, nearest first.

    If they all succeed while others fail, or all fail while others succeed, one of the others replaces the episode
    nearest to it in distance.
    """
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


def _trajectories(played: PlayedEpisodes, shown: Sequence[int]) -> str:
    figures = [_map_figure(played, number) for number in shown]
    key = {
        "where the agent went, from dark to light": maps.TRAJECTORIES[0][0],
        "shortest path": maps.PATH,
        "start": maps.START,
        "goal": maps.GOAL,
    }
    lead = "Seen from above, and sorted by distance. The agent itself never sees a map."
    legend = report_page.legend({name: f"rgb{color}" for name, color in key.items()})
    return report_page.section("trajectories", "Where it went", lead, legend, report_page.grid(figures, "17rem"))


def _map_figure(played: PlayedEpisodes, number: int) -> str:
    measures = {name: float(values[number]) for name, values in played.measures.items()}
    image = maps.centered(_map(played, number, MAP_SIDE, played.routes[number]), MAP_SIDE, MAP_SIDE)
    result = f"SPL {measures['spl']:.2f}." if measures["success"] else "Failed."
    steps = f"{measures['steps']:.0f} step{'s' if measures['steps'] > 1 else ''}"
    caption = f"{measures['geodesic']:.1f} m to go, {measures['path_length']:.1f} m walked in {steps}"
    if not measures["success"]:
        caption += f"; {measures['distance_to_goal']:.1f} m from the goal at the end"
    return report_page.figure(png(image), f"Map of episode {number}", strong=result, caption=f"{caption}.")


def _map(
    played: PlayedEpisodes, number: int, side: int, route: np.ndarray, pose: Sequence[float] | None = None
) -> np.ndarray:
    scene = played.bank.scene(played.scenes[number])
    start_x, start_y, _, goal_x, goal_y, _ = played.bank.episodes[
        played.scenes[number], played.numbers[number]
    ].tolist()
    return maps.top_down(
        scene,
        size=side,
        trajectories=[route[:, :2]],
        path=geodesic.shortest_path(scene, (start_x, start_y), (goal_x, goal_y)),
        start=(start_x, start_y),
        goal=(goal_x, goal_y),
        pose=pose,
    )


def _views(played: PlayedEpisodes, shown: Sequence[int]) -> str:
    """Camera images of one shown episode: the best of the farther half of the successful ones, if there are any."""
    good = [number for number in shown if played.measures["success"][number] > 0] or list(shown)
    number = max(good[len(good) // 2 :], key=lambda candidate: float(played.measures["spl"][candidate]))
    route = played.routes[number]
    at = np.unique(np.linspace(0, len(route) - 1, NUM_FRAMES).round().astype(int))
    sensors, side = played.config.sensors, played.config.resolution
    seen = {"depth": "only the depth", "rgb": "only the colours", "depth+rgb": "both", "blind": "neither"}[sensors]
    distance = played.measures["geodesic"][number]
    lead = (
        f"The episode above with {distance:.1f} m to go, through the agent's camera. Colours are drawn "
        f"at {VIEW_SIDE} pixels a side, depth (the brighter, the farther) at {side}, as in training; this policy sees "
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
