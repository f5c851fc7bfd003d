"""Writes a run's reports: one JSON object each in metrics.jsonl, the same numbers to TensorBoard and optionally W&B.

A report that cannot be written does not end a run. The first failure is logged, and at the end their number.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from paceline.errors import MissingExtra, PacelineError
from paceline.files import cannot_write

log = logging.getLogger(__name__)


class MetricsWriter:
    """Writes the reports of a run, on rank 0. It changes nothing in the run folder before the first report."""

    def __init__(
        self,
        folder: Path,
        *,
        wandb_project: str | None = None,
        config: Mapping[str, Any] | None = None,
        resumed_from: int | None = None,
    ) -> None:
        """A run that goes on from a checkpoint has `resumed_from` that step."""
        self._resumed_from = resumed_from
        self._nonfinite: set[str] = set()
        """Names that were not finite in some report."""
        self._lines = LineFile(folder / "metrics.jsonl")
        self._sinks = [OptionalSink("TensorBoard", lambda: EventFile(folder / "tensorboard", resumed_from))]
        if wandb_project:
            run = _start_wandb(folder, wandb_project, config)
            self._sinks.append(OptionalSink("Weights & Biases", lambda: run))

    def write(self, report: Mapping[str, Any]) -> None:
        """Write a report, which needs a `step`. Non-finite numbers become null, because JSON does not have them."""
        finite = {key: None if _is_nonfinite(value) else value for key, value in report.items()}
        self._warn_of_nonfinite(report)
        if self._resumed_from is not None:
            finite["resumed_from"], self._resumed_from = self._resumed_from, None
        self._lines.append(json.dumps(finite))
        for sink in self._sinks:
            sink.write(report)

    def _warn_of_nonfinite(self, report: Mapping[str, Any]) -> None:
        for name, value in report.items():
            if _is_nonfinite(value) and name not in self._nonfinite:
                self._nonfinite.add(name)
                log.warning("%s is %s at step %s; metrics.jsonl has null for it", name, value, report["step"])

    def close(self) -> None:
        self._lines.close()
        for sink in self._sinks:
            sink.close()


class LineFile:
    """A file of whole lines. A line that does not fit on the disk is left out, never written in part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self.missing = 0
        """Lines that could not be written."""

    def append(self, line: str) -> None:
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - kept open for the whole run
                self._file.truncate(self._path.read_bytes().rfind(b"\n") + 1)  # a killed run may leave a partial line
            _append_all(self._file, line.encode() + b"\n")
        except OSError as error:
            self.missing += 1
            if self.missing == 1:
                log.warning("%s; training continues", cannot_write(self._path, error))

    def close(self) -> None:
        if self.missing:
            log.warning("%d reports could not be written to %s", self.missing, self._path)
        if self._file is not None:
            self._file.close()


class EventFile:
    """A TensorBoard event file. torch's own writer has a thread that prints a traceback when the disk is full.

    TensorBoard no longer shows what earlier files of the folder say about steps after `resumed_from`.
    """

    def __init__(self, folder: Path, resumed_from: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a folder in order of their names, so the time comes first.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(folder / name, "xb", buffering=0)  # noqa: SIM115 - kept open for the whole run
        self._records = RecordWriter(self._file)
        self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if resumed_from is not None:
            start = Event(wall_time=time.time(), step=resumed_from + 1, session_log=SessionLog(status=SessionLog.START))
            self._records.write(start.SerializeToString())

    def log(self, report: Mapping[str, Any], step: int) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in report.items()
            if isinstance(value, int | float) and name != "step" and not _is_nonfinite(value)
        ]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        self._records.write(event.SerializeToString())

    def finish(self) -> None:
        self._file.close()


class OptionalSink:
    """A destination of reports that may fail: its first failure is logged, and then it is no longer used.

    The first report makes the destination. It has W&B's methods `log` and `finish`.
    """

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._name, self._make = name, make
        self._made: Any = None
        self._failed = False

    def write(self, report: Mapping[str, Any]) -> None:
        if not self._failed:
            with self._failure_logged():
                if self._made is None:
                    self._made = self._make()
                self._made.log(dict(report), step=report["step"])

    def close(self) -> None:
        if self._made is not None and not self._failed:
            with self._failure_logged():
                self._made.finish()

    @contextlib.contextmanager
    def _failure_logged(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = True
            log.warning("no more reports are sent to %s: %s: %s", self._name, type(error).__name__, error)


def _append_all(file: BinaryIO, data: bytes) -> None:
    end = file.seek(0, 2)
    try:
        while data:  # an almost full disk takes a part
            data = data[file.write(data) :]
    except OSError:
        file.truncate(end)
        raise


def _is_nonfinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _start_wandb(folder: Path, project: str, config: Mapping[str, Any] | None) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise MissingExtra("--wandb-project", "wandb", error) from error
    try:
        return wandb.init(project=project, dir=str(folder), name=folder.name, config=dict(config or {}))
    except Exception as error:
        raise PacelineError(f"Weights & Biases does not start: {type(error).__name__}: {error}") from error
