"""`Deciders`: threads that choose actions, where one is not enough (VER's inference workers, Sample Factory's policy workers).

The main thread asks, and settles what was chosen: it alone has the simulators, the states of all slots and the experience. What
travels between the threads are batches that nobody else writes to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.accel.cuda_streams import stream_for
from paceline.accel.kernels import use_threads
from paceline.collect.actor import Actor, Question
from paceline.collect.chooser import Choice, Chooser
from paceline.pool.protocol import StepBatch


class Decider(NamedTuple):
    """What a thread decides with; nobody else does meanwhile."""

    chooser: Chooser
    pick_up: Callable[[], object]
    """Have the chooser go by the latest weights from now on."""


class Answer(NamedTuple):
    """What was chosen for a batch."""

    batch: StepBatch
    question: Question
    choice: Choice
    version: Tensor
    actions: dict[str, Any]
    """As the pool takes them."""
    seconds: float
    """From the question to the answer."""


class Deciders:
    """A thread for each of `deciders`, with so many `threads` of PyTorch's own each. `wake` is called from them after each answer."""

    def __init__(self, actor: Actor, deciders: Sequence[Decider], threads: int, wake: Callable[[], None]) -> None:
        self._actor, self._threads, self._wake = actor, threads, wake
        self._unused: SimpleQueue[tuple[int, Decider]] = SimpleQueue()
        for numbered in enumerate(deciders):
            self._unused.put(numbered)
        self._mine = threading.local()
        self._pending: list[futures.Future[Answer]] = []
        self._number = len(deciders)
        self._seconds: list[float] = []
        self._executor = futures.ThreadPoolExecutor(self._number, "decider")

    @property
    def are_busy(self) -> bool:
        """Whether each of them has a question."""
        return len(self._pending) >= self._number

    @property
    def have_news(self) -> bool:
        """Whether an answer waits to be taken."""
        return any(pending.done() for pending in self._pending)

    def give(self, question: Question, batch: StepBatch) -> torch.cuda.Event | None:
        """A question, whose memory and that of its batch is not written to until it is answered. On a GPU, returns when it is there:
        until then what it was copied from is not to be written to either."""
        asked = torch.cuda.current_stream().record_event() if question.state.is_cuda else None
        pending = self._executor.submit(self._answer, question, batch, asked, time.perf_counter())
        self._pending.append(pending)
        pending.add_done_callback(lambda _: self._wake())
        return asked

    def take(self, *, wait: bool) -> list[Answer]:
        """All answers that are there; with `wait`, at least one, unless nothing was asked. Raises what went wrong."""
        if wait and self._pending:
            futures.wait(self._pending, return_when=futures.FIRST_COMPLETED)
        done = [pending for pending in self._pending if pending.done()]
        self._pending = [pending for pending in self._pending if pending not in done]
        answers = [pending.result() for pending in done]
        for answer in answers:
            _hand_over(answer)
            self._seconds.append(answer.seconds)
        return answers

    def take_seconds(self) -> list[float]:
        """What the answers took that were taken since the last call."""
        seconds, self._seconds = self._seconds, []
        return seconds

    def close(self) -> None:
        """Wait for what is being decided, and forget it."""
        self._executor.shutdown(cancel_futures=True)
        self._pending.clear()

    # ---------------------------------------------------------------- in the other threads

    def _begin(self) -> None:
        """With a thread's first question, and not as the executor's initializer, whose errors nobody would see."""
        number, self._mine.decider = self._unused.get()
        use_threads(self._threads)
        self._mine.stream = None
        device = self._actor.state.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # every thread has its own
            self._mine.stream = stream_for(f"deciding {number}", device)

    @torch.no_grad()
    def _answer(self, question: Question, batch: StepBatch, asked: torch.cuda.Event | None, since: float) -> Answer:
        if not hasattr(self._mine, "decider"):
            self._begin()
        chooser, pick_up = self._mine.decider
        with torch.cuda.stream(self._mine.stream):
            if asked is not None:
                torch.cuda.current_stream().wait_event(asked)
            pick_up()
            version = chooser.policy.version.clone()
            choice = chooser(question.obs, question.state)
            actions = self._actor.env_actions(choice.actions, batch)  # waits for the device
        return Answer(batch, question, choice, version, actions, time.perf_counter() - since)


def _hand_over(answer: Answer) -> None:
    """Memory of another thread's stream, which is used on this one's from now on, is not to be given away before that is done."""
    if answer.version.is_cuda:
        choice = answer.choice
        for tensor in (answer.version, choice.log_prob, choice.value, choice.state, *choice.actions.values()):
            tensor.record_stream(torch.cuda.current_stream())
