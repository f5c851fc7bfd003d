"""Running a function on several ranks, each a process of its own, connected by gloo on this machine."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

ROOT = Path(__file__).parents[2]
_PROGRAM = (
    "import pickle, sys; function, out = pickle.load(open(sys.argv[1], 'rb')); pickle.dump(function(), open(out, 'wb'))"
)


def on_ranks(size: int, function: Callable[[], Any], timeout: float = 120) -> list[Any]:
    """What `function`, called on every rank, returns there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(size):
            job, out = Path(folder) / f"job_{rank}", Path(folder) / f"out_{rank}"
            job.write_bytes(cloudpickle.dumps((function, str(out))))
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            }
            processes.append(subprocess.Popen([sys.executable, "-c", _PROGRAM, str(job)], env=environment, cwd=ROOT))
        try:
            codes = [process.wait(timeout) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert codes == [0] * size, f"ranks ended with {codes}"
        return [pickle.loads((Path(folder) / f"out_{rank}").read_bytes()) for rank in range(size)]
