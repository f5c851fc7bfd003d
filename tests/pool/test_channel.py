"""Messages arrive whole, in order and unmixed, whatever their size."""

from __future__ import annotations

import os
import select
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.pool.channel import (
    CommandWriter,
    ResultReader,
    ResultWriter,
    pack_ints,
    read_commands,
    unpack_ints,
)


def read_all(fd: int, count: int):
    reader, messages = ResultReader(fd), []
    while len(messages) < count:
        messages += reader.read()
    return messages


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20_000)), min_size=1, max_size=12))
def test_results_of_two_writers_arrive_whole_and_in_order(messages):
    fd, write_fd = os.pipe()
    os.set_blocking(fd, False)

    def write(sender):
        writer = ResultWriter(write_fd, sender)
        for index, (kind, size) in enumerate(messages):
            writer.send(kind, bytes([sender, index]) * size)

    threads = [threading.Thread(target=write, args=(sender,)) for sender in (7, 8)]
    for thread in threads:
        thread.start()
    received = read_all(fd, 2 * len(messages))
    for thread in threads:
        thread.join()
    for sender in (7, 8):
        mine = [(m.kind, m.payload) for m in received if m.sender == sender]
        assert mine == [(kind, bytes([sender, index]) * size) for index, (kind, size) in enumerate(messages)]
    os.close(fd)
    os.close(write_fd)


def test_half_a_message_of_a_dead_worker_is_forgotten():
    fd, write_fd = os.pipe()
    os.set_blocking(fd, False)
    pieces: list[bytes] = []
    real_write = os.write
    long = ResultWriter(write_fd, 1)
    os.write = lambda _, data: pieces.append(data) or len(data)  # type: ignore[assignment]
    try:
        long.send(2, b"x" * 10_000)
    finally:
        os.write = real_write
    assert len(pieces) == 3
    os.write(write_fd, pieces[0])
    reader = ResultReader(fd)
    assert reader.read() == []
    reader.forget(1)
    ResultWriter(write_fd, 1).send(3, b"new")
    assert [(m.kind, m.payload) for m in reader.read()] == [(3, b"new")]
    os.close(fd)
    os.close(write_fd)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=6))
def test_commands_of_any_size_arrive_in_order(sizes):
    fd, write_fd = os.pipe()

    def write():
        writer = CommandWriter(write_fd)
        for index, size in enumerate(sizes):
            writer.send(index, bytes([index]) * size)
        while not writer.flush():
            select.select([], [write_fd], [])
        os.close(write_fd)

    thread = threading.Thread(target=write)
    thread.start()
    assert list(read_commands(fd)) == [(index, bytes([index]) * size) for index, size in enumerate(sizes)]
    thread.join()
    os.close(fd)


def test_commands_to_a_worker_that_does_not_read_block_nobody():
    fd, write_fd = os.pipe()
    writer = CommandWriter(write_fd)
    sent = [writer.send(3, bytes(1000)) for _ in range(200)]
    assert sent[0] and not sent[-1] and not writer.flush()
    commands = read_commands(fd)
    received = 0
    while not writer.flush():
        assert next(commands) == (3, bytes(1000))
        received += 1
    os.close(write_fd)
    assert received + len(list(commands)) == 200
    os.close(fd)


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_integers_survive(values):
    assert unpack_ints(pack_ints(values)) == values
