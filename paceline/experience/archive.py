"""A replay on disk, written as it fills: a checkpoint then only has to wait for the last of it, however large the replay is.

Transitions are numbered by their insertion. Segment k holds numbers k * S to (k + 1) * S - 1, is written once it is full, by
a thread, and never changed: a run that goes back to an earlier checkpoint writes files of other names. A checkpoint's own part
(`state`) is the names of its segments, what came after the last one, and all priorities. Segments that no checkpoint needs are
deleted; the replay of a checkpoint that is older than those that are kept (the best one, say) is read back as far as it is
still there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import secrets
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.checkpoint import flush
from paceline.errors import PacelineError
from paceline.experience.replay import Replay

log = logging.getLogger(__name__)

SEGMENT = 16_384
"""S: transitions of a file."""
WRITE_SECONDS = 300.0
"""A disk that takes longer than this for one segment is not there."""
CLOSE_SECONDS = 30.0


class Archive:
    """The segments of one rank's replay, in one folder. `note` is called after every insertion."""

    def __init__(self, replay: Replay, folder: Path, keep: int) -> None:
        self._replay, self._folder = replay, folder
        self._written = replay.inserted // SEGMENT
        """Segments that were handed to the thread."""
        self._leg = secrets.token_hex(4)
        self._names: dict[int, str] = {}
        """Files, by the number of their segment."""
        self._needed: deque[int] = deque(maxlen=keep + 1)
        """The first numbers that the latest checkpoints, and the next, need."""
        self._jobs: queue.Queue[tuple[Path, dict[str, Tensor]] | None] = queue.Queue(maxsize=4)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def note(self) -> None:
        """Hand over what has become full. Where the disk is behind by several segments, this waits for it."""
        while (self._written + 1) * SEGMENT <= self._replay.inserted:
            first = self._written * SEGMENT
            self._start()
            rows = self._replay.rows(max(first, self._replay.inserted - self._replay.capacity), first + SEGMENT)
            self._names[self._written] = f"segment_{self._written}_{self._leg}.safetensors"
            self._hand_over((self._folder / self._names[self._written], rows))
            self._written += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the segments, all of which are on disk when this returns."""
        self._wait_for_disk()
        replay = self._replay
        oldest = replay.inserted - len(replay)
        self._needed.append(oldest)
        if len(self._needed) == self._needed.maxlen:  # before that, earlier checkpoints may need anything
            self._prune(min(self._needed))
        tail = replay.rows(max(oldest, self._written * SEGMENT), replay.inserted)
        names = {segment: name for segment, name in self._names.items() if (segment + 1) * SEGMENT > oldest}
        return {"inserted": replay.inserted, "tail": tail, "segments": names, **replay.priorities()}

    def load(self, state: dict[str, Any]) -> None:
        """Let the replay be what it was, as far as its segments are there."""
        inserted, used = state["inserted"], state["used"]
        self._names = dict(state["segments"])
        parts = [state["tail"]]
        found = len(next(iter(state["tail"].values()), ()))
        while found < used:  # from the newest to the oldest
            segment = (inserted - found) // SEGMENT - 1
            rows = self._read(segment, min(SEGMENT, used - found))
            if rows is None:
                log.warning(
                    "the oldest %d of the checkpoint's %d transitions are no longer on disk: learning goes on without",
                    used - found,
                    used,
                )
                break
            parts.insert(0, rows)
            found += len(next(iter(rows.values())))
        columns = {name: torch.cat([part[name] for part in parts if part]) for name in parts[0]}
        priorities = state["priorities"]
        priorities = priorities[used - found :] if priorities is not None else None
        self._replay.load_state_dict(state | {"columns": columns, "priorities": priorities, "used": found})
        self._written = inserted // SEGMENT
        self._needed.clear()

    def close(self) -> None:
        """Let the thread finish what it has. Nothing is noted afterwards."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):  # the disk is gone: so is what it did not take
                self._jobs.put(None, timeout=CLOSE_SECONDS)
                self._thread.join(CLOSE_SECONDS)

    def _start(self) -> None:
        if self._thread is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._thread = threading.Thread(target=self._work, name="archive", daemon=True)
            self._thread.start()

    def _hand_over(self, job: tuple[Path, dict[str, Tensor]]) -> None:
        self._raise_error()
        try:
            self._jobs.put(job, timeout=WRITE_SECONDS)
        except queue.Full:
            raise PacelineError(
                f"the replay cannot be written: {self._folder} took none for {WRITE_SECONDS:.0f} s"
            ) from None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:
                    path, rows = job
                    temporary = path.with_name(f".{path.name}.{os.getpid()}")
                    save_file(rows, temporary)
                    flush(temporary)
                    os.replace(temporary, path)
            except BaseException as error:
                self._error = error
            finally:
                self._jobs.task_done()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise PacelineError(f"the replay cannot be written to {self._folder}: {self._error}") from self._error

    def _wait_for_disk(self) -> None:
        deadline = time.monotonic() + WRITE_SECONDS
        while self._jobs.unfinished_tasks and self._error is None:
            if time.monotonic() > deadline:
                raise PacelineError(f"the replay cannot be written: {self._folder} took none for {WRITE_SECONDS:.0f} s")
            time.sleep(0.005)
        self._raise_error()

    def _read(self, segment: int, count: int) -> dict[str, Tensor] | None:
        """The last `count` rows of a segment; None if they are not there."""
        path = self._folder / self._names.get(segment, "")
        try:
            rows = {name: column[-count:] for name, column in load_file(path).items()}
        except (OSError, SafetensorError):
            return None
        return rows if all(len(column) == count for column in rows.values()) else None

    def _prune(self, oldest: int) -> None:
        """Delete segments that hold nothing from number `oldest` on, and what a killed run was writing."""
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            found = re.match(r"segment_(\d+)_", path.name)
            outdated = found is not None and (int(found[1]) + 1) * SEGMENT <= oldest
            if outdated or path.name.startswith("."):
                path.unlink(missing_ok=True)
        self._names = {segment: name for segment, name in self._names.items() if (segment + 1) * SEGMENT > oldest}
