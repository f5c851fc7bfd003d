"""Generation of banks on all cores. One of n workers generates every n-th scene and writes them to its own file:

    python -m paceline.sims.navigation.scenes.bank_workers TIER SPLIT NUM_SCENES SEED FIRST EVERY FILE

Workers are new interpreters, not forks, because the caller may use a GPU and threads.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from paceline.pool.config import available_core_ids
from paceline.sims.navigation.scenes.bank import SceneBank, bank_label
from paceline.sims.navigation.scenes.generator import generate_scene, scene_seeds, tier_named
from paceline.sims.navigation.scenes.scene import Scene

log = logging.getLogger(__name__)

WORTH_A_WORKER = 32
"""Least number of scenes per worker, because a worker takes seconds to start."""
LOOK_SECONDS, LOG_SECONDS = 0.1, 5.0


def generate(tier: str, split: str, num_scenes: int, seed: int, workers: int | None = None) -> SceneBank:
    """The same bank as `SceneBank.generate`, faster."""
    tier_named(tier)  # invalid arguments are refused here, not by every worker
    scene_seeds(split, num_scenes, seed)
    workers = workers or min(len(available_core_ids()), num_scenes // WORTH_A_WORKER)
    if workers <= 1:
        return SceneBank.generate(tier, split, num_scenes, seed)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{first}.safetensors" for first in range(workers)]
        progress = Path(folder) / "progress"
        progress.touch()
        worker = [sys.executable, "-m", __name__, tier, split, str(num_scenes), str(seed)]
        commands = [[*worker, str(first), str(workers), str(file)] for first, file in enumerate(files)]
        _run(commands, progress, num_scenes, tier)
        parts = [SceneBank.load(file) for file in files]
    order = torch.cat([torch.arange(first, num_scenes, workers) for first in range(workers)]).argsort()
    tensors = {name: torch.cat([part.tensors[name] for part in parts])[order] for name in parts[0].tensors}
    return SceneBank(tensors, tier, bank_label(tier, split, num_scenes, seed))


def _run(commands: list[list[str]], progress: Path, num_scenes: int, tier: str) -> None:
    """Run all workers until they end. Each writes one byte per scene to `progress`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with progress.open("ab") as sink:
        processes = [
            subprocess.Popen(command, stdout=sink, stderr=subprocess.PIPE, env=environment) for command in commands
        ]
    said = time.monotonic()
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            time.sleep(LOOK_SECONDS)
            if time.monotonic() - said > LOG_SECONDS:
                said = time.monotonic()
                log.info("navigation: %d of %d %s scenes generated", progress.stat().st_size, num_scenes, tier)
        for process in processes:
            if process.poll():
                error = process.stderr.read().decode() if process.stderr is not None else ""
                raise RuntimeError(f"generating scenes failed:\n{error}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _scenes(tier: str, seeds: list[int]) -> list[Scene]:
    parent, scenes = os.getppid(), []
    for seed in seeds:
        if os.getppid() != parent:
            raise SystemExit("the process that needs these scenes has ended")
        scenes.append(generate_scene(tier, seed))
        os.write(1, b".")
    return scenes


def main() -> None:
    tier, split, num_scenes, seed, first, every, file = sys.argv[1:]
    seeds = scene_seeds(split, int(num_scenes), int(seed))[int(first) :: int(every)]
    SceneBank.of_scenes(_scenes(tier, seeds), tier).save(file)


if __name__ == "__main__":
    main()
