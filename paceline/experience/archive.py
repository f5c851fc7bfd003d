"""A replay on disk, written as it fills: a checkpoint then only has to wait for the last of it, however large the replay is.

Transitions are numbered by their insertion. Segment k holds numbers k * S to (k + 1) * S - 1, is written once it is full, by
a thread, and never changed: a run that goes back to an earlier checkpoint writes files of other names. A checkpoint's own part
(`state`) is the names and digests of its segments, what came after the last one, and all priorities. Segments that no checkpoint
needs are deleted; the replay of a checkpoint that is older than those that are kept (the best one, say) is read back as far as it
is still there. A segment for which the disk had no room is written again with the next one, and with the next checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
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

from paceline.errors import PacelineError
from paceline.experience.replay import Replay
from paceline.files import DiskFull, cannot_write, os_error_of, replacing

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
        self._digests: dict[int, str] = {}
        """SHA-256 of those files. The thread adds to it."""
        self._failed: dict[int, DiskFull] = {}
        """Segments for which there was no room, and what was said."""
        self._short_of_room = False
        """Whether that was so when the thread tried last: it is said once."""
        self._needed: deque[int] = deque(maxlen=keep + 1)
        """The first numbers that the latest checkpoints, and the next, need."""
        self._jobs: queue.Queue[tuple[int, dict[str, Tensor]] | None] = queue.Queue(maxsize=4)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def note(self) -> None:
        """Hand over what has become full. Where the disk is behind by several segments, this waits for it."""
        while (self._written + 1) * SEGMENT <= self._replay.inserted:
            self._start()
            self._retry()
            self._names[self._written] = f"segment_{self._written}_{self._leg}.safetensors"
            self._hand_over(self._written)
            self._written += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the segments, all of which are on disk when this returns; `DiskFull` if they cannot be.

        Nothing changes by it. Once a checkpoint with this state is written, `checkpointed` is told.
        """
        self._wait_for_disk()
        if self._failed:
            self._retry()
            self._wait_for_disk()
        for problem in self._failed.values():
            raise problem
        replay = self._replay
        oldest = replay.inserted - len(replay)
        tail = replay.rows(max(oldest, self._written * SEGMENT), replay.inserted)
        names = {segment: name for segment, name in self._names.items() if (segment + 1) * SEGMENT > oldest}
        digests = {segment: self._digests[segment] for segment in names if segment in self._digests}
        return {"inserted": replay.inserted, "tail": tail, "segments": names, "digests": digests, **replay.priorities()}

    def checkpointed(self, state: dict[str, Any]) -> None:
        """A checkpoint with this state was written: delete the segments that none of the latest ones needs."""
        self._needed.append(state["inserted"] - state["used"])
        if len(self._needed) == self._needed.maxlen:  # before that, earlier checkpoints may need anything
            self._prune(min(self._needed))

    def load(self, state: dict[str, Any]) -> None:
        """Let the replay be what it was, as far as its segments are there."""
        inserted, used = state["inserted"], state["used"]
        self._names, self._digests = dict(state["segments"]), dict(state.get("digests", {}))
        self._failed.clear()
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
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(self._folder, error) from error
            self._thread = threading.Thread(target=self._work, name="archive", daemon=True)
            self._thread.start()

    def _hand_over(self, segment: int) -> None:
        """Let the thread write a segment, of which the replay may have lost the first rows by now."""
        self._raise_error()
        first, oldest = segment * SEGMENT, self._replay.inserted - self._replay.capacity
        rows = self._replay.rows(max(first, oldest), first + SEGMENT)
        try:
            self._jobs.put((segment, rows), timeout=WRITE_SECONDS)
        except queue.Full:
            raise PacelineError(
                f"the replay cannot be written: {self._folder} took none for {WRITE_SECONDS:.0f} s"
            ) from None

    def _retry(self) -> None:
        """Hand over again what there was no room for, and what the replay still has."""
        for segment in sorted(self._failed):
            del self._failed[segment]
            if (segment + 1) * SEGMENT > self._replay.inserted - self._replay.capacity:
                self._hand_over(segment)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:
                    self._write(*job)
            except DiskFull as error:
                if not self._short_of_room:
                    log.warning("%s; it is tried again with the next segment and with the next checkpoint", error)
                self._failed[job[0]], self._short_of_room = error, True
            except BaseException as error:
                self._error = error
            finally:
                self._jobs.task_done()

    def _write(self, segment: int, rows: dict[str, Tensor]) -> None:
        path = self._folder / self._names[segment]
        with replacing(path) as temporary:
            try:
                save_file(rows, temporary)
            except SafetensorError as error:
                needed = sum(column.nbytes for column in rows.values())
                raise cannot_write(path, os_error_of(error) or OSError(str(error)), needed) from error
            self._digests[segment] = _digest(temporary)
        self._short_of_room = False

    def _raise_error(self) -> None:
        if self._error is not None:
            raise PacelineError(f"the replay cannot be written: {self._error}") from self._error

    def _wait_for_disk(self) -> None:
        deadline = time.monotonic() + WRITE_SECONDS
        while self._jobs.unfinished_tasks and self._error is None:
            if time.monotonic() > deadline:
                raise PacelineError(f"the replay cannot be written: {self._folder} took none for {WRITE_SECONDS:.0f} s")
            time.sleep(0.005)
        self._raise_error()

    def _read(self, segment: int, count: int) -> dict[str, Tensor] | None:
        """The last `count` rows of a segment; None if they are not there, or not as they were written."""
        path = self._folder / Path(self._names.get(segment, "")).name
        try:
            if segment in self._digests and _digest(path) != self._digests[segment]:
                log.warning("%s was changed since it was written: its transitions are left out", path)
                return None
            rows = {name: column[-count:] for name, column in load_file(path).items()}
        except (OSError, SafetensorError):
            return None
        return rows if all(len(column) == count for column in rows.values()) else None

    def _prune(self, oldest: int) -> None:
        """Delete segments that hold nothing from number `oldest` on."""
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            found = re.match(r"segment_(\d+)_", path.name)
            if found is not None and (int(found[1]) + 1) * SEGMENT <= oldest:
                path.unlink(missing_ok=True)
        self._names = {segment: name for segment, name in self._names.items() if (segment + 1) * SEGMENT > oldest}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
