"""The learner thread of systems that learn while they collect. The main thread acts and owns the simulators."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import torch

from paceline.accel.cuda_streams import stream_for
from paceline.accel.kernels import use_threads
from paceline.schedule.protocol import TrainingRun

POLL_SECONDS = 0.2
"""How often a waiting thread checks whether the other one is still there."""
JOIN_SECONDS = 30.0


class LearnerThread:
    """Runs `work` in a thread of its own, on a CUDA stream of its own. The thread ends with the context at the latest.

    An exception in it is raised in the main thread. The main thread writes checkpoints, since it has the simulators,
    while the learner thread waits. The context can be entered again after its end.
    """

    def __init__(self, run: TrainingRun, work: Callable[[], None]) -> None:
        self._run, self._work = run, work
        self._device = run.group.device

    def __enter__(self) -> LearnerThread:
        self._over, self._closed, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._saving, self._saved = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._ready: torch.cuda.Event | None = None
        """What the main thread has launched on the device before the learner thread begins."""
        if self._device.type == "cuda":
            self._ready = torch.cuda.current_stream(self._device).record_event()
        self._thread = threading.Thread(target=self._main, name="learner", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._run.stop.request("failure")  # the thread ends with its mini-batch
        self._closed.set()
        self._saved.set()
        self._thread.join(JOIN_SECONDS)

    # ---------------------------------------------------------------- for the main thread

    @property
    def is_over(self) -> bool:
        """Whether the work is done. Raises the exception that ended it otherwise."""
        if self._error is not None:
            raise self._error
        return self._over.is_set()

    def wait(self) -> None:
        """Wait for the work to end, for a moment."""
        self._ended.wait(POLL_SECONDS)

    @property
    def wants_checkpoint(self) -> bool:
        return self._saving.is_set()

    def save(self) -> None:
        """Write the checkpoint that the work wants. All slots are held."""
        self._saving.clear()
        self._run.save()
        self._saved.set()

    # ---------------------------------------------------------------- for the work

    @property
    def is_closed(self) -> bool:
        """Whether the main thread has left."""
        return self._closed.is_set()

    def save_if_due(self) -> None:
        """If a checkpoint is due, wait until the main thread has saved. At its end, the run saves by itself."""
        if not self._run.checkpoint_due or self._run.finished():
            return
        self._saved.clear()
        self._saving.set()
        while not (self._saved.wait(POLL_SECONDS) or self._closed.is_set()):
            pass

    def _main(self) -> None:
        try:
            use_threads(self._run.threads)
            with self._stream():
                try:
                    self._work()
                finally:
                    if self._ready is not None:  # the main thread may save what this one has launched
                        torch.cuda.current_stream(self._device).synchronize()
        except BaseException as error:
            self._error = error
        else:
            self._over.set()
        finally:
            self._ended.set()

    def _stream(self) -> contextlib.AbstractContextManager:
        if self._ready is None:
            return contextlib.nullcontext()
        torch.cuda.set_device(self._device)  # every thread has its own
        stream = stream_for("learning", torch.device("cuda", torch.cuda.current_device()))
        stream.wait_event(self._ready)
        return torch.cuda.stream(stream)
