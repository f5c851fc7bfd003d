"""Checkpoints: written atomically, verified when read.

`checkpoints/step_N/` holds

- `weights.safetensors`: the policy; further policies of a run are in `weights_1.safetensors` and so on,
- `state.pt`: everything else, readable with `weights_only=True`,
- `pool_R.bin`: the simulators of rank R, if their state can be saved,
- `manifest.json`: the size and digest of every file. It is signed (see `signatures`).

`checkpoints/latest` and `checkpoints/best` name one of the checkpoints. A checkpoint gets its name only when all of it
is on disk: after a crash during writing, the previous checkpoint is still there.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.errors import PacelineError
from paceline.files import cannot_write, check_room, flush, os_error_of, replace_text, temporary_name
from paceline.signatures import sign

log = logging.getLogger(__name__)

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"
OTHER_WEIGHTS = r"weights_\d+\.safetensors"
NAME = r"step_\d+"
TORCH = b"PK\x03\x04"
"""First bytes of torch's files. Unpickling refuses data that begins with them."""
ROOM = 64 * 1024
"""Bytes that a checkpoint needs in addition to its tensors."""


class CheckpointError(PacelineError):
    """A checkpoint cannot be used. `cause` is the message without the advice."""

    def __init__(self, message: str, *, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause or message


class NoSuchCheckpoint(CheckpointError):
    """The requested checkpoint does not exist."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    folder: Path
    weights: dict[str, Tensor]
    state: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Size and digest of every file, by name."""

    @property
    def num_policies(self) -> int:
        return 1 + sum(re.fullmatch(OTHER_WEIGHTS, name) is not None for name in self.files)

    def weights_of(self, policy: int) -> dict[str, Tensor]:
        """The weights of a policy of the run."""
        return self.weights if policy == 0 else load_file(self.folder / _weights_name(policy))

    def learner_state(self, policy: int) -> dict[str, Any]:
        """The state of a policy's learner."""
        return [self.state["agent"], *self.state.get("other_learners", [])][policy]

    @property
    def manifest(self) -> Path:
        return self.folder / MANIFEST

    @property
    def has_pickles(self) -> bool:
        """Whether simulators are saved as pickles, which can run code. A `tensor` pool saves torch's format instead."""
        return any(name.startswith("pool_") and not _begins(self.folder / name, TORCH) for name in self.files)

    def pool_state(self, rank: int) -> bytes | None:
        """The saved simulators of a rank. None if the manifest does not list the file, or its digest differs."""
        expected = self.files.get(f"pool_{rank}.bin")
        if expected is None:
            return None
        data = (self.folder / f"pool_{rank}.bin").read_bytes()
        return data if hashlib.sha256(data).hexdigest() == expected["sha256"] else None


class CheckpointFolder:
    """The `checkpoints/` of one run."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self._folder, self._keep = folder, keep

    def path_of(self, step: int) -> Path:
        return self._folder / f"step_{step}"

    def save(
        self,
        step: int,
        weights: dict[str, Tensor],
        state: dict[str, Any],
        pools: dict[int, bytes],
        *,
        best: bool,
        other_weights: Sequence[dict[str, Tensor]] = (),
    ) -> Path:
        """Write `step_N`, and point `latest` to it, and `best` if it is the best. `other_weights` are those of further
        policies.

        Raises `DiskFull` if it does not fit. Older checkpoints are then unchanged. The run folder must exist: a moved
        one is not made again, because a checkpoint without the configuration would be of no use.
        """
        if not self._folder.parent.is_dir():
            raise PacelineError(
                f"the checkpoint of step {step:,} cannot be saved: {self._folder.parent} was moved or deleted while "
                "the run was training; a moved run continues by --resume --run-dir with its new place"
            )
        final = self.path_of(step)
        needed = _bytes_of((weights, state, pools, list(other_weights)), set()) + ROOM
        with _explained(final, needed):
            self._folder.mkdir(exist_ok=True)
            check_room(final, needed)
            temporary, replaced = temporary_name(final), temporary_name(self._folder / f"replaced_{final.name}")
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                temporary.mkdir()
                _write(temporary, [weights, *other_weights], state, pools)
                _flush(temporary)
                if (
                    final.exists()
                ):  # the run went back; the old checkpoint is deleted only after the new one is complete
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

        A damaged checkpoint is an error that names another one to use. Only if `latest` is damaged, the newest complete
        checkpoint is read instead, with a warning.
        """
        name = self._name_of(which)
        others = [other for other in reversed(self._by_age()) if other != name] if which == "latest" else []
        problems: list[CheckpointError] = []
        for candidate in [name, *others]:
            try:
                found = self._load(candidate)
            except CheckpointError as error:
                if not problems and self._name_of(which) != name:
                    return self.load(which)  # the run is training, and has replaced it while it was read
                problems.append(error)
                continue
            for problem in problems:
                log.warning("%s; %s is used instead", problem.cause, candidate)
            return found
        raise problems[0]

    def _name_of(self, which: str) -> str:
        """The checkpoint that `latest` or `best` names; any other name stays."""
        try:
            return (self._folder / which).read_text(errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
            return which

    def _load(self, name: str) -> Checkpoint:
        folder = self._folder / name
        if re.fullmatch(NAME, name) is None or not folder.is_dir():
            cause = f"there is no checkpoint {name!r} in {self._folder}"
            raise NoSuchCheckpoint(f"{cause}; there are: {', '.join(self._names()) or 'none'}", cause=cause)
        files = self._verify(folder)
        try:
            state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
            weights = load_file(folder / WEIGHTS)
        except (OSError, RuntimeError, pickle.UnpicklingError, SafetensorError) as error:
            raise self._damaged(folder, f"it cannot be read ({str(error).splitlines()[0]})") from error
        return Checkpoint(folder=folder, weights=weights, state=state, files=files)

    def steps(self) -> list[int]:
        """The steps of all checkpoints, ascending."""
        return [_step(name) for name in self._names()]

    def _names(self) -> list[str]:
        """The names of all checkpoints, by ascending step."""
        if not self._folder.is_dir():
            return []
        found = [path.name for path in self._folder.iterdir() if re.fullmatch(NAME, path.name) and path.is_dir()]
        return sorted(found, key=_step)

    def _by_age(self) -> list[str]:
        """The names of all checkpoints, by time of writing. A run may have gone back to an earlier step."""

        def written(name: str) -> float:
            try:
                return (self._folder / name / MANIFEST).stat().st_mtime
            except OSError:
                return 0.0

        return sorted(self._names(), key=written)

    def _verify(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Check that no file has changed since it was written. Returns the manifest."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
            sizes = {name: manifest[name]["bytes"] for name in {*manifest, WEIGHTS, STATE}}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(folder, f"{MANIFEST} cannot be read ({error})") from error
        for name, expected in manifest.items():
            path = folder / Path(name).name
            if not path.exists():
                raise self._damaged(folder, f"{name} is missing")
            try:
                found = _fingerprint(path)
            except OSError as error:
                raise self._damaged(folder, f"{name} cannot be read ({error.strerror})") from error
            if found["bytes"] != sizes[name]:
                raise self._damaged(folder, f"{name} has {found['bytes']} bytes instead of {sizes[name]}")
            if found != expected:
                raise self._damaged(folder, f"{name} was changed: its digest does not match")
        return manifest

    def _damaged(self, folder: Path, why: str) -> CheckpointError:
        hint = "there is no other one"
        if others := [name for name in self._names() if name != folder.name]:
            hint = f"another can be used: train --from-checkpoint {others[-1]}, eval --checkpoint {others[-1]}"
        cause = f"checkpoint {folder} is damaged: {why}"
        return CheckpointError(f"{cause}; {hint}", cause=cause)

    def _prune(self) -> None:
        """Delete all checkpoints but `latest`, `best`, and the `keep` that were written last."""
        names = self._by_age()
        pointers = [self._folder / name for name in ("latest", "best")]
        kept = {*names[-self._keep :], *(pointer.read_text().strip() for pointer in pointers if pointer.exists())}
        for name in names:
            if name not in kept:
                shutil.rmtree(self._folder / name, ignore_errors=True)


def _weights_name(policy: int) -> str:
    return WEIGHTS if policy == 0 else f"weights_{policy}.safetensors"


def _write(folder: Path, weights: Sequence[dict[str, Tensor]], state: dict[str, Any], pools: dict[int, bytes]) -> None:
    for policy, tensors in enumerate(weights):
        on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(on_host, folder / _weights_name(policy))
    with open(folder / STATE, "wb") as file:  # given a path instead, torch hides the reason of a failed write
        torch.save(state, file)
    for rank, pool in pools.items():
        (folder / f"pool_{rank}.bin").write_bytes(pool)
    manifest = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
    sign(folder / MANIFEST, Path.write_text)  # `save` flushes the whole folder


@contextlib.contextmanager
def _explained(path: Path, needed: int) -> Iterator[None]:
    """Turn any library's error about writing `path` into one that says why it cannot be written."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        cause = os_error_of(error)
        if cause is None:
            raise
        raise cannot_write(path, cause, needed) from error


def _bytes_of(value: Any, seen: set[int]) -> int:
    """About how much disk `value` needs: for its `bytes`, and for its tensors, shared memory counted once."""
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
    """Wait until everything in `folder` is on disk, so that the rename that follows cannot get there first."""
    for path in [*folder.iterdir(), folder]:
        flush(path)


def _step(name: str) -> int:
    return int(name.removeprefix("step_"))


def _begins(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start
