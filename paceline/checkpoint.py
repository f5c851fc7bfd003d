"""Checkpoints: written atomically, verified when read.

`checkpoints/step_N/` holds `weights.safetensors` (the policy), `state.pt` (everything else, readable with
`weights_only=True`), `pool_R.bin` (rank R's simulators, where their state can be saved) and `manifest.json`, which has
the size and digest of every file, and is signed (see `trust`). `checkpoints/latest` and `checkpoints/best` name one of them. A checkpoint appears
under its name only when all of it is on disk: a crash while writing leaves the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.errors import PacelineError
from paceline.files import cannot_write, check_room, flush, os_error_of, replace_text, temporary_name
from paceline.trust import sign

log = logging.getLogger(__name__)

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"
NAME = r"step_\d+"
TORCH = b"PK\x03\x04"
"""How torch's files begin. No pickle that begins so can be loaded."""
ROOM = 64 * 1024
"""Bytes that a checkpoint takes beside its tensors, at least."""


class CheckpointError(PacelineError):
    """A checkpoint that cannot be used. `cause` is the message without what could be done about it."""

    def __init__(self, message: str, *, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause or message


class NoSuchCheckpoint(CheckpointError):
    """One was asked for that does not exist."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is read back."""

    folder: Path
    weights: dict[str, Tensor]
    state: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Size and digest of every file that belongs to it."""

    @property
    def manifest(self) -> Path:
        return self.folder / MANIFEST

    @property
    def has_pickles(self) -> bool:
        """Whether simulators were saved as pickles, which run code when they are loaded. A `tensor` pool's are in torch's format."""
        return any(name.startswith("pool_") and not _begins(self.folder / name, TORCH) for name in self.files)

    def pool_state(self, rank: int) -> bytes | None:
        """The simulators of a rank. A file that the manifest does not have, or no longer agrees with, is none."""
        expected = self.files.get(f"pool_{rank}.bin")
        if expected is None:
            return None
        data = (self.folder / f"pool_{rank}.bin").read_bytes()
        return data if hashlib.sha256(data).hexdigest() == expected["sha256"] else None


def recover(folder: Path) -> None:
    """Bring back a checkpoint of `folder` that was about to be replaced when its writer was killed. Nobody may be writing there now."""
    for hidden in folder.glob(".replaced_step_*"):
        final = folder / hidden.name.removeprefix(".replaced_").partition(".")[0]
        if not final.exists():
            os.replace(hidden, final)


class CheckpointFolder:
    """The `checkpoints/` of one run."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self._folder, self._keep = folder, keep

    def save(
        self, step: int, weights: dict[str, Tensor], state: dict[str, Any], pools: dict[int, bytes], *, best: bool
    ) -> Path:
        """Write `step_N` and name it the latest, and the best if it is. `DiskFull` where there is no room for it: then those
        before are as they were."""
        final = self._folder / f"step_{step}"
        needed = _bytes_of((weights, state, pools), set()) + ROOM
        with _explained(final, needed):
            self._folder.mkdir(parents=True, exist_ok=True)
            check_room(final, needed)
            temporary, replaced = temporary_name(final), temporary_name(self._folder / f"replaced_{final.name}")
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                temporary.mkdir()
                _write(temporary, weights, state, pools)
                _flush(temporary)
                if final.exists():  # a run that went back: what is there is not deleted before the new one is whole
                    os.replace(final, replaced)
                os.replace(temporary, final)
            except BaseException:
                if replaced.exists() and not final.exists():
                    os.replace(replaced, final)
                raise
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(replaced, ignore_errors=True)
            for pointer in ["latest", *(["best"] if best else [])]:
                replace_text(self._folder / pointer, final.name + "\n")
        self._prune()
        return final

    def load(self, which: str = "latest") -> Checkpoint:
        """Read `latest`, `best` or `step_N`.

        A damaged one is an error that says how to go back to another. Instead of a damaged `latest` the one that was written
        before it is read, with a warning.
        """
        pointer = self._folder / which
        name = pointer.read_text(errors="replace").strip() if pointer.is_file() else which
        others = [other for other in self._by_age()[::-1] if other != name] if which == "latest" else []
        problems: list[CheckpointError] = []
        for candidate in [name, *others]:
            try:
                found = self._load(candidate)
            except CheckpointError as error:
                problems.append(error)
                continue
            for problem in problems:
                log.warning("%s; %s is used instead", problem.cause, candidate)
            return found
        raise problems[0]

    def _load(self, name: str) -> Checkpoint:
        folder = self._folder / name
        if re.fullmatch(NAME, name) is None or not folder.is_dir():
            cause = f"there is no checkpoint {name!r} in {self._folder}"
            raise NoSuchCheckpoint(f"{cause}; there are: {self._listing()}", cause=cause)
        files = self._verify(folder)
        try:
            state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
            weights = load_file(folder / WEIGHTS)
        except (OSError, RuntimeError, pickle.UnpicklingError, SafetensorError) as error:
            raise self._damaged(folder, f"it cannot be read ({str(error).splitlines()[0]})") from error
        return Checkpoint(folder=folder, weights=weights, state=state, files=files)

    def latest(self) -> str | None:
        """The name of the latest checkpoint, if there is any."""
        pointer = self._folder / "latest"
        return pointer.read_text().strip() if pointer.is_file() else None

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, ascending."""
        return sorted(int(name.removeprefix("step_")) for name in self._names())

    def _names(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        return [path.name for path in self._folder.iterdir() if re.fullmatch(NAME, path.name) and path.is_dir()]

    def _by_age(self) -> list[str]:
        """The names of all checkpoints, the one that was written last at the end."""

        def written(step: int) -> float:
            try:
                return (self._folder / f"step_{step}" / MANIFEST).stat().st_mtime
            except OSError:
                return 0.0

        return [f"step_{step}" for step in sorted(self.steps(), key=written)]

    def _verify(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Check that no file has changed since it was written. Returns the size and digest of every file."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
            sizes = {name: manifest[name]["bytes"] for name in {*manifest, WEIGHTS, STATE}}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(folder, f"{MANIFEST} cannot be read ({error})") from error
        for name, expected in manifest.items():
            path = folder / Path(name).name
            if not path.exists():
                raise self._damaged(folder, f"{name} is missing")
            found = _fingerprint(path)
            if found["bytes"] != sizes[name]:
                raise self._damaged(folder, f"{name} has {found['bytes']} bytes instead of {sizes[name]}")
            if found != expected:
                raise self._damaged(folder, f"{name} was changed: its digest does not match")
        return manifest

    def _damaged(self, folder: Path, why: str) -> CheckpointError:
        others = [f"step_{step}" for step in self.steps() if f"step_{step}" != folder.name]
        hint = (
            f"another can be used: train --from-checkpoint {others[-1]}, eval --checkpoint {others[-1]}"
            if others
            else "there is no other one"
        )
        cause = f"checkpoint {folder} is damaged: {why}"
        return CheckpointError(f"{cause}; {hint}", cause=cause)

    def _listing(self) -> str:
        return ", ".join(f"step_{step}" for step in self.steps()) or "none"

    def _prune(self) -> None:
        """Keep those that were written last, which need not be of the highest steps: a run may have gone back to an earlier
        one."""
        pointers = [self._folder / name for name in ("latest", "best")]
        kept = {
            *self._by_age()[-self._keep :],
            *(pointer.read_text().strip() for pointer in pointers if pointer.exists()),
        }
        for step in self.steps():
            if f"step_{step}" not in kept:
                shutil.rmtree(self._folder / f"step_{step}", ignore_errors=True)


def _write(folder: Path, weights: dict[str, Tensor], state: dict[str, Any], pools: dict[int, bytes]) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
    with open(folder / STATE, "wb") as file:  # given a path, torch does not say what is wrong with the disk
        torch.save(state, file)
    for rank, pool in pools.items():
        (folder / f"pool_{rank}.bin").write_bytes(pool)
    manifest = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
    sign(folder / MANIFEST, Path.write_text)  # all of the folder is flushed together


@contextlib.contextmanager
def _explained(path: Path, needed: int) -> Iterator[None]:
    """Turn every library's error about writing `path` into one that says why."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        cause = os_error_of(error)
        if cause is None:
            raise
        raise cannot_write(path, cause, needed) from error


def _bytes_of(value: Any, seen: set[int]) -> int:
    """About what `value` takes on disk: its tensors' memory, each counted once, and its bytes."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        new = storage.data_ptr() not in seen
        seen.add(storage.data_ptr())
        return storage.nbytes() if new else 0
    if isinstance(value, dict):
        return sum(_bytes_of(item, seen) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(_bytes_of(item, seen) for item in value)
    return len(value) if isinstance(value, bytes) else 0


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _flush(folder: Path) -> None:
    """Everything in `folder` is on disk when this returns, so that the rename that follows cannot overtake it."""
    for path in [*folder.iterdir(), folder]:
        flush(path)


def _begins(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start
