"""`FrameReplay`: a replay whose transitions name the frames of their images. Each frame is stored once.

Observation and next observation of a transition, and those of its neighbours, have most of their frames in common.
Draws are those of a `Replay`, to the bit.

Legend: C places of the ring, B rows, S frames of a stack.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.experience.config import ReplayConfig
from paceline.experience.frames import FrameLayout, FrameStore, digests_of
from paceline.experience.replay import FRAMES, Drawn, Replay, latest, num_rows, require_fit
from paceline.pool.protocol import PoolSpec
from paceline.sizes import leaf_bytes, transition_bytes

log = logging.getLogger(__name__)

PLACE_BYTES = np.dtype(np.int32).itemsize


class FrameReplay:
    """A `Replay` of places of frames, and the frames. Not thread-safe: the caller holds a lock.

    If there is no room for more frames, the oldest transitions are dropped.
    """

    def __init__(
        self, config: ReplayConfig, device: torch.device, layouts: Sequence[FrameLayout], num_frames: int
    ) -> None:
        """There is room for `num_frames` of each image, at least those of one transition."""
        self._replay, self._layouts, self.device = Replay(config, device), layouts, device
        self._num_frames = num_frames
        self._stores: dict[str, FrameStore] = {}
        self._held = {layout.name: np.zeros((config.capacity, 2 * layout.stack), np.int32) for layout in layouts}
        """[C, 2 S]: the places of the frames of each transition's observation and next observation."""
        self._has_warned = False
        self._allocate()

    def __len__(self) -> int:
        return len(self._replay)

    @property
    def inserted(self) -> int:
        return self._replay.inserted

    @property
    def capacity(self) -> int:
        return self._replay.capacity

    @property
    def bytes(self) -> int:
        """Memory of the frames and of all other columns, in bytes."""
        return self._replay.bytes + sum(store.num_bytes for store in self._stores.values())

    def add(self, rows: Mapping[str, Any]) -> None:
        """Insert B transitions: an array or tensor [B, ...] per column. Every call must have the same columns."""
        arrays = {name: v.cpu().numpy() if isinstance(v, Tensor) else np.asarray(v) for name, v in rows.items()}
        count = num_rows(arrays)
        require_fit(count, self.capacity)
        # The frames of so many transitions always fit, after the older ones are dropped.
        at_once = self._num_frames // max(2 * layout.stack for layout in self._layouts)
        for first in range(0, count, at_once):
            self._add({name: values[first : first + at_once] for name, values in arrays.items()})

    def _add(self, rows: dict[str, np.ndarray]) -> None:
        count = num_rows(rows)
        self._drop_oldest(max(0, len(self) + count - self.capacity))
        ring = np.arange(self.inserted, self.inserted + count) % self.capacity
        places: dict[str, np.ndarray] = {}
        for layout in self._layouts:
            sides = [layout.split(rows[f"{side}/{layout.name}"]) for side in ("obs", "next_obs")]
            frames = np.concatenate(sides, 1).reshape(-1, *layout.frame_shape)
            store = self._stores[layout.name]
            found = store.acquire(frames, digests_of(frames), partial(self._make_room, store))
            self._held[layout.name][ring] = found.reshape(count, -1)
            places |= self._columns(layout, ring)
        self._replay.add(rows | places)

    def draw(self, count: int, generator: torch.Generator | None = None) -> Drawn:
        """Sample `count` transitions with replacement. Does not synchronise with the device."""
        drawn = self._replay.draw(count, generator)
        images = {}
        for layout in self._layouts:
            for column in (f"obs/{layout.name}", f"next_obs/{layout.name}"):
                images[column] = layout.join(self._stores[layout.name].get(drawn.rows[column]))
        return dataclasses.replace(drawn, rows=drawn.rows | images)

    def set_priorities(self, drawn: Drawn, errors: Tensor) -> None:
        """As `Replay.set_priorities`."""
        self._replay.set_priorities(drawn, errors)

    def priorities(self) -> dict[str, Any]:
        """As `Replay.priorities`."""
        return self._replay.priorities()

    def rows(self, first: int, last: int) -> dict[str, Tensor]:
        """Transitions number `first` to `last - 1`, on the host. Columns `frames/NAME` have their frames, each once, in
        the order in which they appear. Columns of images name these."""
        columns = self._replay.rows(first, last)
        if not columns:
            return {}
        ring = np.arange(first, last) % self.capacity
        for layout in self._layouts:
            held, stack = self._held[layout.name][ring], layout.stack
            unique, first_at, inverse = np.unique(held, return_index=True, return_inverse=True)
            order = np.argsort(first_at)
            number = np.argsort(order)[inverse].reshape(held.shape).astype(np.int32)
            columns[f"obs/{layout.name}"] = torch.from_numpy(number[:, :stack].copy())
            columns[f"next_obs/{layout.name}"] = torch.from_numpy(number[:, stack:].copy())
            places = torch.from_numpy(unique[order]).to(self.device)
            columns[f"{FRAMES}{layout.name}"] = self._stores[layout.name].get(places).cpu()
        return columns

    def state_dict(self) -> dict[str, Any]:
        """All transitions in the ring, oldest first, and their priorities."""
        oldest = self.inserted - len(self)
        return {"parts": [self.rows(oldest, self.inserted)], "inserted": self.inserted, **self.priorities()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved replay. A smaller ring takes only the latest transitions."""
        self._allocate()
        kept, end = min(state["used"], self.capacity), state["inserted"]
        parts: list[dict[str, Tensor]] = []
        for part in reversed(state["parts"]):
            count = min(num_rows(part), kept - (state["inserted"] - end))
            if count == 0:
                continue
            loaded = self._load(latest(part, count), np.arange(end - count, end) % self.capacity)
            if loaded is None:
                log.warning("the frames of the oldest transitions do not fit into the replay: they are not restored")
                break
            parts.insert(0, loaded)
            end -= count
        self._replay.load_state_dict(state | {"parts": parts, "used": state["inserted"] - end})

    def _load(self, part: dict[str, Tensor], ring: np.ndarray) -> dict[str, Tensor] | None:
        """The rows of a part with the places of their frames, which are stored. None if there is no room for them."""
        used, digests = {}, {}
        for layout in self._layouts:
            name = layout.name
            numbers = np.concatenate([part[f"{side}/{name}"].numpy() for side in ("obs", "next_obs")], 1)
            used[name] = np.unique(numbers, return_inverse=True)
            digests[name] = digests_of(part[f"{FRAMES}{name}"].numpy()[used[name][0]])
            if self._stores[name].num_new(digests[name]) > self._stores[name].num_free:
                return None
        rows = {name: column for name, column in part.items() if not name.startswith(FRAMES)}
        for layout in self._layouts:
            store, (numbers, inverse) = self._stores[layout.name], used[layout.name]
            frames = part[f"{FRAMES}{layout.name}"].numpy()[numbers]
            places = store.acquire(frames, digests[layout.name], lambda needed: None)
            held = places[inverse].reshape(len(ring), -1)
            store.refer(held)
            store.release(places)
            self._held[layout.name][ring] = held
            rows |= {name: torch.from_numpy(column) for name, column in self._columns(layout, ring).items()}
        return rows

    def _columns(self, layout: FrameLayout, ring: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of an image for transitions at places `ring`: places of frames [B, S]."""
        held = self._held[layout.name][ring]
        return {f"obs/{layout.name}": held[:, : layout.stack], f"next_obs/{layout.name}": held[:, layout.stack :]}

    def _drop_oldest(self, count: int) -> None:
        oldest = self.inserted - len(self)
        ring = np.arange(oldest, oldest + count) % self.capacity
        for name, store in self._stores.items():
            store.release(self._held[name][ring].reshape(-1))
        self._replay.drop_oldest(count)

    def _make_room(self, store: FrameStore, needed: int) -> None:
        """Drop the oldest transitions until `store` has room for `needed` frames."""
        while store.num_free < needed:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "the replay has no room for more frames, and holds %d of replay.capacity %d transitions: episodes "
                    "are shorter than 8 steps, or images do not stack replay.stack frames",
                    len(self),
                    self.capacity,
                )
            self._drop_oldest(1)

    def _allocate(self) -> None:
        self._stores = {layout.name: FrameStore(layout, self._num_frames, self.device) for layout in self._layouts}


def num_frames(config: ReplayConfig, streams: int, steps: int) -> int:
    """Frames that a replay needs room for, if `streams` slots insert transitions of `steps` steps.

    A step gives one frame, and the start of an episode another. An eighth more than transitions is enough for episodes
    of 8 steps. Of each stream, the oldest transitions show frames of steps before them, and the latest transitions
    those of steps that begin no complete transition yet.
    """
    return config.capacity + config.capacity // 8 + 2 * streams * (steps + config.stack)


def frame_replay_bytes(spec: PoolSpec, layouts: Sequence[FrameLayout], config: ReplayConfig, frames: int) -> int:
    """Memory of a replay with room for so many frames of each image."""
    images = {layout.name for layout in layouts}
    row = transition_bytes(spec) - 2 * leaf_bytes(leaf for leaf in spec.obs if leaf.name in images)
    row += 2 * PLACE_BYTES * sum(2 * layout.stack for layout in layouts)  # on the device, and on the host
    return config.capacity * row + frames * sum(layout.frame_bytes for layout in layouts)
