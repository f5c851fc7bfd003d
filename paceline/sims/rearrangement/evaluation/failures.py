"""Why an episode failed. Every failure belongs to exactly one class.

The first class whose condition holds:

| class | condition |
|---|---|
| wrong thing | in the last step it took another thing, in place anything; a scenario: another thing is in the hand |
| dropped | pick: it let the object go |
| placed wrong | place: it let the object go away from the goal; a scenario: what it took is neither there nor held |
| stopped wrong | navigate: it stopped too far from the target, or did not face it |
| collided | in more than `COLLIDED_SHARE` of the last `WINDOW` steps, something stopped its motion |
| never reached | it was never within `REACH` of what it should take, in place of the goal, in navigate of the target |
| not grasped | it was there, and did not take it |
| not released | place: it was at the goal, and did not let go |
| out of steps | the rest: its steps ran out |

Legend: T steps of the episode.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import torch

from paceline.sims.rearrangement.config import SCENARIOS
from paceline.sims.rearrangement.episode_record import EpisodeRecord
from paceline.sims.rearrangement.physics.world import NOTHING, handle_position
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.tasks.navigate import NEAR, STOPPING
from paceline.sims.rearrangement.tasks.rewards import CLOSE

WINDOW = 60
COLLIDED_SHARE = 0.5
REACH = 0.2
"""Distance of the tip from the centre of an object or handle that counts as there, in metres."""


class RobotFailure(Enum):
    """A class of failed episodes. The value explains it in a report."""

    WRONG_THING = "It took another thing."
    DROPPED = "It took the object, and let it go."
    PLACED_WRONG = f"It let an object go more than {100 * CLOSE:.0f} cm from its goal."
    STOPPED_WRONG = "It stopped too far from the target, or did not face it."
    COLLIDED = f"At the end it pushed against something: its motion was stopped in most of the last {WINDOW} steps."
    NEVER_REACHED = "It never came near its target."
    NOT_GRASPED = f"Its hand came within {100 * REACH:.0f} cm of the target, and did not take it."
    NOT_RELEASED = "It brought the object to the goal, and did not let it go."
    OUT_OF_STEPS = "It had done a part, and had no steps left for the rest."

    @property
    def label(self) -> str:
        return self.name.replace("_", " ").lower()


def robot_failure(task: str, bank: HouseBank, episode: EpisodeRecord) -> RobotFailure:
    """The class of a failed episode of `task`. The bank is on the host."""
    mistake = _mistake(task, bank, episode)
    if mistake is not None:
        return mistake
    last = [step.collided for step in episode.steps[-WINDOW:]]
    if sum(last) > COLLIDED_SHARE * len(last):
        return RobotFailure.COLLIDED
    reach = {"navigate": NEAR, "place": CLOSE}.get(task, REACH)
    if distances(task, bank, episode).min() > reach:
        return RobotFailure.NEVER_REACHED
    if task == "place" and not episode.releases():
        return RobotFailure.NOT_RELEASED
    took = any(step.taken in _wanted(task, episode) for step in episode.steps)
    return RobotFailure.OUT_OF_STEPS if took or task in ("navigate", "place") else RobotFailure.NOT_GRASPED


def distances(task: str, bank: HouseBank, episode: EpisodeRecord) -> np.ndarray:
    """[T + 1]: in navigate of the base from the target, in place of the object from its goal, otherwise of the tip from
    what it should take; in a scenario from the nearest object that it should move."""
    objects = episode.states.objects.double().numpy()[..., :3]
    if task == "navigate":
        return np.linalg.norm(episode.bases[:, :2] - episode.targets[:, :2], axis=1)
    if task == "place":
        return np.linalg.norm(objects[:, episode.wanted] - episode.targets, axis=1)
    if task == "pick":
        return np.linalg.norm(objects[:, episode.wanted] - episode.tips, axis=1)
    if task in SCENARIOS:
        return np.linalg.norm(objects[:, : SCENARIOS[task]] - episode.tips[:, None], axis=2).min(1)
    joint, values = bank.joints[episode.scene, episode.wanted], episode.states.values[:, episode.wanted]
    handle = bank.handles[episode.scene, episode.wanted].expand(len(values), -1)
    places = handle_position(joint.expand(len(values), -1), handle, values)
    return np.linalg.norm(places.double().numpy() - episode.tips, axis=1)


def _mistake(task: str, bank: HouseBank, episode: EpisodeRecord) -> RobotFailure | None:
    """The class of an episode that failed by what the robot did, not by what it did not do."""
    held, wanted, last = int(episode.states.held[-1]), _wanted(task, episode), episode.steps[-1]
    if task in SCENARIOS:
        if held != NOTHING and held not in wanted:
            return RobotFailure.WRONG_THING
        return RobotFailure.PLACED_WRONG if _lies_elsewhere(task, bank, episode, held) else None
    if task == "navigate":
        away = np.linalg.norm(episode.bases[-1, :2] - episode.targets[-1, :2])
        return RobotFailure.STOPPED_WRONG if last.stopped and away < STOPPING else None
    if last.taken != NOTHING and (task == "place" or last.taken not in wanted):
        return RobotFailure.WRONG_THING
    if task in ("pick", "place") and last.dropped == episode.wanted:
        if task == "pick":
            return RobotFailure.DROPPED
        return RobotFailure.PLACED_WRONG if distances(task, bank, episode)[-1] >= CLOSE else None
    return None


def _lies_elsewhere(task: str, bank: HouseBank, episode: EpisodeRecord, held: int) -> bool:
    """Whether an object that the robot had taken is neither at its goal nor in the hand."""
    goals = bank.goals[episode.scene, episode.number]
    taken = {step.taken for step in episode.steps} & set(range(SCENARIOS[task])) - {held}
    ends = episode.states.objects[-1, :, :3]
    return any(float(torch.dist(ends[number], goals[number])) > CLOSE for number in taken)


def _wanted(task: str, episode: EpisodeRecord) -> set[int]:
    """What the robot may take; see `NOTHING`."""
    num_objects, num_joints = episode.states.objects.shape[1], episode.states.values.shape[1]
    handles = range(num_objects, num_objects + num_joints)
    if task in SCENARIOS:
        return {*range(SCENARIOS[task]), *handles}
    if task in ("pick", "place", "navigate"):
        return {episode.wanted}
    return {handles[episode.wanted]}
