"""`RecordedActing`: acting on a GPU as one recorded graph, instead of some fifty kernel launches per batch.

Legend: N slots, B slots of a batch, P places of a recording (P >= B), D numbers of recurrent state.

A recording writes the outcomes of the last decisions, chooses the next actions and writes their rows. There are
recordings for few numbers of places. Places beyond the batch write to the buffer's spare row and to a spare slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.accel.cuda_graph import CudaGraph
from paceline.collect.actor import Actor
from paceline.collect.inference import bucket_of, choose
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import as_tensor
from paceline.experience.selection import Rows
from paceline.pool.protocol import StepBatch

FLAGS = ("terminated", "truncated", "lost")


class Recording(Protocol):
    """Work that was recorded."""

    def run(self) -> None: ...


class RecordedActing:
    """An `Acting`."""

    def __init__(
        self,
        actor: Actor,
        buffer: RolloutBuffer,
        record: Callable[[Callable[[], None]], Recording] | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """With a `stream`, actions are chosen on it, so that the recordings of several policies run side by side."""
        assert buffer.has_spare_row, "the buffer needs a spare row"
        self._stream = stream
        self._count = 0
        """Slots of the last batch."""
        self._actor, self._buffer = actor, buffer
        self._record = record or partial(CudaGraph, generator=actor.inference.generator)
        self._policy = actor.inference.policy
        self._state, self._starts = actor.with_spare_slot()
        self._num_slots, device = buffer.layout.num_slots, self._state.device
        where = {"rows": np.int64, "slots": np.int64}
        flags = dict.fromkeys((*FLAGS, "fresh"), np.bool_)
        self._decisions = StagingBuffer(self._num_slots, {**where, "active": np.bool_}, device)
        self._outcomes = StagingBuffer(self._num_slots, {**where, "reward": np.float32, **flags}, device)
        self._obs: dict[str, Tensor] = {}
        """[N, ...] on the device, by place."""
        self._actions: dict[str, Tensor] = {}
        """[N, ...] on the host, by place: the last actions, as the pool takes them."""
        self._acts: dict[int, Recording] = {}
        self._flushes: dict[int, Recording] = {}
        self._waiting = 0
        """Places of `_outcomes` that no recording has written yet."""
        self._is_copying = False
        """Whether `_outcomes` may still be on its way to the device."""
        # The host sleeps instead of spinning: simulators need the core.
        self._done = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        self._address_spare(self._outcomes, 0)

    def start(self, batch: StepBatch) -> None:
        if self._stream is None:
            self._start(batch)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._start(batch)

    def _start(self, batch: StepBatch) -> None:
        self._count = count = len(batch)
        if not self._obs:
            self._allocate(batch)
        places = bucket_of(count, self._num_slots)
        if self._waiting > places:
            self.flush()
        if not self._waiting:
            self._wait_for_copy()
            self._address_spare(self._outcomes, 0)
        self._address(self._decisions, batch, self._buffer.layout.begin(batch))
        self._decisions.host["active"][:count] = batch.active
        self._actor.remember_active(batch)
        with self._actor.clock.time("transfer"):
            for name, values in batch.obs.items():
                self._obs[name][:count].copy_(as_tensor(values), non_blocking=True)
        if places not in self._acts:
            self._acts[places] = self._record(lambda: self._act(places))
        self._acts[places].run()
        self._waiting = 0
        if self._done is not None:
            self._done.record()

    def actions(self) -> Mapping[str, Any]:
        if self._done is not None:
            self._done.synchronize()
        self._is_copying = False
        return {name: values[: self._count].numpy() for name, values in self._actions.items()}

    def write_decisions(self) -> None:
        """The recording has written them."""

    def write_outcomes(self, batch: StepBatch) -> None:
        self.flush()
        self._wait_for_copy()
        rows, count = self._buffer.layout.complete(batch), len(batch)
        truncations = self._actor.truncations(batch)
        if truncations is not None:
            self._buffer.add_truncations(truncations, rows)
        self._address(self._outcomes, batch, rows)
        host = self._outcomes.host
        for name in ("reward", *FLAGS):
            host[name][:count] = getattr(batch, name)
        host["fresh"][:count] = self._actor.fresh(batch)
        self._waiting = count

    def flush(self) -> None:
        if self._waiting:
            places = bucket_of(self._waiting, self._num_slots)
            if places not in self._flushes:
                self._flushes[places] = self._record(lambda: self._write_outcomes(places))
            self._flushes[places].run()
            self._waiting, self._is_copying = 0, True

    # ---------------------------------------------------------------- recorded

    @torch.no_grad()
    def _act(self, places: int) -> None:
        self._write_outcomes(places)
        staged = self._decisions.on_device(places)
        slots, policy = staged["slots"], self._policy
        obs = {name: values[:places] for name, values in self._obs.items()}
        state = self._state[slots]
        values = {f"obs/{name}": column for name, column in obs.items()}
        values |= {"episode_start": self._starts[slots], "valid": staged["active"], "version": policy.version}
        choice = choose(policy, obs, state, self._actor.inference.generator)
        for name, taken in policy.head.env_actions(choice.actions).items():
            self._actions[name][:places].copy_(taken, non_blocking=True)
        values |= {f"actions/{name}": column for name, column in choice.actions.items()}
        values |= {"log_prob": choice.log_prob, "value": choice.value}
        if self._state.shape[1]:
            values["state"] = state
            self._state.index_copy_(0, slots, choice.state)
        self._buffer.write(staged["rows"], values)

    @torch.no_grad()
    def _write_outcomes(self, places: int) -> None:
        staged = self._outcomes.on_device(places)
        rows, slots, fresh = staged["rows"], staged["slots"], staged["fresh"]
        values = {name: staged[name] for name in ("reward", "terminated", "truncated")}
        values["valid"] = self._buffer.valid[rows] & ~staged["lost"]
        self._buffer.write(rows, values)
        self._starts.index_copy_(0, slots, fresh)
        if self._state.shape[1]:
            self._state.index_copy_(0, slots, torch.where(fresh[:, None], 0.0, self._state[slots]))

    # ---------------------------------------------------------------- around it

    def _address(self, staging: StagingBuffer, batch: StepBatch, rows: Rows) -> None:
        """The first places belong to the slots of `batch`, the others to no slot."""
        count = len(batch)
        staging.host["rows"][:count] = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.numpy()
        staging.host["slots"][:count] = batch.slots
        self._address_spare(staging, count)

    def _address_spare(self, staging: StagingBuffer, first: int) -> None:
        staging.host["rows"][first:] = self._buffer.layout.capacity
        staging.host["slots"][first:] = self._num_slots

    @torch.no_grad()
    def _allocate(self, batch: StepBatch) -> None:
        """Memory whose shape follows from observations and actions."""
        device, slots = self._state.device, self._num_slots
        for name, values in batch.obs.items():
            example = as_tensor(values)
            self._obs[name] = torch.zeros((slots, *example.shape[1:]), dtype=example.dtype, device=device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # these actions are only examples
            chosen = choose(self._policy, self._obs, self._state[:slots]).actions
        self._buffer.make_columns(self._obs, chosen, self._state)
        self._actions = {
            name: torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
            for name, values in self._policy.head.env_actions(chosen).items()
        }

    def _wait_for_copy(self) -> None:
        """Until `_outcomes` may be written to."""
        if self._is_copying:
            self._wait()

    def _wait(self) -> None:
        """Until the device is done."""
        if self._done is not None:
            self._done.record()
            self._done.synchronize()
        self._is_copying = False


class StagingBuffer:
    """Arrays of N entries in one piece of host memory, and the same on the device. One copy takes them there."""

    def __init__(self, entries: int, fields: Mapping[str, Any], device: torch.device) -> None:
        sizes = [entries * np.dtype(kind).itemsize for kind in fields.values()]
        begins = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes)]).tolist()
        self._here = torch.zeros(begins[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._there = torch.zeros(begins[-1], dtype=torch.uint8, device=device)
        spans = {name: slice(begin, begin + size) for name, begin, size in zip(fields, begins[:-1], sizes, strict=True)}
        self.host = {name: self._here.numpy()[spans[name]].view(kind) for name, kind in fields.items()}
        """[N] by name, to be written. Not while a copy is on its way."""
        like = {name: torch.from_numpy(array).dtype for name, array in self.host.items()}
        self._device = {name: self._there[spans[name]].view(like[name]) for name in fields}

    def on_device(self, count: int) -> dict[str, Tensor]:
        """Copy everything to the device; the first `count` entries of every array there."""
        self._there.copy_(self._here, non_blocking=True)
        return {name: array[:count] for name, array in self._device.items()}
