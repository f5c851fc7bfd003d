"""`RecordedActing`: acting on a GPU as one recorded graph, instead of some fifty kernel launches per batch.

Legend: N slots, B slots of a batch, L policies, P places of a recording for each policy, D numbers of recurrent state.

A recording writes the outcomes of the last decisions, chooses the next actions and writes their rows. There are
recordings for few numbers of places. Places beyond the batch write to the buffer's spare row and to a spare slot.

Several policies share one recording. Policy l has the places l * P to (l + 1) * P - 1. The passes through their
networks are branches of the graph, which the GPU runs at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.accel.cuda_graph import CudaGraph
from paceline.accel.cuda_streams import stream_for
from paceline.collect.actor import Actor, share_slots
from paceline.collect.inference import Choice, bucket_of, choose
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import as_tensor
from paceline.experience.selection import Rows
from paceline.pool.protocol import StepBatch

FLAGS = ("terminated", "truncated", "lost")
BRANCHES = 8
"""CUDA streams of the branches of a recording."""


class Recording(Protocol):
    """Work that was recorded."""

    def run(self) -> None: ...


class RecordedActing:
    """An `Acting`."""

    def __init__(
        self,
        actors: Sequence[Actor],
        buffer: RolloutBuffer,
        numbers: Sequence[int] = (0,),
        record: Callable[[Callable[[], None]], Recording] | None = None,
        *,
        learned: bool = True,
    ) -> None:
        """`numbers`, ascending, are those of the actors' policies in the layout of the buffer. `learned` says whether
        anything learns from their rows."""
        assert buffer.has_spare_row, "the buffer needs a spare row"
        self._actor, self._buffer, self._numbers, self._learned = actors[0], buffer, np.array(numbers), learned
        self._policies = [actor.inference.policy for actor in actors]
        self._generator = actors[0].inference.generator
        self._record = record or partial(CudaGraph, generator=self._generator)
        self._state, self._starts = share_slots(actors, numbers, buffer.layout.policies)
        self._num_slots, device = buffer.layout.num_slots, self._state.device
        where = {"rows": np.int64, "slots": np.int64}
        flags = dict.fromkeys((*FLAGS, "fresh"), np.bool_)
        entries = len(actors) * self._num_slots
        self._decisions = StagingBuffer(entries, {**where, "active": np.bool_, "in_batch": np.int64}, device)
        """By place. `in_batch` is the row of the batch."""
        self._outcomes = StagingBuffer(self._num_slots, {**where, "reward": np.float32, **flags}, device)
        """By row of the batch."""
        self._at: slice | np.ndarray = slice(0)
        """[B]: the places of the last batch."""
        self._obs: dict[str, Tensor] = {}
        """[N, ...] on the device, by row of the batch."""
        self._actions: dict[str, Tensor] = {}
        """[L * N, ...] on the host, by place: the last actions, as the pool takes them."""
        self._acts: dict[int, Recording] = {}
        self._flushes: dict[int, Recording] = {}
        self._waiting = 0
        """Rows of `_outcomes` that no recording has written yet."""
        self._is_copying = False
        """Whether `_outcomes` may still be on its way to the device."""
        # The host sleeps instead of spinning: simulators need the core.
        self._done = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        self._address_spare(self._outcomes, 0)

    def start(self, batch: StepBatch) -> None:
        if not self._obs:
            self._allocate(batch)
        places = self._assign_places(batch)
        if self._waiting > self._most_outcomes(places):
            self.flush()
        if not self._waiting:
            self._wait_for_copy()
            self._address_spare(self._outcomes, 0)
        self._address(self._decisions, self._at, batch, self._buffer.layout.begin(batch))
        self._decisions.host["active"][self._at] = batch.active
        self._decisions.host["in_batch"][self._at] = np.arange(len(batch))
        self._actor.remember_active(batch)
        with self._actor.clock.time("transfer"):
            for name, values in batch.obs.items():
                self._obs[name][: len(batch)].copy_(as_tensor(values), non_blocking=True)
        if places not in self._acts:
            self._acts[places] = self._record(lambda: self._act(places))
        self._acts[places].run()
        self._waiting = 0
        if self._done is not None:
            self._done.record()

    def _assign_places(self, batch: StepBatch) -> int:
        """Places for all rows of a batch. Returns P."""
        if len(self._policies) == 1:
            self._at = slice(len(batch))
            return bucket_of(len(batch), self._num_slots)
        assert self._buffer.layout.policies is not None
        which = np.searchsorted(self._numbers, self._buffer.layout.policies[batch.slots])
        counts = np.bincount(which, minlength=len(self._policies))
        places = bucket_of(int(counts.max()), self._num_slots)
        order = np.argsort(which, kind="stable")
        self._at = np.empty(len(batch), np.int64)
        self._at[order] = np.arange(len(batch)) + np.repeat(
            np.arange(len(counts)) * places - counts.cumsum() + counts, counts
        )
        return places

    def _most_outcomes(self, places: int) -> int:
        """Outcomes that a recording with this many places writes."""
        return min(self._num_slots, len(self._policies) * places)

    def actions(self) -> Mapping[str, Any]:
        if self._done is not None:
            self._done.synchronize()
        self._is_copying = False
        return {name: values.numpy()[self._at] for name, values in self._actions.items()}

    def write_decisions(self) -> None:
        """The recording has written them."""

    def write_outcomes(self, batch: StepBatch) -> None:
        self.flush()
        self._wait_for_copy()
        rows, count = self._buffer.layout.complete(batch), len(batch)
        truncations = self._actor.truncations(batch) if self._learned else None
        if truncations is not None:
            self._buffer.add_truncations(truncations, rows)
        self._address(self._outcomes, slice(count), batch, rows)
        host = self._outcomes.host
        for name in ("reward", *FLAGS):
            host[name][:count] = getattr(batch, name)
        host["fresh"][:count] = self._actor.fresh(batch)
        self._waiting = count

    def flush(self) -> None:
        if self._waiting:
            count = bucket_of(self._waiting, self._num_slots)
            if count not in self._flushes:
                self._flushes[count] = self._record(lambda: self._write_outcomes(count))
            self._flushes[count].run()
            self._waiting, self._is_copying = 0, True

    # ---------------------------------------------------------------- recorded

    @torch.no_grad()
    def _act(self, places: int) -> None:
        self._write_outcomes(self._most_outcomes(places))
        staged = self._decisions.on_device(len(self._policies) * places)
        slots = staged["slots"]
        obs = self._obs_by_place(staged["in_batch"])
        state = self._state[slots]
        values = {f"obs/{name}": column for name, column in obs.items()}
        values |= {"episode_start": self._starts[slots], "valid": staged["active"], "version": self._versions(places)}
        choice = self._choose(obs, state, places)
        for name, taken in self._policies[0].head.env_actions(choice.actions).items():
            self._actions[name][: len(slots)].copy_(taken, non_blocking=True)
        values |= {f"actions/{name}": column for name, column in choice.actions.items()}
        values |= {"log_prob": choice.log_prob, "value": choice.value}
        if self._state.shape[1]:
            values["state"] = state
            self._state.index_copy_(0, slots, choice.state)
        self._buffer.write(staged["rows"], values)

    def _obs_by_place(self, in_batch: Tensor) -> dict[str, Tensor]:
        if len(self._policies) == 1:
            return {name: values[: len(in_batch)] for name, values in self._obs.items()}
        return {name: values[in_batch] for name, values in self._obs.items()}

    def _versions(self, places: int) -> Tensor:
        versions = [policy.version for policy in self._policies]
        return versions[0] if len(versions) == 1 else torch.stack(versions).repeat_interleave(places)

    def _choose(self, obs: dict[str, Tensor], state: Tensor, places: int) -> Choice:
        """Every policy chooses for its places."""
        if len(self._policies) == 1:
            return choose(self._policies[0], obs, state, self._generator)
        choices: list[Choice] = []
        with contextlib.ExitStack() as joined:
            for number, policy in enumerate(self._policies):
                own = slice(number * places, (number + 1) * places)
                with joined.enter_context(_branch(number, state.device)):
                    part = {name: values[own] for name, values in obs.items()}
                    choices.append(choose(policy, part, state[own], self._generator))
        actions = {name: torch.cat([choice.actions[name] for choice in choices]) for name in choices[0].actions}
        log_prob, value, after = (torch.cat(parts) for parts in zip(*(choice[1:] for choice in choices), strict=True))
        return Choice(actions, log_prob, value, after)

    @torch.no_grad()
    def _write_outcomes(self, count: int) -> None:
        staged = self._outcomes.on_device(count)
        rows, slots, fresh = staged["rows"], staged["slots"], staged["fresh"]
        values = {name: staged[name] for name in ("reward", "terminated", "truncated")}
        values["valid"] = self._buffer.valid[rows] & ~staged["lost"]
        self._buffer.write(rows, values)
        self._starts.index_copy_(0, slots, fresh)
        if self._state.shape[1]:
            self._state.index_copy_(0, slots, torch.where(fresh[:, None], 0.0, self._state[slots]))

    # ---------------------------------------------------------------- around it

    def _address(self, staging: StagingBuffer, at: slice | np.ndarray, batch: StepBatch, rows: Rows) -> None:
        """The places `at` belong to the slots of `batch`, the others to no slot."""
        self._address_spare(staging, at.stop if isinstance(at, slice) else 0)
        staging.host["rows"][at] = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.numpy()
        staging.host["slots"][at] = batch.slots

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
            chosen = choose(self._policies[0], self._obs, self._state[:slots]).actions
        self._buffer.make_columns(self._obs, chosen, self._state)
        self._actions = {
            name: torch.empty(
                (len(self._policies) * slots, *values.shape[1:]), dtype=values.dtype, pin_memory=values.is_cuda
            )
            for name, values in self._policies[0].head.env_actions(chosen).items()
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


@contextlib.contextmanager
def _branch(number: int, device: torch.device) -> Iterator[contextlib.AbstractContextManager[Any]]:
    """A CUDA stream that begins here, to be entered, and that ends where this context ends. None on a CPU."""
    if device.type != "cuda":
        yield contextlib.nullcontext()
        return
    main = torch.cuda.current_stream()
    stream = stream_for(f"acting {number % BRANCHES}", device)
    stream.wait_stream(main)
    yield torch.cuda.stream(stream)
    main.wait_stream(stream)


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
