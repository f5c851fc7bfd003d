"""Checkpoints: written atomically, verified when read.

`checkpoints/step_N/` holds `weights.safetensors` (the policy), `state.pt` (everything else, readable with
`weights_only=True`), `pool_R.bin` (rank R's simulators, where their state can be saved) and `manifest.json`, which has
the size and digest of every file. `checkpoints/latest` and `checkpoints/best` name one of them. A checkpoint appears
under its name only when all of it is on disk: a crash while writing leaves the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.errors import PacelineError, UsageError

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept."""

    seconds: float = 120.0
    """A checkpoint at least this often, and one at the end."""
    keep: int = 3
    """The latest of them that are kept; the best one is kept besides."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise UsageError(f"checkpoint.keep must be at least 1, got {self.keep}")
        if not self.seconds > 0:
            raise UsageError(f"checkpoint.seconds must be above 0, got {self.seconds}")


class CheckpointError(PacelineError):
    """A checkpoint that cannot be used."""


class NoSuchCheckpoint(CheckpointError):
    """One was asked for that does not exist."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is read back."""

    folder: Path
    weights: dict[str, Tensor]
    state: dict[str, Any]

    def pool_state(self, rank: int) -> bytes | None:
        path = self.folder / f"pool_{rank}.bin"
        return path.read_bytes() if path.exists() else None


class CheckpointFolder:
    """The `checkpoints/` of one run."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self._folder, self._keep = folder, keep

    def save(
        self, step: int, weights: dict[str, Tensor], state: dict[str, Any], pools: dict[int, bytes], *, best: bool
    ) -> Path:
        """Write `step_N` and name it the latest, and the best if it is."""
        self._folder.mkdir(parents=True, exist_ok=True)
        final, temporary = self._folder / f"step_{step}", self._folder / f".step_{step}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary / WEIGHTS)
        torch.save(state, temporary / STATE)
        for rank, pool in pools.items():
            (temporary / f"pool_{rank}.bin").write_bytes(pool)
        manifest = {path.name: _fingerprint(path) for path in sorted(temporary.iterdir())}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2))
        _flush(temporary)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        self._name("latest", final.name)
        if best:
            self._name("best", final.name)
        self._prune()
        return final

    def load(self, which: str = "latest") -> Checkpoint:
        """Read `latest`, `best` or `step_N`; a damaged one is an error that says how to go back to another."""
        pointer = self._folder / which
        name = pointer.read_text().strip() if pointer.is_file() else which
        folder = self._folder / name
        if not folder.is_dir():
            raise NoSuchCheckpoint(f"there is no checkpoint {which!r} in {self._folder}; there are: {self._listing()}")
        self._verify(folder)
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
        return Checkpoint(folder=folder, weights=load_file(folder / WEIGHTS), state=state)

    def latest(self) -> str | None:
        """The name of the latest checkpoint, if there is any."""
        pointer = self._folder / "latest"
        return pointer.read_text().strip() if pointer.is_file() else None

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, ascending."""
        if not self._folder.is_dir():
            return []
        return sorted(int(path.name.removeprefix("step_")) for path in self._folder.glob("step_*") if path.is_dir())

    def _written(self, name: str) -> float:
        """When a checkpoint was."""
        try:
            return (self._folder / name / MANIFEST).stat().st_mtime
        except OSError:
            return 0.0

    def _verify(self, folder: Path) -> None:
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise self._damaged(folder, f"{MANIFEST} cannot be read ({error})") from error
        for name, expected in manifest.items():
            path = folder / name
            if not path.exists():
                raise self._damaged(folder, f"{name} is missing")
            found = _fingerprint(path)
            if found["bytes"] != expected["bytes"]:
                raise self._damaged(folder, f"{name} has {found['bytes']} bytes instead of {expected['bytes']}")
            if found != expected:
                raise self._damaged(folder, f"{name} was changed: its digest does not match")

    def _damaged(self, folder: Path, why: str) -> CheckpointError:
        others = [f"step_{step}" for step in self.steps() if f"step_{step}" != folder.name]
        hint = (
            f"another can be used: train --from-checkpoint {others[-1]}, eval --checkpoint {others[-1]}"
            if others
            else "there is no other one"
        )
        return CheckpointError(f"checkpoint {folder} is damaged: {why}; {hint}")

    def _listing(self) -> str:
        return ", ".join(f"step_{step}" for step in self.steps()) or "none"

    def _name(self, pointer: str, target: str) -> None:
        temporary = self._folder / f".{pointer}.{os.getpid()}"
        temporary.write_text(target + "\n")
        os.replace(temporary, self._folder / pointer)

    def _prune(self) -> None:
        """Keep those that were written last, which need not be of the highest steps: a run may have gone back to an earlier
        one."""
        by_age = sorted((f"step_{step}" for step in self.steps()), key=self._written)
        pointers = [self._folder / name for name in ("latest", "best")]
        kept = {*by_age[-self._keep :], *(pointer.read_text().strip() for pointer in pointers if pointer.exists())}
        for step in self.steps():
            if f"step_{step}" not in kept:
                shutil.rmtree(self._folder / f"step_{step}", ignore_errors=True)


def flush(path: Path) -> None:
    """A file, or the list of what is in a folder, is on disk when this returns."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _flush(folder: Path) -> None:
    """Everything in `folder` is on disk when this returns, so that the rename that follows cannot overtake it."""
    for path in [*folder.iterdir(), folder]:
        flush(path)
