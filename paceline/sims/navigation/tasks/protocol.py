"""`Task`: what the simulator asks of a task, and `Streams`: what a task knows of the simulator.

Legend: N streams, K scenes, E episodes, C columns of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Space
from torch import Tensor

from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.paths import Paths

Columns = tuple[Tensor, ...]
"""C tensors [N]."""


@dataclass(frozen=True)
class Streams:
    """The episodes that the agents are in. The tensors stay in the same memory. A task writes only to `choices`."""

    bank: SceneBank
    paths: Paths
    scenes: Tensor
    """int64 [N]: the scene of each stream."""
    rows: Tensor
    """int64 [N]: the episode of each stream, scene * E + episode."""
    choices: Tensor
    """int64 [K]: new episodes are drawn from the first so many of each scene. 0: the scene has none of this task."""


class Judgement(NamedTuple):
    """What a step was worth."""

    reward: Tensor
    """[N]."""
    measures: dict[str, Tensor]
    """[N] each. They are final where the step ended the episode."""


class Marks(NamedTuple):
    """What a map shows of an episode."""

    start: tuple[float, float]
    goal: tuple[float, float] | None = None
    path: np.ndarray | None = None
    """float64 [L, 2]: the shortest path to the goal."""


class Task(Protocol):
    """Goal, reward and measures of N streams.

    Its numbers per stream are columns of the simulator's state, between the pose and the counters (see `layout`). No
    method waits for the device, except `check_scenes`, `scenes_changed`, `marks` and those of the saved state.
    """

    measure_names: tuple[str, ...]
    """The measures that a training run reports."""
    num_columns: int
    """C."""
    spaces: dict[str, Space]
    """Of what `observe` returns."""

    def check_scenes(self, rows: Mapping[str, Tensor]) -> None:
        """Raise `UsageError` if scenes may not come into the bank. They are given as rows of its tensors."""
        ...

    def scenes_changed(self) -> None:
        """Update `Streams.choices`, and all else that depends on the scenes of the bank."""
        ...

    def begin(self, ended: Tensor, rows: Tensor) -> Tensor:
        """[N, 3 + C]: the start poses and the columns of the episodes `rows`. They count only in `ended` (bool [N])."""
        ...

    def advance(self, columns: Tensor, positions: Tensor) -> Columns:
        """From the columns [N, C] to those after the agents moved to `positions` [N, 2]."""
        ...

    def judge(self, before: Tensor, after: Tensor, stopped: Tensor) -> Judgement:
        """The step from one state to the next; `stopped` (bool [N]) marks agents that chose to stop."""
        ...

    def observe(self, state: Tensor, rows: Tensor, noise_keys: Tensor) -> dict[str, Tensor]:
        """The task's own observations in `state`, in the episodes `rows`. The streams may be there twice: before and
        after the reset of some."""
        ...

    def marks(self, row: int) -> Marks:
        """What a map shows of an episode. For reports."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class GoalTask(Task, Protocol):
    """A task with places to go to, for planners that know the map."""

    def distances(self, columns: Tensor, positions: Tensor) -> Tensor:
        """[N]: the geodesic distances from `positions` [N, 2] to the goals of the streams."""
        ...

    def next_places(self, columns: Tensor, positions: Tensor) -> Tensor:
        """[N, 2]: the next bend of each stream's shortest path from `positions` [N, 2], or its end."""
        ...
