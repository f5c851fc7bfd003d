"""Work on a GPU that is recorded once and then replayed as a whole: one launch instead of hundreds."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch

from paceline.accel.cuda_streams import stream_for

Result = TypeVar("Result")

WARM_UP_RUNS = 3
"""Runs before recording: libraries choose their algorithms and allocate their workspaces in them."""

_ONE_AT_A_TIME = threading.RLock()
"""Two threads may have graphs. While one records, the random numbers of the device's own generator are the recording's alone: the
other must neither replay nor record."""


class CudaGraph(Generic[Result]):
    """A function without arguments: its first runs are ordinary ones, every later run is a replay of one recording.

    What it reads and what it returns must lie in the same memory every time; it must neither wait for the device nor
    depend on anything that the host decides. The result is overwritten by the next run.

    Random numbers are the device's own, or those of `generator`. A replay notes where they go on in one place for each generator:
    what is replayed on another stream meanwhile needs another generator, or both draw the same numbers.
    """

    def __init__(self, function: Callable[[], Result], generator: torch.Generator | None = None) -> None:
        self._function, self._generator = function, generator
        self._graph: torch.cuda.CUDAGraph | None = None
        self._runs = 0
        self._result: Result

    def run(self) -> Result:
        with _ONE_AT_A_TIME:
            return self._run()

    def _run(self) -> Result:
        if self._graph is None and self._runs < WARM_UP_RUNS:
            self._runs += 1
            return self._warm_up()
        if self._graph is None:
            self._graph = self._make_graph()
            # What another thread asks of the device meanwhile is no part of it, and no mistake.
            with (
                _without_collection(),
                torch.cuda.graph(self._graph, stream=_recording_stream(), capture_error_mode="thread_local"),
            ):
                self._result = self._function()
        self._graph.replay()
        return self._result

    def _make_graph(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if self._generator is not None:
            with warnings.catch_warnings():  # later versions of PyTorch see by themselves who draws
                warnings.simplefilter("ignore")
                graph.register_generator_state(self._generator)
        return graph

    def _warm_up(self) -> Result:
        # On a stream of its own, as recording will be: what autograd sets up remembers the stream it was set up on.
        stream = _recording_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._function()
        torch.cuda.current_stream().wait_stream(stream)
        return result


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Garbage may hold other recordings, whose end in the middle of this one would spoil it (PyTorch's pull request 161037)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _recording_stream() -> torch.cuda.Stream:
    """One for each stream that something is recorded for: what was allocated on it is reused in the order of that one."""
    current = torch.cuda.current_stream()
    return stream_for(f"recording for {current.cuda_stream}", current.device)
