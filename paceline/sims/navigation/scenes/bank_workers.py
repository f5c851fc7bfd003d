"""Generation of banks on all cores. One of n workers generates every n-th scene and writes them to a file of its own:

    python -m paceline.sims.navigation.scenes.bank_workers TIER SPLIT NUM_SCENES SEED FIRST EVERY FILE PARENT

PARENT is the process that needs the scenes. If it ends, its workers end.
Workers are new interpreters, not forks, because the caller may use a GPU and threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from paceline.pool.config import available_core_ids
from paceline.signals import signals_blocked
from paceline.sims.navigation.scenes.bank import SceneBank, bank_label
from paceline.sims.navigation.scenes.generator import generate_scene, scene_seeds, tier_named
from paceline.sims.navigation.scenes.scene import Scene

log = logging.getLogger(__name__)

WORTH_A_WORKER = {"small": 128, "full": 16}
"""Least number of scenes per worker, by tier. A worker takes seconds to start, in which it could make as many."""
LOOK_SECONDS, LOG_SECONDS = 0.1, 5.0


def generate(tier: str, split: str, num_scenes: int, seed: int, workers: int | None = None) -> SceneBank:
    """The same bank as `SceneBank.generate`, faster."""
    tier_named(tier)  # invalid arguments are refused here, not by every worker
    scene_seeds(split, num_scenes, seed)
    workers = workers or min(len(available_core_ids()), num_scenes // WORTH_A_WORKER[tier])
    if workers <= 1:
        return SceneBank.generate(tier, split, num_scenes, seed)
    with contextlib.ExitStack() as stack:
        # Files without names: nothing is left of them, however a process ends.
        files = [stack.enter_context(tempfile.TemporaryFile()).fileno() for _ in range(workers)]
        worker = [sys.executable, "-m", __name__, tier, split, str(num_scenes), str(seed)]
        commands = [
            [*worker, str(first), str(workers), f"/dev/fd/{file}", str(os.getpid())] for first, file in enumerate(files)
        ]
        _run(commands, files, num_scenes, tier)
        parts = [SceneBank.load(f"/dev/fd/{file}") for file in files]
    order = torch.cat([torch.arange(first, num_scenes, workers) for first in range(workers)]).argsort()
    tensors = {name: torch.cat([part.tensors[name] for part in parts])[order] for name in parts[0].tensors}
    return SceneBank(tensors, tier, bank_label(tier, split, num_scenes, seed))


def _run(commands: list[list[str]], files: list[int], num_scenes: int, tier: str) -> None:
    """Run all workers until they end. They inherit the open `files`, and write one byte per scene to their output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes: list[subprocess.Popen[bytes]] = []
    said = time.monotonic()
    with tempfile.TemporaryFile() as progress:
        try:
            with signals_blocked():  # a worker that a signal interrupts at its start would be forgotten
                for command in commands:
                    process = subprocess.Popen(
                        command, stdout=progress, stderr=subprocess.PIPE, env=environment, pass_fds=files
                    )
                    processes.append(process)
            while any(process.poll() is None for process in processes):
                if any(process.poll() for process in processes):
                    break
                time.sleep(LOOK_SECONDS)
                if time.monotonic() - said > LOG_SECONDS:
                    said, done = time.monotonic(), os.fstat(progress.fileno()).st_size
                    log.info("navigation: %d of %d %s scenes generated", done, num_scenes, tier)
            for process in processes:
                if process.poll():
                    error = process.stderr.read().decode() if process.stderr is not None else ""
                    raise RuntimeError(f"generating scenes failed:\n{error}")
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def _scenes(tier: str, seeds: list[int], parent: int) -> Iterator[Scene]:
    for seed in seeds:
        if os.getppid() != parent:
            raise SystemExit("the process that needs these scenes has ended")
        yield generate_scene(tier, seed)
        os.write(1, b".")


def main() -> None:
    tier, split, num_scenes, seed, first, every, file, parent = sys.argv[1:]
    seeds = scene_seeds(split, int(num_scenes), int(seed))[int(first) :: int(every)]
    Path(file).write_bytes(SceneBank.of_scenes(_scenes(tier, seeds, int(parent)), tier).to_bytes())


if __name__ == "__main__":
    main()
