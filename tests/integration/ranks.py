"""Running a function on several ranks, each a process of its own, connected by gloo on this machine.

The processes are forked from one that has imported PyTorch already, which takes seconds for each otherwise.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from tests.forks import forks, take_environment

ROOT = Path(__file__).parents[2]


def _run(job: str, out: str, environment: dict[str, str]) -> None:
    """On one rank."""
    take_environment(environment)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    function = pickle.loads(Path(job).read_bytes())
    Path(out).write_bytes(pickle.dumps(function()))


def on_ranks(size: int, function: Callable[[], Any], timeout: float = 350) -> list[Any]:
    """What `function`, called on every rank, returns there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        job.write_bytes(cloudpickle.dumps(function))
        outs = [Path(folder) / f"out_{rank}" for rank in range(size)]
        ranks = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
        ranks |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes = []
        for rank, out in enumerate(outs):
            environment = os.environ | ranks | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(forks().Process(target=_run, args=(str(job), str(out), dict(environment))))
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout)
            codes = [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.join()
        if codes != [0] * size:
            raise RuntimeError(f"ranks ended with {codes}")
        return [pickle.loads(out.read_bytes()) for out in outs]
