"""A program with a process pool whose simulators started processes of their own and made named shared memory; it ends
as its first argument says. The second is how the names of that memory begin."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import psutil

from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from tests.pool.faulty import faulty


def main(ending: str, prefix: str) -> None:
    # A test run in the background of a shell inherits an ignored SIGINT; a user's terminal does not do that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fault = "hang" if ending == "hang" else "child"
    pool = ProcessPool(faulty(fault, only=1, segment=prefix), PoolConfig(num_envs=4, workers=2, nice=0), seed=0)
    if ending == "hang":  # environments 0 and 1 share a worker, which is stuck in its simulator by the time we go on
        for _ in range(10):
            batch = pool.recv(min_slots=2)
            pool.send(np.zeros(len(batch), np.int64), batch.slots)
    workers = pool.worker_pids()
    children = [child.pid for pid in workers for child in psutil.Process(pid).children(recursive=True)]
    guardian = pool._crew.guard.pid
    if ending == "unguarded":
        os.kill(guardian, signal.SIGKILL)
        while pool._crew.guard.pid == guardian:
            batch = pool.recv(min_slots=None)
            pool.send(np.zeros(len(batch), np.int64), batch.slots)
        guardian = pool._crew.guard.pid
    if fault == "child":
        assert children, "the simulator started a process of its own"
    sys.stdout.write(json.dumps({"workers": workers, "children": children, "guardian": guardian}) + "\n")
    sys.stdout.flush()
    for turn in range(10**9):
        batch = pool.recv(min_slots=None)
        pool.send(np.zeros(len(batch), np.int64), batch.slots)
        if turn == 20 and ending == "close":
            pool.close()
            return
        if turn == 20 and ending == "return":
            return
        if turn == 20 and ending == "exception":
            raise RuntimeError("an error of the program's own")


if __name__ == "__main__":
    main(*sys.argv[1:])
