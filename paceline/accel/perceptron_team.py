"""`PerceptronTeam`: several perceptrons that decide for one batch, each for rows of its own.

Legend: B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.accel.perceptron import Perceptron


class TeamAct(NamedTuple):
    """Actions of all rows of a batch."""

    actions: dict[str, Tensor]
    env_actions: dict[str, np.ndarray]
    """As the environment takes them: within bounds."""
    judge: Callable[[], tuple[Tensor, Tensor]]
    """Computes the log-probability and value of every row, by the same weights. Simulators can step meanwhile."""


class PerceptronTeam:
    """The perceptrons may differ in their weights only. One without rows in a batch is not computed."""

    def __init__(self, members: Sequence[Perceptron]) -> None:
        self._members = members
        self._draws_together = members[0].draws_by_outputs

    def __len__(self) -> int:
        return len(self._members)

    def act(self, obs: dict[str, Tensor], which: np.ndarray | None) -> TeamAct:
        """An action for every row. `which` [B] says which perceptron decides; None stands for the only one.

        Do not write to `obs` before `judge` was called."""
        if which is None:
            return self._act([(self._members[0], obs)], None)
        order = np.argsort(which, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        in_order = {name: torch.from_numpy(values.numpy()[order]) for name, values in obs.items()}
        ends = np.bincount(which, minlength=len(self)).cumsum().tolist()
        spans = zip(self._members, [0, *ends[:-1]], ends, strict=True)
        parts = [(m, {name: v[begin:end] for name, v in in_order.items()}) for m, begin, end in spans if begin < end]
        return self._act(parts, place)

    def _act(self, parts: list[tuple[Perceptron, dict[str, Tensor]]], place: np.ndarray | None) -> TeamAct:
        """`parts` are the observations of each perceptron. `place` [B]: where a row of the batch is among theirs, one
        perceptron after the other; None: there is one perceptron."""

        def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
            rows = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            return rows if place is None else rows[place]

        passes = [(member, member.forward(obs)) for member, obs in parts]
        outputs = [done.outputs for _, done in passes]
        if self._draws_together and len(passes) > 1:
            drawn = [self._members[0].draw(np.concatenate(outputs))]
        else:
            drawn = [member.draw(done.outputs) for member, done in passes]

        def judge() -> tuple[Tensor, Tensor]:
            log_prob = joined([own.log_prob().numpy() for own in drawn])
            value = joined([member.value(done).numpy() for member, done in passes])
            return torch.from_numpy(log_prob), torch.from_numpy(value)

        actions = {
            name: torch.from_numpy(joined([own.actions[name].numpy() for own in drawn])) for name in drawn[0].actions
        }
        env_actions = {name: joined([own.env_actions[name] for own in drawn]) for name in drawn[0].env_actions}
        return TeamAct(actions, env_actions, judge)
