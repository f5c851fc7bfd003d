"""Pipes and faster-fifo, for the small messages between a pool and its workers."""

from __future__ import annotations

import multiprocessing
import os
import select
import statistics
import struct
import time
from collections.abc import Callable
from typing import Any

from .report import Result, context, make_result, print_context, print_table

EXTRA = "bench"
"""What `paceline bench` checks before it begins."""


_MESSAGE = struct.pack("<4i", 1, 2, 3, 4)


def _echo_fifo(requests: Any, replies: Any, count: int) -> None:
    done = 0
    while done < count:
        for message in requests.get_many(timeout=30):
            replies.put(message)
            done += 1


def _echo_pipe(requests: int, replies: int, count: int) -> None:
    done = 0
    while done < count:
        data = os.read(requests, 1 << 16)
        os.write(replies, data)
        done += len(data) // len(_MESSAGE)


def _round_trips(once: Callable[[], None], target: Callable[..., None], args: tuple, count: int) -> tuple[float, float]:
    """Microseconds of wall-clock time and of this process's processor time per round trip."""
    other = multiprocessing.get_context("fork").Process(target=target, args=(*args, count))
    other.start()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        once()
    figures = (time.perf_counter() - wall) / count * 1e6, (time.process_time() - cpu) / count * 1e6
    other.join()
    return figures


def fifo(count: int) -> tuple[float, float]:
    import faster_fifo

    requests, replies = faster_fifo.Queue(1_000_000), faster_fifo.Queue(1_000_000)

    def once() -> None:
        requests.put((1, 2, 3, 4))
        replies.get_many(timeout=30)

    return _round_trips(once, _echo_fifo, (requests, replies), count)


def pipe(count: int) -> tuple[float, float]:
    (request_end, requests), (replies, reply_end) = os.pipe(), os.pipe()
    poll = select.poll()
    poll.register(replies, select.POLLIN)

    def once() -> None:
        os.write(requests, _MESSAGE)
        poll.poll(30_000)
        os.read(replies, 1 << 16)

    figures = _round_trips(once, _echo_pipe, (request_end, reply_end), count)
    for fd in (request_end, requests, replies, reply_end):
        os.close(fd)
    return figures


def run(quick: bool) -> Result:
    facts = context()
    print_context(facts)
    rounds, count = (1, 5_000) if quick else (5, 20_000)
    samples: dict[str, list[tuple[float, float]]] = {"pipe": [], "faster-fifo": []}
    for _ in range(rounds):
        samples["pipe"].append(pipe(count))
        samples["faster-fifo"].append(fifo(count))
    medians = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in samples.items()
    }
    table = print_table(
        "Round trip of a 16-byte message between two processes",
        ["channel", "wall-clock µs", "processor µs of the sender"],
        [[name, f"{wall:.1f}", f"{cpu:.1f}"] for name, (wall, cpu) in medians.items()],
        name="round_trip",
    )
    note = f"Medians of {rounds} rounds of {count:,} messages."
    return make_result("channel", facts, [table], note=note, measurements=samples)
