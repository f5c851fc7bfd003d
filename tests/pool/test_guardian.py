"""Shared memory is deleted only if it was ours and nobody uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from paceline.pool import guardian
from paceline.pool.guardian import SharedMemory

MAP = """
import mmap, sys
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place():
    """How the paths of a test's files begin; what is left of them goes at the end."""
    prefix = f"paceline-test-{uuid.uuid4().hex}-"
    yield f"/dev/shm/{prefix}"
    for name in os.listdir("/dev/shm"):
        if name.startswith(prefix):
            os.unlink(f"/dev/shm/{name}")


@pytest.fixture
def map_elsewhere():
    """Starts processes that create and map a file, with a mark in their environment; ends them."""
    processes = []

    def start(path: str, mark: str = "") -> subprocess.Popen:
        environment = os.environ | {guardian.MARK_VARIABLE: mark}
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", MAP, path], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_files_of_killed_workers_go_and_others_stay(place, map_elsewhere):
    mark = uuid.uuid4().hex
    memory = SharedMemory(mark)
    open(f"{place}old", "w").close()
    memory.old = guardian.shared_files()
    mine = {name: map_elsewhere(f"{place}{name}", f"{mark}.{name}") for name in ("first", "second", "old")}
    map_elsewhere(f"{place}other", "somebody-else")
    memory.look()
    for process in mine.values():
        process.kill()
        process.wait()
    memory.remove({f"{mark}.first"})
    assert not os.path.exists(f"{place}first") and os.path.exists(f"{place}second")
    memory.remove()
    left = [name for name in ("first", "second", "old", "other") if os.path.exists(place + name)]
    assert left == ["old", "other"]


def test_a_file_that_a_living_process_maps_stays(place, map_elsewhere):
    memory = SharedMemory("a-mark")
    ours, another = map_elsewhere(f"{place}file", "a-mark.1"), map_elsewhere(f"{place}file")
    memory.look()
    memory.remove(killed=[ours.pid])
    assert os.path.exists(f"{place}file")
    another.kill()
    another.wait()
    memory.remove()
    assert os.path.exists(f"{place}file"), "the worker itself still lives"
    memory.remove(killed=[ours.pid])
    assert not os.path.exists(f"{place}file")


def test_a_new_file_under_an_old_name_stays(place, map_elsewhere):
    memory = SharedMemory("a-mark")
    process = map_elsewhere(f"{place}file", "a-mark.1")
    memory.look()
    process.kill()
    process.wait()
    os.rename(f"{place}file", f"{place}elsewhere")
    open(f"{place}file", "w").close()
    memory.remove()
    assert os.path.exists(f"{place}file")


def test_files_that_none_of_our_processes_maps_are_looked_at_a_few_times_only(place, monkeypatch):
    scans = []
    monkeypatch.setattr(guardian, "marked", lambda mark: scans.append(mark) or {})
    memory = SharedMemory("a-mark")
    memory.old = guardian.shared_files()
    open(f"{place}other", "w").close()
    for _ in range(20):
        memory.look()
    assert guardian.MAX_CHECKS <= len(scans) < 20  # another test may make files too
