"""`RolloutBuffer`: columns of rows on the learner's device, with one writer.

Legend: B slots of a batch, C truncated rows, D numbers of recurrent state, R rows of the buffer.

A row is one decision. It begins with what was known when the action was chosen, and is complete when its slot is
received again: the reward and the end flags that come with an observation belong to the row before it. A row is trained
on only if its slot was active when the row began, and if its simulator was not lost before the row was complete.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from paceline.experience.layouts import Layout, LockStep, Variable
from paceline.experience.rows import Decision, DeviceTruncations, Outcome, Truncations
from paceline.experience.selection import Rows, Selection
from paceline.pool.protocol import StepBatch

LayoutT = TypeVar("LayoutT", bound=Layout)


class RolloutBuffer(Generic[LayoutT]):
    """Rows by column. The layout says which row belongs to which slot.

    The memory of a column stays where it is, because recorded updates read it. Fresh memory is NaN where it can be.
    """

    def __init__(
        self,
        layout: LayoutT,
        device: torch.device,
        *,
        truncation_gap: int = 1,
        spare: bool = False,
        fresh: float = torch.nan,
    ) -> None:
        """`truncation_gap`: fewest steps between two truncations of a slot. It bounds the memory for final
        observations. With `spare`, the buffer has one row more than the layout. Padding is written there and never
        read. `fresh` is in the memory of rows that were never written. It must be finite if networks see such rows:
        those after the end of a chunk that was closed early."""
        self.layout, self.device = layout, device
        self.capacity = layout.capacity + spare
        self.log_prob, self.value, self.reward = (torch.full((self.capacity,), fresh, device=device) for _ in range(3))
        self.version = torch.zeros(self.capacity, dtype=torch.int64, device=device)
        self.terminated, self.truncated, self.episode_start, self.valid = (
            torch.zeros(self.capacity, dtype=torch.bool, device=device) for _ in range(4)
        )
        self.obs: dict[str, Tensor] = {}
        self.actions: dict[str, Tensor] = {}
        self.state = torch.empty(0)
        self._truncations: list[Truncations] = []
        self._most_truncations = -(-layout.capacity // (layout.num_slots * truncation_gap)) * layout.num_slots
        self._device_truncations: DeviceTruncations | None = None
        self._writable: dict[str, Any] = {}
        """The columns by name. On the host they are NumPy arrays, which are faster than tensors for few rows."""

    @property
    def has_spare_row(self) -> bool:
        return self.capacity > self.layout.capacity

    def begin(self, decision: Decision, batch: StepBatch | None = None) -> None:
        """One row for every slot of `batch`; in lock-step, for all slots."""
        self.write_decision(decision, self.open(decision, batch))

    def begin_inactive(self, batch: StepBatch) -> None:
        """Rows without a decision for the slots of `batch`. They are never trained on, but losses read them."""
        rows = self._on_device(self.layout.begin(batch))
        self.valid[rows] = False
        self.log_prob[rows] = self.value[rows] = 0.0

    def open(self, decision: Decision, batch: StepBatch | None = None) -> Rows:
        """The first half of `begin`: new rows with their observations. The pool overwrites those after `send`."""
        self.make_columns(decision.obs, decision.actions, decision.state)
        rows = self._on_device(self.layout.begin(batch))
        self.write(rows, {f"obs/{name}": values for name, values in decision.obs.items()})
        return rows

    def write_decision(self, decision: Decision, rows: Rows) -> None:
        """The second half of `begin`. It can wait until the slots are sent, but not until they are received."""
        values = {f"actions/{name}": values for name, values in decision.actions.items()}
        values |= {name: getattr(decision, name) for name in ("log_prob", "value", "episode_start", "version")}
        values["valid"] = decision.active
        if self.state.shape[1]:
            values["state"] = decision.state
        self.write(rows, values)

    def complete(self, outcome: Outcome, batch: StepBatch | None = None) -> None:
        """The outcome of the last decisions of the slots of `batch`."""
        self.write_outcome(outcome, self.layout.complete(batch))

    def write_outcome(self, outcome: Outcome, host_rows: Rows) -> None:
        """The outcome of rows that the layout has completed."""
        rows = self._on_device(host_rows)
        self.write(rows, {name: getattr(outcome, name) for name in ("reward", "terminated", "truncated")})
        if outcome.lost is not None:
            self.valid[rows] &= ~outcome.lost
        if outcome.truncations is not None:
            self.add_truncations(outcome.truncations, host_rows)
        if outcome.candidates is not None:
            if self._device_truncations is None:
                self._device_truncations = DeviceTruncations(outcome.candidates, self._most_truncations)
            self._device_truncations.add(outcome.candidates, outcome.truncated, rows)

    def write(self, rows: Rows, values: dict[str, Tensor]) -> None:
        """Write `rows` of columns, by name. This is the only writer of decisions and outcomes; it can be recorded."""
        on_host = self.device.type == "cpu"
        if not self._writable:
            self._writable = {name: column.numpy() if on_host else column for name, column in self._columns().items()}
        if on_host:
            at = rows if isinstance(rows, slice) else rows.numpy()
            for name, column_values in values.items():
                self._writable[name][at] = column_values.numpy()
        elif isinstance(rows, slice):
            for name, column_values in values.items():
                self._writable[name][rows] = column_values
        else:
            for name, column_values in values.items():
                self._writable[name].index_copy_(0, rows, column_values.expand(len(rows), *column_values.shape[1:]))

    def add_truncations(self, truncations: Truncations, rows: Rows) -> None:
        """Episodes that were truncated in some of `rows`; `truncations` has positions among them."""
        at = truncations.rows
        at = at + rows.start if isinstance(rows, slice) else rows[at]
        self._truncations.append(replace(truncations, rows=at))

    def take_truncations(self, selection: Selection | None = None) -> Truncations | None:
        """Remove and return all truncations, or those in the rows of `selection`, in one batch. None if there are none.

        Waits for the device, if only the device knows them.
        """
        if self._device_truncations is not None:
            found = self._device_truncations.take()
            return found if found is None or selection is None else _part_in(found, selection)
        mine, others = self._truncations, []
        if selection is not None and mine:
            chosen, mine = torch.from_numpy(selection.own_rows()), []
            for part in self._truncations:
                here = torch.isin(part.rows, chosen)
                mine += [part.part(here)] if here.any() else []
                others += [part.part(~here)] if not here.all() else []
        self._truncations = others
        if not mine:
            return None
        return Truncations(
            rows=torch.cat([part.rows for part in mine]).to(self.device),
            obs={name: torch.cat([part.obs[name] for part in mine]) for name in mine[0].obs},
            state=torch.cat([part.state for part in mine]),
        )

    def start_rollout(self: RolloutBuffer[LockStep] | RolloutBuffer[Variable]) -> None:
        """Begin the next rollout in the same memory. Rows in flight are its first rows."""
        if self._device_truncations is not None:
            self._device_truncations.clear()
        carried = self.layout.start()
        if carried is not None:
            old, new = (rows.to(self.device) for rows in carried)
            for column in self._columns().values():
                column[new] = column[old]

    def state_dict(self: RolloutBuffer[Variable]) -> dict[str, Any]:
        """The rollout that is being collected, rows in flight included."""
        rows = torch.from_numpy(self.layout.rows_begun()).to(self.device)
        truncations, cuts = self.take_truncations(), None
        if truncations is not None:
            truncations = replace(truncations, rows=truncations.rows.cpu())
            self._truncations = [truncations]
            obs = {name: values.cpu() for name, values in truncations.obs.items()}
            cuts = {"rows": truncations.rows, "state": truncations.state.cpu(), "obs": obs}
        columns = {name: column[rows].cpu() for name, column in self._columns().items()}
        return {"book": self.layout.state_dict(), "rows": columns, "cuts": cuts}

    def load_state_dict(self: RolloutBuffer[Variable], state: dict[str, Any]) -> None:
        """Continue a saved rollout. If the size of the buffer has changed since, its rows are given up."""
        if state["book"]["capacity"] != self.layout.capacity:
            return
        self.layout.load_state_dict(state["book"])
        saved = state["rows"]
        obs, actions = (
            {name.removeprefix(kind): rows for name, rows in saved.items() if name.startswith(kind)}
            for kind in ("obs/", "actions/")
        )
        self.make_columns(obs, actions, saved["state"])
        rows = torch.from_numpy(self.layout.rows_begun()).to(self.device)
        for name, column in self._columns().items():
            column[rows] = saved[name].to(self.device)
        if (cuts := state["cuts"]) is not None:
            obs = {name: values.to(self.device) for name, values in cuts["obs"].items()}
            self._truncations = [Truncations(rows=cuts["rows"], obs=obs, state=cuts["state"].to(self.device))]

    def make_columns(self, obs: dict[str, Tensor], actions: dict[str, Tensor], state: Tensor) -> None:
        """Columns for decisions that look like these examples [any number, ...], if they do not exist yet."""
        if not self.obs:
            self.obs = {name: self._like(values) for name, values in obs.items()}
            self.actions = {name: self._like(values) for name, values in actions.items()}
            self.state = self._like(state)

    def _columns(self) -> dict[str, Tensor]:
        named = ("log_prob", "value", "state", "version", "episode_start", "valid", "reward", "terminated", "truncated")
        return {
            **{f"obs/{name}": column for name, column in self.obs.items()},
            **{f"actions/{name}": column for name, column in self.actions.items()},
            **{name: getattr(self, name) for name in named},
        }

    def _like(self, example: Tensor) -> Tensor:
        return torch.zeros((self.capacity, *example.shape[1:]), dtype=example.dtype, device=self.device)

    def _on_device(self, rows: Rows) -> Rows:
        return rows if isinstance(rows, slice) else rows.to(self.device)


def _part_in(truncations: Truncations, selection: Selection) -> Truncations | None:
    """The truncations in the rows of `selection`."""
    here = torch.isin(truncations.rows.cpu(), torch.from_numpy(selection.own_rows()))
    if not here.any():
        return None
    at = torch.nonzero(here).squeeze(1).to(truncations.rows.device)
    obs = {name: values[at] for name, values in truncations.obs.items()}
    return Truncations(rows=truncations.rows[at], obs=obs, state=truncations.state[at])
