"""`Rollout`: one flat table of steps on the learner's device, for one update.

Legend: T steps, N slots, R rows, B rows of a mini-batch, C truncated rows, D numbers of recurrent state.

A row is one decision: begun with what was known when acting, completed when its slot is next received. Reward and end
flags that come with an observation belong to the row before it. A row is trained on only if its slot was active when
it was begun and its simulator was not lost before it was completed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.experience.chunks import ChunkBatch, Chunks
from paceline.experience.layouts import LockStep, Rows, Variable
from paceline.experience.rows import Cuts, Decision, DeviceCuts, Outcome
from paceline.ops.gae import gae
from paceline.pool.protocol import StepBatch


@dataclass(frozen=True, slots=True)
class Batch:
    """Full chunks, on their way from the thread that collected them to the one that learns from them."""

    book: ChunkBatch
    cuts: list[Cuts]


class Rollout:
    """A table of rows, and the book that says whose they are: `LockStep`, unless another is given.

    Its memory stays where it is, rollout after rollout: a recorded update may read it. `truncation_gap` says that no
    slot is truncated twice within so many turns, which bounds the final observations to keep. With `weighted`, rows
    of slots that gave more than their share weigh less. With `spare`, the table has one row more than the book, for whoever
    has to write somewhere (see `agent.acting`); nobody reads it.
    """

    def __init__(
        self,
        steps: int,
        num_slots: int,
        device: torch.device,
        truncation_gap: int = 1,
        *,
        book: LockStep | Variable | Chunks | None = None,
        weighted: bool = False,
        spare: bool = False,
    ) -> None:
        self.num_slots, self.device = num_slots, device
        self.book: LockStep | Variable | Chunks | ChunkBatch = book or LockStep(steps, num_slots)
        self._num_cells = rows = self.book.capacity + spare
        self.log_prob, self.value, self.reward, self.next_value, self.advantage, self.returns = (
            torch.full((rows,), torch.nan, device=device) for _ in range(6)
        )
        self.version = torch.zeros(rows, dtype=torch.int64, device=device)
        self.weight: Tensor | None = torch.ones(rows, device=device) if weighted else None
        """[R]: importance weights of the rows; None where all weigh the same."""
        self.terminated, self.truncated, self.episode_start, self.continues, self.valid = (
            torch.zeros(rows, dtype=torch.bool, device=device) for _ in range(5)
        )
        self.stale: Tensor | None = None
        """[R] bool: rows of the rollout before that are trained on once more, and counted nowhere; None for none."""
        self.obs: dict[str, Tensor] = {}
        self.actions: dict[str, Tensor] = {}
        self.state = torch.empty(0)
        self._cuts: list[Cuts] = []
        self._most_cuts = num_slots * -(-steps // truncation_gap)
        self._device_cuts: DeviceCuts | None = None
        self._table: Rollout | None = None
        self._written: dict[str, Any] = {}
        """The columns of `_columns`, once there are all; those on the host as arrays, to which few rows are written in half the time."""

    @property
    def num_rows(self) -> int:
        """The rows of this rollout are among the first so many; `valid` says which they are."""
        return self.book.num_rows

    @property
    def num_steps(self) -> int:
        """Steps that this rollout has brought. Asks the device."""
        return int(self.valid[: self.num_rows].sum())

    @property
    def turns(self) -> int | None:
        """Turns of all slots in lock-step; None where slots differ in steps."""
        return self.book.turns

    def columns(self) -> Tensor:
        """[T, N]: the rows of every slot, turn by turn; only where slots do not differ in steps."""
        if not isinstance(self.book, (LockStep, ChunkBatch)):
            raise ValueError("a rollout whose slots differ in steps has no whole columns")
        return self.book.columns(self.device)

    def clear(self) -> None:
        """The next rollout; memory is kept, and so are rows that are in flight."""
        self._cuts.clear()
        self.stale = None
        if self._device_cuts is not None:
            self._device_cuts.clear()
        assert isinstance(self.book, (LockStep, Variable))
        carried = self.book.start()
        if carried is not None:
            old, new, asked = (rows.to(self.device) for rows in carried)
            for column in self._columns().values():
                column[new] = column[old]
            self.valid[new] = asked  # in the rollout that is over they were not

    def begin(self, decision: Decision, batch: StepBatch | None = None) -> None:
        """One row for every slot of `batch`; in lock-step, for all slots."""
        self.note(decision, self.open(decision, batch))

    def open(self, decision: Decision, batch: StepBatch | None = None) -> Rows:
        """The first half of `begin`: rows, with what was observed, which is the pool's memory until the slots are sent."""
        self.make_columns(decision.obs, decision.actions, decision.state)
        assert not isinstance(self.book, ChunkBatch)
        rows = self._on_device(self.book.begin(batch))
        self._write({f"obs/{name}": values for name, values in decision.obs.items()}, rows)
        return rows

    def note(self, decision: Decision, rows: Rows) -> None:
        """The other half: what was decided. It can wait until the slots are sent, but not until they are received."""
        self._write(
            {
                **{f"actions/{name}": values for name, values in decision.actions.items()},
                "log_prob": decision.log_prob,
                "value": decision.value,
                "episode_start": decision.episode_start,
                "valid": decision.active,
                "version": decision.version,
            },
            rows,
        )
        if self.state.shape[1]:
            self._write({"state": decision.state}, rows)

    def complete(self, outcome: Outcome, batch: StepBatch | None = None) -> None:
        """What came of the last decisions of the slots of `batch`."""
        assert not isinstance(self.book, ChunkBatch)
        self.note_outcome(outcome, self.book.complete(batch))

    def note_outcome(self, outcome: Outcome, known: Rows) -> None:
        """What came of rows that the book says were completed."""
        rows = self._on_device(known)
        self._write({"reward": outcome.reward, "terminated": outcome.terminated, "truncated": outcome.truncated}, rows)
        if outcome.lost is not None:
            self.valid[rows] &= ~outcome.lost
        if outcome.cuts is not None:
            self.note_cuts(outcome.cuts, known)
        if outcome.unsure_cuts is not None:
            assert isinstance(rows, slice), "simulators on the device are stepped together"
            if self._device_cuts is None:
                self._device_cuts = DeviceCuts(outcome.unsure_cuts, self._most_cuts)
            self._device_cuts.add(outcome.unsure_cuts, outcome.truncated, first_row=rows.start)

    def note_cuts(self, cuts: Cuts, rows: Rows) -> None:
        """Episodes that were truncated in some of `rows`, which the book says were completed; `cuts` has positions among them."""
        at = cuts.rows
        self._cuts.append(replace(cuts, rows=at + rows.start if isinstance(rows, slice) else rows[at]))

    def cuts(self) -> Cuts | None:
        """All truncations of the rollout in one batch; None if there was none. Asks the device, if only it knows."""
        if self._device_cuts is not None:
            return self._device_cuts.take()
        if not self._cuts:
            return None
        return Cuts(
            rows=torch.cat([cut.rows for cut in self._cuts]).to(self.device),
            obs={name: torch.cat([cut.obs[name] for cut in self._cuts]) for name in self._cuts[0].obs},
            state=torch.cat([cut.state for cut in self._cuts]),
        )

    def finish(
        self,
        last_value: Tensor,
        cuts: Cuts | None = None,
        cut_value: Tensor | None = None,
        *,
        discount: float,
        trace_decay: float,
        advantages: bool = True,
    ) -> None:
        """Say of every row what followed it (`next_value`, `continues`); with `advantages`, compute those, and value
        targets, by generalized advantage estimation.

        `last_value` [N] is V of the observation after each slot's last row, where that row is complete (a row in
        flight is never looked beyond); `cut_value` [C] is that of the rollout's `cuts`.
        """
        if isinstance(self.book, Variable):
            self._take_from_book(self.book)
        assert not isinstance(self.book, Chunks)
        streams = self.book.streams(self.device)
        value, terminated, truncated = (streams.of(c) for c in (self.value, self.terminated, self.truncated))
        valid = streams.of(self.valid)
        following = torch.cat([value[1:], last_value[None]])
        if streams.present is not None:
            valid = valid & streams.present
            goes_on = torch.cat([streams.present[1:], torch.zeros_like(streams.present[:1])])
            following = torch.where(goes_on, following, last_value[None])
        streams.write(self.next_value, following)
        if cuts is not None:
            assert cut_value is not None
            self.next_value[cuts.rows] = cut_value
        next_value = torch.where(terminated, 0.0, streams.of(self.next_value))
        # A row without an outcome, lost or in flight: the row before it stops at its value, as at a rollout's end.
        follows = torch.cat([valid[1:], torch.zeros_like(valid[:1])])
        # Where there is no outcome, memory may hold anything, NaN included, which no weight of 0 would stop.
        reward, known_value, next_value = (
            torch.where(valid, x, 0.0) for x in (streams.of(self.reward), value, next_value)
        )
        continues = follows & valid & ~terminated & ~truncated
        streams.write(self.next_value, next_value)
        streams.write(self.continues, continues)
        if not advantages:
            return
        advantage = gae(reward, known_value, next_value, continues, discount=discount, trace_decay=trace_decay)
        advantage = torch.where(valid, advantage, 0.0)
        streams.write(self.advantage, advantage)
        streams.write(self.returns, advantage + value)

    def frozen(self) -> Rollout:
        """This rollout as it is now, to learn from while the next is collected into the same table: only the book and
        the masks are copied, so its rows must be among those that the book keeps."""
        frozen = copy.copy(self)
        frozen.book, frozen.valid = copy.deepcopy(self.book), self.valid.clone()
        return frozen

    def view(self) -> Rollout:
        """A rollout over the same table, to learn from batches of full chunks while others are filled: see `show`."""
        view = copy.copy(self)
        view._table, view.valid, view._cuts = self, torch.zeros_like(self.valid), []
        return view

    def show(self, batch: Batch) -> None:
        """Let this view be of a batch, and of nothing else. Its memory stays where it is."""
        table = self._table
        assert table is not None
        self.book, self.num_slots, self._cuts = batch.book, batch.book.num_slots, batch.cuts
        self.obs, self.actions, self.state = table.obs, table.actions, table.state
        rows = batch.book.columns(self.device)
        self.valid.zero_()
        self.valid[rows] = table.valid[rows]

    def drop_older(self, version: Tensor) -> Tensor:
        """Leave out rows that weights before `version` decided. Returns how many these are, on the device."""
        old = self.valid & (self.version < version)
        self.valid &= ~old
        return old.sum()

    def take(self, count: int) -> Batch:
        """The `count` chunks that have been full for longest, with what is known of their ends."""
        assert isinstance(self.book, Chunks)
        book, mine, others = self.book.take(count), [], []
        for cuts in self._cuts:
            here = book.holds(cuts.rows)
            mine += [cuts.part(here)] if here.any() else []
            others += [cuts.part(~here)] if not here.all() else []
        self._cuts = others
        return Batch(book, mine)

    def completed_turns(self) -> list[tuple[Tensor, Rows]]:
        """Slots and rows of every slot's first completed row, then of every slot's second, and so on."""
        assert not isinstance(self.book, Chunks)
        return [(slots.to(self.device), self._on_device(rows)) for slots, rows in self.book.completed_turns()]

    def _take_from_book(self, book: Variable) -> None:
        """What only the book knows: which rows are this rollout's, which are stale, and what they weigh."""
        valid, stale = book.valid(), book.stale()
        self.valid[: self.num_rows].copy_(torch.from_numpy(valid))
        self.stale = torch.from_numpy(stale).to(self.device) if stale is not None else None
        if self.weight is not None:
            rows = np.flatnonzero(valid)
            weights = torch.from_numpy(book.weights()[book.slots_of(rows)]).float()
            self.weight[torch.from_numpy(rows).to(self.device)] = weights.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """What a variable rollout has so far; nothing may be in flight."""
        assert isinstance(self.book, Variable)
        rows = torch.from_numpy(self.book.rows_begun()).to(self.device)
        cuts = self.cuts()
        return {
            "book": self.book.state_dict(),
            "rows": {name: column[rows].cpu() for name, column in self._columns().items()},
            "cuts": None if cuts is None else _to_host({"rows": cuts.rows, "state": cuts.state, "obs": cuts.obs}),
        }

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether a saved rollout had this one's size."""
        return isinstance(self.book, Variable) and state["book"]["capacity"] == self.book.capacity

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A new rollout goes on as the saved one did."""
        assert isinstance(self.book, Variable)
        self.book.load_state_dict(state["book"])
        saved = state["rows"]
        if not self.obs:
            self.obs, self.actions = (
                {name.removeprefix(kind): self._like(rows) for name, rows in saved.items() if name.startswith(kind)}
                for kind in ("obs/", "actions/")
            )
            self.state = self._like(saved["state"])
        rows = torch.from_numpy(self.book.rows_begun()).to(self.device)
        for name, column in self._columns().items():
            column[rows] = saved[name].to(self.device)
        if state["cuts"] is not None:
            obs = {name: values.to(self.device) for name, values in state["cuts"]["obs"].items()}
            after = state["cuts"]["state"].to(self.device)
            self._cuts = [Cuts(rows=state["cuts"]["rows"], obs=obs, state=after)]

    def _columns(self) -> dict[str, Tensor]:
        """All that a row is before targets are computed."""
        return {
            **{f"obs/{name}": column for name, column in self.obs.items()},
            **{f"actions/{name}": column for name, column in self.actions.items()},
            "log_prob": self.log_prob,
            "value": self.value,
            "state": self.state,
            "version": self.version,
            "episode_start": self.episode_start,
            "valid": self.valid,
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
        }

    def _write(self, values: dict[str, Tensor], rows: Rows) -> None:
        """`rows` of columns, by name."""
        on_host = self.device.type == "cpu"
        if not self._written:
            self._written = {name: column.numpy() if on_host else column for name, column in self._columns().items()}
        at = rows.numpy() if on_host and not isinstance(rows, slice) else rows
        for name, column_values in values.items():
            self._written[name][at] = column_values.numpy() if on_host else column_values

    def make_columns(self, obs: dict[str, Tensor], actions: dict[str, Tensor], state: Tensor) -> None:
        """Those that are still missing, for decisions that look like these examples [any number, ...]."""
        if self.obs:
            return
        self.obs = {name: self._like(values) for name, values in obs.items()}
        self.actions = {name: self._like(values) for name, values in actions.items()}
        self.state = self._like(state)

    def _like(self, example: Tensor) -> Tensor:
        return torch.zeros((self._num_cells, *example.shape[1:]), dtype=example.dtype, device=self.device)

    def _on_device(self, rows: Rows) -> Rows:
        return rows if isinstance(rows, slice) else rows.to(self.device)


def _to_host(tree: Any) -> Any:
    return {name: _to_host(value) for name, value in tree.items()} if isinstance(tree, dict) else tree.cpu()
