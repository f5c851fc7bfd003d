"""What happened to a population: a line in population.jsonl for every member and round, and its readers for reports."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.population.pbt import Change

FILE = "population.jsonl"


@dataclass(frozen=True, kw_only=True)
class PopulationEvent:
    """One round of one member."""

    step: int
    """The step of the member's run at which the round took place."""
    number: int
    """The number of the round."""
    change: Change

    def line(self) -> str:
        """As one line of JSON."""
        return json.dumps({"step": self.step, "round": self.number, **dataclasses.asdict(self.change)}, allow_nan=False)

    @classmethod
    def parse(cls, line: str | bytes) -> PopulationEvent:
        """Read what `line` wrote. Raises `ValueError` if it is something else."""
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError(f"expected an object, got {line!r}")
        try:
            step, number = int(fields.pop("step")), int(fields.pop("round"))
            return cls(step=step, number=number, change=Change(**fields))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an event of a population: {line!r}") from error


def read_events(folders: Iterable[Path]) -> list[PopulationEvent]:
    """The events in the run folders, by rising step.

    A run that was resumed from an earlier checkpoint repeats rounds. Of those the latest lines count. Lines that a
    killed run left incomplete do not.
    """
    latest: dict[str, list[PopulationEvent]] = {}
    for folder in folders:
        path = folder / FILE
        for line in path.read_bytes().splitlines() if path.exists() else []:
            try:
                event = PopulationEvent.parse(line)
            except ValueError:
                continue
            mine = latest.setdefault(event.change.member, [])
            while mine and mine[-1].number >= event.number:
                mine.pop()
            mine.append(event)
    return sorted((event for mine in latest.values() for event in mine), key=lambda event: event.step)


def values_over_time(events: Sequence[PopulationEvent], path: str) -> dict[str, list[tuple[int, float]]]:
    """For each member: step and value of a hyper-parameter after each of its rounds, after the value it began with."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        change = event.change
        if path in change.after:
            mine = found.setdefault(change.member, [(0, change.before.get(path, math.nan))])
            mine.append((event.step, change.after[path]))
    return found


def objectives_over_time(events: Sequence[PopulationEvent]) -> dict[str, list[tuple[int, float]]]:
    """For each member: step and objective at each of its rounds at which it had one."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        if event.change.objective is not None:
            found.setdefault(event.change.member, []).append((event.step, event.change.objective))
    return found


def ancestors(events: Sequence[PopulationEvent]) -> dict[str, list[tuple[int, str]]]:
    """For each member: from which step on it has weights that began in which member, starting with itself.

    Where members have clocks of their own, the donor's descent is that of the weights which it had handed out.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for event in events:
        mine = found.setdefault(event.change.member, [(0, event.change.member)])
        donor, donor_step = event.change.donor, event.change.donor_step
        if donor is not None and donor_step is not None:
            before = [name for step, name in found.get(donor, []) if step < donor_step]
            mine.append((event.step, before[-1] if before else donor))
    return found
