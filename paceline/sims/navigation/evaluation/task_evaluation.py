"""`TaskEvaluation`: what evaluation and reports know of a task. Each task has one, in the file of its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from paceline.sims.navigation.simulator import Navigation


class Agent(Protocol):
    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        """The actions of N streams; `began` (bool [N]) marks the first observations of episodes."""
        ...


@dataclass(frozen=True)
class Baseline:
    """An agent without training."""

    make: Callable[[Navigation, int], Agent]
    """From the simulator and a seed."""
    options: Mapping[str, Any] = field(default_factory=lambda: {"sensors": "blind"})
    """The options that it needs, in place of the given ones."""


@dataclass(frozen=True)
class Measure:
    """How a measure is shown."""

    label: str
    form: str = "{:.3f}"

    def show(self, value: float) -> str:
        return self.form.format(value)


@dataclass(frozen=True)
class Bins:
    """Episodes by the size of their task."""

    measure: str
    label: str
    heading: str = "By distance to go"
    edges: tuple[float, ...] = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0, 20.0, 25.0, 30.0)
    unit: str = " m"


class Measured(Protocol):
    """What a summary of episodes needs to know of a task."""

    @property
    def measures(self) -> Mapping[str, Measure]: ...
    @property
    def bins(self) -> Bins | None: ...


class ShownMeasures(Measured, Protocol):
    """What a report needs to know of a task's measures."""

    @property
    def main(self) -> tuple[str, ...]:
        """The measures that tell how good an agent is."""
        ...

    @property
    def rates(self) -> tuple[str, ...]:
        """Measures between 0 and 1."""
        ...

    @property
    def labels(self) -> dict[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class TaskEvaluation:
    """What is measured and shown of a task."""

    task: str
    measures: Mapping[str, Measure]
    """Their means are reported."""
    main: tuple[str, ...]
    """The measures that tell how good an agent is. A report shows them first, with confidence intervals."""
    rates: tuple[str, ...]
    """Measures between 0 and 1, for the chart of training."""
    baselines: Mapping[str, Baseline]
    in_report: Mapping[str, str]
    """The baselines that take little time, and their names in reports."""
    about_baselines: str
    """One sentence of the report."""
    order: str
    """Episodes on maps are sorted by this measure."""
    order_words: str
    """The same in words."""
    caption: Callable[[Mapping[str, float]], tuple[str, str]]
    """From the measures of an episode to its result in a word, and a sentence for its map."""
    bins: Bins | None = None
    """None: episodes are not divided by size."""
    found_distance: Callable[[Any], float] | None = None
    """From the task's options to the largest `distance_to_goal` at which the goal counts as found. None: a task without
    success, or whose failures a report does not explain."""
    ways_left: Callable[[Any, int], np.ndarray] = lambda played, number: played.routes[number].distances
    """From `PlayedEpisodes` and the number of an episode to what `found_distance` limits: the distance after every
    action."""
    planners: Mapping[str, str] = field(default_factory=dict)
    """Baselines that show where a policy loses SPL, and their names in reports. They take more time, so they play fewer
    episodes. The last one knows the map."""
    about_planners: str = ""
    """One or two sentences of the report."""

    @property
    def labels(self) -> dict[str, str]:
        return {name: measure.label for name, measure in self.measures.items()}
