"""Freed memory is kept while training, and given back after it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

KEPT = """
import json, resource, sys, threading
import numpy as np
from paceline.accel import allocator

def touched() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(millions * 1_000_000, np.float32) for millions in (1, 3, 9, 30)]
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def look() -> None:
    counts.append([touched() for _ in range(5)][2:])

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

allocator.ON_ARM = False
if sys.argv[1] != "as it is":
    allocator.keep_freed_memory()
counts = []
look()
thread = threading.Thread(target=look)
thread.start()
thread.join()
before = resident()
if sys.argv[1] == "given back":
    allocator.give_freed_memory_back()
    counts = []
    look()
print(json.dumps({"touched": counts, "freed": before - resident()}))
"""


def measured(how: str) -> tuple[list[int], int]:
    """New pages of each round, and the bytes that went back to the system."""
    done = subprocess.run([sys.executable, "-c", KEPT, how], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return [count for thread in found["touched"] for count in thread], found["freed"]


@pytest.fixture(scope="module")
def left_alone() -> list[int]:
    touched, _ = measured("as it is")
    if max(touched) < 50:
        pytest.skip("memory is not glibc's here, or glibc keeps it anyway")
    return touched


def test_memory_that_was_freed_is_used_again(left_alone):
    """By the main thread and by other threads, without new pages; there would be 42,000 of 4 KiB, or 82 of 2 MiB.
    With arrays: their memory is glibc's on every processor."""
    touched, _ = measured("kept")
    assert max(touched) < 10, touched


def test_memory_that_was_kept_goes_back_to_the_system(left_alone):
    """Free memory goes back at once, and large blocks when they are freed."""
    touched, freed = measured("given back")
    assert freed > 100e6
    assert min(touched) > 0.5 * min(left_alone)
