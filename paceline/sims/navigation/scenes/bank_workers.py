"""Generation of banks on all cores. One of n workers generates every n-th scene and writes them to a file of its own:

    python -m paceline.sims.navigation.scenes.bank_workers BANK TIER SPLIT NUM_SCENES SEED FIRST EVERY FILE PARENT

BANK is the class of the bank as module:name. Its details follow PARENT, which is the process that needs the scenes. If
that process ends, its workers end.
Workers are new interpreters, not forks, because the caller may use a GPU and threads.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from paceline.pool.config import available_core_ids
from paceline.signals import signals_blocked
from paceline.sims.navigation.scenes.generator import scene_seeds
from paceline.sims.navigation.scenes.tensor_bank import TensorBank, with_progress

log = logging.getLogger(__name__)

AnyBank = TypeVar("AnyBank", bound=TensorBank[Any])

LOOK_SECONDS, LOG_SECONDS = 0.1, 5.0


def generate(
    bank: type[AnyBank],
    tier: str,
    split: str,
    num_scenes: int,
    seed: int,
    details: Sequence[str] = (),
    workers: int | None = None,
) -> AnyBank:
    """Bank number `seed` of a split, on the host, by one process or several. Their number does not change the bank."""
    bank.limits_of(tier)  # invalid arguments are refused here, not by every worker
    seeds, label = scene_seeds(split, num_scenes, seed), bank.label_of(tier, split, num_scenes, seed, details)
    about = f"{bank.SIMULATOR}, {tier}"
    workers = workers or min(len(available_core_ids()), num_scenes // bank.WORTH_A_WORKER[tier])
    if workers <= 1:
        return bank.of_seeds(with_progress(seeds, num_scenes, about), tier, label, details)
    with contextlib.ExitStack() as stack:
        # Files without names: nothing is left of them, however a process ends.
        files = [stack.enter_context(tempfile.TemporaryFile()).fileno() for _ in range(workers)]
        name = f"{bank.__module__}:{bank.__name__}"
        worker = [sys.executable, "-m", __name__, name, tier, split, str(num_scenes), str(seed)]
        commands = [
            [*worker, str(first), str(workers), f"/dev/fd/{file}", str(os.getpid()), *details]
            for first, file in enumerate(files)
        ]
        _run(commands, files, num_scenes, about)
        parts = [bank.load(f"/dev/fd/{file}") for file in files]
    order = torch.cat([torch.arange(first, num_scenes, workers) for first in range(workers)]).argsort()
    tensors = {name: torch.cat([part.tensors[name] for part in parts])[order] for name in parts[0].tensors}
    return bank(tensors, tier, label, details)


def _run(commands: list[list[str]], files: list[int], num_scenes: int, about: str) -> None:
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
                    log.info("%s: %d of %d scenes generated", about, done, num_scenes)
            for process in processes:
                if process.poll():
                    error = process.stderr.read().decode() if process.stderr is not None else ""
                    raise RuntimeError(f"generating scenes failed:\n{error}")
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def _watched(seeds: Sequence[int], parent: int) -> Iterator[int]:
    """`seeds`, with one byte of output after each of them is used. Ends the process if its parent has ended."""
    for seed in seeds:
        if os.getppid() != parent:
            raise SystemExit("the process that needs these scenes has ended")
        yield seed
        os.write(1, b".")


def main() -> None:
    name, tier, split, num_scenes, seed, first, every, file, parent, *details = sys.argv[1:]
    module, _, class_name = name.partition(":")
    bank: type[TensorBank[Any]] = getattr(importlib.import_module(module), class_name)
    seeds = scene_seeds(split, int(num_scenes), int(seed))[int(first) :: int(every)]
    Path(file).write_bytes(bank.of_seeds(_watched(seeds, int(parent)), tier, details=details).to_bytes())


if __name__ == "__main__":
    main()
