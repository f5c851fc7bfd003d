"""`Archive`: writes a replay to disk while it fills, so a checkpoint waits only for the newest transitions.

Transitions are numbered in the order of insertion. Segment k holds transitions k * S to (k + 1) * S - 1. A thread
writes each full segment to its own file, which never changes. A run that resumes from an earlier checkpoint uses new
file names. A checkpoint stores the names and digests of its segments, the transitions after the last segment, and all
priorities. Segments that none of the latest checkpoints needs are deleted. An older checkpoint, such as the best one,
restores the segments that still exist. If the disk is full, a segment is written again later: with the next segment
and with the next checkpoint.
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

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.errors import PacelineError
from paceline.experience.replay import latest, num_rows
from paceline.experience.replay_protocol import TransitionReplay
from paceline.files import DiskFull, cannot_write, os_error_of, replacing

log = logging.getLogger(__name__)

SEGMENT = 16_384
"""S: transitions per file."""
WRITE_SECONDS = 300.0
"""The run stops if the disk does not take a segment within this time."""
CLOSE_SECONDS = 30.0


class Archive:
    """The segments of one rank's replay, in one folder. The caller calls `note` after every insertion."""

    def __init__(self, replay: TransitionReplay, folder: Path, keep: int) -> None:
        self._replay, self._folder = replay, folder
        self._num_submitted = replay.inserted // SEGMENT
        """Segments that the thread was given so far."""
        self._token = secrets.token_hex(4)  # makes file names unique to this process
        self._names: dict[int, str] = {}
        """File name of each segment."""
        self._digests: dict[int, str] = {}
        """SHA-256 of each file. The thread adds them."""
        self._failed: dict[int, DiskFull] = {}
        """Segments that are not on disk because it was full."""
        self._was_full = False
        """Whether the disk was full at the last write. Only the first of several failures is logged."""
        self._oldest_needed: deque[int] = deque(maxlen=keep + 1)
        """The oldest transition that each of the latest checkpoints needs."""
        self._jobs: queue.Queue[tuple[int, dict[str, Tensor]] | None] = queue.Queue(maxsize=4)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def note(self) -> None:
        """Submit segments that became full to the thread. Waits if the disk is several segments behind."""
        while (self._num_submitted + 1) * SEGMENT <= self._replay.inserted:
            self._start_thread()
            self._retry()
            self._names[self._num_submitted] = f"segment_{self._num_submitted}_{self._token}.safetensors"
            self._submit(self._num_submitted)
            self._num_submitted += 1

    def state(self) -> dict[str, Any]:
        """The archive's part of a checkpoint. All its segments are on disk when this returns; otherwise `DiskFull`.

        The caller calls `checkpointed` once the checkpoint is written.
        """
        self._wait_for_disk()
        if self._failed:
            self._retry()
            self._wait_for_disk()
        for error in self._failed.values():
            raise error
        replay = self._replay
        oldest = replay.inserted - len(replay)
        tail = replay.rows(max(oldest, self._num_submitted * SEGMENT), replay.inserted)
        names = {segment: name for segment, name in self._names.items() if (segment + 1) * SEGMENT > oldest}
        digests = {segment: self._digests[segment] for segment in names if segment in self._digests}
        return {"inserted": replay.inserted, "tail": tail, "segments": names, "digests": digests, **replay.priorities()}

    def checkpointed(self, state: dict[str, Any]) -> None:
        """A checkpoint with `state` was written: delete the segments that none of the latest checkpoints needs."""
        self._oldest_needed.append(state["inserted"] - state["used"])
        # Until then, checkpoints that were written before this process started may need any segment.
        if len(self._oldest_needed) == self._oldest_needed.maxlen:
            self._prune(min(self._oldest_needed))

    def load(self, state: dict[str, Any]) -> None:
        """Restore the replay from `state` and from the segments that still exist."""
        inserted, used = state["inserted"], state["used"]
        self._names, self._digests = dict(state["segments"]), dict(state.get("digests", {}))
        self._failed.clear()
        parts = [state["tail"]]
        found = num_rows(state["tail"])
        while found < used:  # from the newest to the oldest
            segment = (inserted - found) // SEGMENT - 1
            rows = self._read(segment, min(SEGMENT, used - found))
            if rows is None:
                text = "the oldest %d of the checkpoint's %d transitions are no longer on disk: they are not restored"
                log.warning(text, used - found, used)
                break
            parts.insert(0, rows)
            found += num_rows(rows)
        priorities = state["priorities"]
        priorities = priorities[used - found :] if priorities is not None else None
        self._replay.load_state_dict(state | {"parts": parts, "priorities": priorities, "used": found})
        self._num_submitted = inserted // SEGMENT
        self._oldest_needed.clear()

    def close(self) -> None:
        """Wait until the thread has written what it was given. `note` must not be called afterwards."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):  # the disk does not respond: give up the rest
                self._jobs.put(None, timeout=CLOSE_SECONDS)
                self._thread.join(CLOSE_SECONDS)

    def _start_thread(self) -> None:
        if self._thread is None:
            try:
                for folder in (self._folder.parent, self._folder):  # a run folder that was moved is not made again
                    folder.mkdir(exist_ok=True)
            except OSError as error:
                raise cannot_write(self._folder, error) from error
            self._thread = threading.Thread(target=self._write_jobs, name="archive", daemon=True)
            self._thread.start()

    def _submit(self, segment: int) -> None:
        """Give the thread a segment to write, without rows that the replay has already overwritten."""
        self._raise_error()
        first, last, oldest = segment * SEGMENT, (segment + 1) * SEGMENT, self._replay.inserted - len(self._replay)
        rows = self._replay.rows(min(max(first, oldest), last), last)
        try:
            self._jobs.put((segment, rows), timeout=WRITE_SECONDS)
        except queue.Full:
            raise self._stalled() from None

    def _retry(self) -> None:
        """Submit the failed segments again, except those that the replay has overwritten."""
        for segment in sorted(self._failed):
            del self._failed[segment]
            if (segment + 1) * SEGMENT > self._replay.inserted - len(self._replay):
                self._submit(segment)

    def _write_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:
                    self._write(*job)
            except DiskFull as error:
                if not self._was_full:
                    log.warning(
                        "%s; the write is tried again with the next segment and with the next checkpoint", error
                    )
                self._failed[job[0]], self._was_full = error, True
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
        self._was_full = False

    def _raise_error(self) -> None:
        if self._error is not None:
            raise PacelineError(f"the replay cannot be written: {self._error}") from self._error

    def _stalled(self) -> PacelineError:
        return PacelineError(f"the replay cannot be written: {self._folder} took no data for {WRITE_SECONDS:.0f} s")

    def _wait_for_disk(self) -> None:
        deadline = time.monotonic() + WRITE_SECONDS
        while self._jobs.unfinished_tasks and self._error is None:
            if time.monotonic() > deadline:
                raise self._stalled()
            time.sleep(0.005)
        self._raise_error()

    def _read(self, segment: int, count: int) -> dict[str, Tensor] | None:
        """The last `count` rows of a segment, or None if its file is missing, damaged or changed."""
        path = self._folder / Path(self._names.get(segment, "")).name
        try:
            if segment in self._digests and _digest(path) != self._digests[segment]:
                log.warning("%s was changed after it was written: its transitions are not restored", path)
                return None
            found = load_file(path)
        except (OSError, SafetensorError):
            return None
        return latest(found, count) if num_rows(found) >= count else None

    def _prune(self, oldest: int) -> None:
        """Delete segments whose transitions are all older than number `oldest`."""
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
