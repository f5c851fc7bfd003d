"""`KindRollouts`: one rollout of T * N completed rows, whose rows are in one buffer for each kind of agents.

Legend: T steps, N slots of the pool, M slots of a kind.
"""

from __future__ import annotations

import numpy as np
import torch

from paceline.collect.kind_slots import KindSlots, all_kinds
from paceline.experience.layouts import Variable
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.pool.protocol import PoolSpec


class KindRollouts:
    """The kinds fill the rollout together. In turn-based games some kinds may give more rows for each slot than others.

    With one kind this is one `Variable` layout.
    """

    def __init__(self, steps: int, spec: PoolSpec, device: torch.device, *, kept: int, weighted: bool) -> None:
        self._kinds = all_kinds(spec)
        self._layouts = [
            Variable(steps, kind.spec.num_slots, kept, weighted=weighted, room=_room(steps, kind))
            for kind in self._kinds
        ]
        self.buffers = [RolloutBuffer(layout, device, spare=True) for layout in self._layouts]
        """By kind."""
        self.goal = steps * spec.num_slots

    @staticmethod
    def rows_needed(steps: int, kind: KindSlots, kept: int) -> int:
        """Rows of the buffer of a kind."""
        return Variable.rows_needed(steps, kind.spec.num_slots, kept, _room(steps, kind))

    @property
    def completed(self) -> int:
        """Rows that count in this rollout."""
        return sum(layout.completed for layout in self._layouts)

    @property
    def is_full(self) -> bool:
        """Whether this rollout is over: it is complete, or lost rows left no room for another step of all slots."""
        return self.completed >= self.goal or not all(layout.has_room for layout in self._layouts)

    @property
    def collected(self) -> np.ndarray:
        """[N]: rows of each slot that count in this rollout."""
        if len(self._layouts) == 1:
            return self._layouts[0].collected
        counts = np.zeros(self._kinds[0].whole.num_slots, np.int64)
        for kind, layout in zip(self._kinds, self._layouts, strict=True):
            counts[kind.slots] = layout.collected
        return counts

    def end(self) -> None:
        """The rollout is over, maybe early. Each kind lacks rows in proportion to those that it has given."""
        completed = self.completed
        if len(self._layouts) > 1 and completed:
            for layout in self._layouts:
                layout.goal = round(self.goal * layout.completed / completed)

    def start(self) -> None:
        """Begin the next rollout."""
        for buffer in self.buffers:
            buffer.start_rollout()


def _room(steps: int, kind: KindSlots) -> int:
    """Rows of a kind that a rollout can complete.

    Where agents take turns, all rows may be of one kind. Where all act at once, all slots of an environment come back
    together, so every kind has its share.
    """
    return steps * (kind.whole if kind.whole.turn_based else kind.spec).num_slots
