"""Why an episode with a goal failed. Every failure belongs to exactly one class.

The first class whose condition holds:

| class | condition |
|---|---|
| not recognised | the agent stopped within the success distance, but the task asks for more than that |
| did not stop | the agent was within the success distance, and its steps ran out |
| passed by | the agent was within the success distance, and stopped elsewhere |
| stopped early | the agent stopped, and was never within the success distance |
| oscillated | of the poses in the window, fewer than `NEW_SHARE` are new among them |
| out of steps | the agent came closer than ever in the window |
| never found | the rest: it walked on until the last step, but came no closer |

The window is the last `WINDOW` decisions, or the second half of an episode of fewer than twice as many. Poses count as
equal if they are in the same cell of `CELL` metres and of `SECTOR` degrees. So an
agent that turns left and right, turns in circles, walks in a small loop or pushes against a wall oscillates.

Legend: T decisions of an episode.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from paceline.sims.navigation.evaluation.routes import Route
from paceline.sims.navigation.layout import STOP

WINDOW = 100
NEW_SHARE = 0.5
CELL = 0.1
SECTOR = 10.0


class Failure(Enum):
    """A class of failed episodes. The value explains it in a report."""

    NOT_RECOGNISED = "It stopped within the success distance, but did not see the goal."
    DID_NOT_STOP = "It was within the success distance, but never stopped."
    PASSED_BY = "It was within the success distance, but went on and stopped elsewhere."
    STOPPED_EARLY = "It stopped, and was never within the success distance."
    OSCILLATED = f"At the end it repeated itself: most of the last {WINDOW} poses were not new."
    OUT_OF_STEPS = f"It came closer than ever in the last {WINDOW} steps, but had no steps left."
    NEVER_FOUND = "It walked until the last step, and came no closer."

    @property
    def label(self) -> str:
        return self.name.replace("_", " ").lower()


def failure_of(route: Route, found_distance: float) -> Failure:
    """The class of a failed episode. The goal is found within `found_distance` of `Route.distances`."""
    closest, stopped = float(route.distances.min()), route.actions[-1] == STOP
    if stopped and route.distances[-1] <= found_distance:
        return Failure.NOT_RECOGNISED
    if closest <= found_distance:
        return Failure.PASSED_BY if stopped else Failure.DID_NOT_STOP
    if stopped:
        return Failure.STOPPED_EARLY
    window = max(1, min(WINDOW, len(route.actions) // 2))
    if new_share(route.poses[-window:]) < NEW_SHARE:
        return Failure.OSCILLATED
    if closest < route.distances[:-window].min(initial=math.inf):
        return Failure.OUT_OF_STEPS
    return Failure.NEVER_FOUND


def new_share(poses: np.ndarray) -> float:
    """The share of `poses` [T, 3] that differ from all earlier ones."""
    cells = np.round(poses[:, :2] / CELL).astype(int)
    sectors = np.round(np.degrees(poses[:, 2]) / SECTOR).astype(int) % round(360.0 / SECTOR)
    return len(set(zip(cells[:, 0].tolist(), cells[:, 1].tolist(), sectors.tolist(), strict=True))) / len(poses)
