"""What maps mark of a task: its target, or the goals of its objects."""

from __future__ import annotations

from paceline.sims.rearrangement.config import SCENARIOS
from paceline.sims.rearrangement.episode_record import EpisodeRecord
from paceline.sims.rearrangement.objects import OBJECT_KINDS
from paceline.sims.rearrangement.rendering.house_map import Goal
from paceline.sims.rearrangement.scenes.bank import HouseBank


def goals_of(task: str, bank: HouseBank, episode: EpisodeRecord) -> list[Goal]:
    """A scenario has several goals, in the colours of their objects. A skill has one target."""
    if task not in SCENARIOS:
        x, y, _ = episode.targets[0].tolist()
        return [Goal(x, y)]
    at, count = (episode.scene, episode.number), SCENARIOS[task]
    kinds = bank.object_kinds[at].tolist()[:count]
    places = bank.goals[at].tolist()[:count]
    return [Goal(x, y, OBJECT_KINDS[kind].color) for kind, (x, y, _) in zip(kinds, places, strict=True)]
