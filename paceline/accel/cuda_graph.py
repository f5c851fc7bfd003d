"""GPU work that is recorded once and then replayed: one launch instead of hundreds."""

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
"""Runs before recording: libraries choose algorithms and allocate workspaces in them."""

_ONE_AT_A_TIME = threading.RLock()
"""While a thread records, no other thread may replay or record: the recording owns the device's random numbers."""


class CudaGraph(Generic[Result]):
    """A function without arguments. Its first runs are ordinary, every later run replays one recording.

    Its inputs and results must stay in the same memory. It must not wait for the device, nor depend on decisions of the
    host. The next run overwrites the result.

    Random numbers come from the device's default generator, or from `generator`. Graphs that are replayed concurrently
    on different streams need different generators, or they draw the same numbers.
    """

    def __init__(self, function: Callable[[], Result], generator: torch.Generator | None = None) -> None:
        self._function, self._generator = function, generator
        self._graph: torch.cuda.CUDAGraph | None = None
        self._runs = 0
        self._result: Result

    def run(self) -> Result:
        with _ONE_AT_A_TIME:
            if self._graph is None and self._runs < WARM_UP_RUNS:
                self._runs += 1
                return self._warm_up()
            if self._graph is None:
                self._graph = self._make_graph()
                # thread_local: other threads may use the device meanwhile, and are not recorded.
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
            with warnings.catch_warnings():  # later versions of PyTorch register generators by themselves
                warnings.simplefilter("ignore")
                graph.register_generator_state(self._generator)
        return graph

    def _warm_up(self) -> Result:
        # On the recording's stream: autograd remembers the stream that it was set up on.
        stream = _recording_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._function()
        torch.cuda.current_stream().wait_stream(stream)
        return result


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Collecting another graph as garbage would spoil the recording (PyTorch's pull request 161037)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _recording_stream() -> torch.cuda.Stream:
    """One for each current stream: memory allocated on it is reused in the order of that stream."""
    current = torch.cuda.current_stream()
    return stream_for(f"recording for {current.cuda_stream}", current.device)
