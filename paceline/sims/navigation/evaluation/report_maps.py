"""Maps of played episodes: the scene from above, where the agent went, and the shortest path."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.evaluation import report_page
from paceline.evaluation.report_images import png
from paceline.sims.navigation.evaluation.policy_episodes import PlayedEpisodes
from paceline.sims.navigation.evaluation.task_evaluation import TaskEvaluation
from paceline.sims.navigation.rendering import maps

MAP_SIDE = 480


def trajectories(evaluation: TaskEvaluation, played: PlayedEpisodes, shown: Sequence[int]) -> str:
    """The section with the episodes `shown`."""
    lead = f"Seen from above, and sorted by {evaluation.order_words}. The agent itself never sees a map."
    maps_of_shown = map_grid(evaluation, played, shown)
    return report_page.section("trajectories", "Where it went", lead, legend(played), maps_of_shown)


def legend(played: PlayedEpisodes) -> str:
    """The colours of all maps."""
    key = {"where the agent went, from dark to light": maps.TRAJECTORIES[0][0], "start": maps.START}
    if played.marks_of(0).goal is not None:
        key |= {"shortest path": maps.PATH, "goal": maps.GOAL}
    return report_page.legend({name: f"rgb{color}" for name, color in key.items()})


def map_grid(evaluation: TaskEvaluation, played: PlayedEpisodes, shown: Sequence[int]) -> str:
    """The maps of the episodes `shown`, side by side."""
    return report_page.grid([_map_figure(evaluation, played, number) for number in shown], "17rem")


def _map_figure(evaluation: TaskEvaluation, played: PlayedEpisodes, number: int) -> str:
    result, caption = evaluation.caption({name: float(values[number]) for name, values in played.measures.items()})
    image = maps.centered(map_image(played, number, MAP_SIDE, played.routes[number].poses), MAP_SIDE, MAP_SIDE)
    return report_page.figure(png(image), f"Map of episode {number}", strong=result, caption=caption)


def map_image(
    played: PlayedEpisodes, number: int, side: int, poses: np.ndarray, pose: Sequence[float] | None = None
) -> np.ndarray:
    """uint8 [H, W, 3]: the way through `poses` [T, 3]; `pose` is where the agent is now."""
    scene, marks = played.bank.scene(played.scenes[number]), played.marks_of(number)._asdict()
    return maps.top_down(scene, size=side, trajectories=[poses[:, :2]], pose=pose, **marks)


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
