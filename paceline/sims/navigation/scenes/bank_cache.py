"""A cache of banks in ~/.cache/paceline, or under $XDG_CACHE_HOME, with a folder per simulator."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError, UsageError
from paceline.signals import termination_as_interrupt
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.bank_workers import AnyBank, generate
from paceline.sims.navigation.scenes.tensor_bank import TensorBank
from paceline.wording import counted

log = logging.getLogger(__name__)


def cache_folder(bank: type[TensorBank[Any]] = SceneBank) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "paceline" / bank.SIMULATOR


def cache_file(label: str, folder: Path | None = None, bank: type[TensorBank[Any]] = SceneBank) -> Path:
    """The file of the bank with this label."""
    return (folder or cache_folder(bank)) / f"{label}-format{bank.VERSION}.safetensors"


def load_or_generate(
    tier: str, split: str = "train", num_scenes: int = 64, seed: int = 0, folder: Path | None = None
) -> SceneBank:
    """The generated bank of these arguments, from the cache if it is there."""
    return load_or_generate_bank(SceneBank, tier, split, num_scenes, seed, folder=folder)


def load_or_generate_bank(
    bank: type[AnyBank],
    tier: str,
    split: str,
    num_scenes: int,
    seed: int,
    details: Sequence[str] = (),
    folder: Path | None = None,
) -> AnyBank:
    """The generated bank of any class; see `load_or_generate`."""
    label = bank.label_of(tier, split, num_scenes, seed, details)
    about = f"generating {counted(num_scenes, f'{tier} scene')} for {split}"
    return load_or_make(bank, label, about, lambda: generate(bank, tier, split, num_scenes, seed, details), folder)


def load_or_make(
    bank: type[AnyBank], label: str, about: str, make: Callable[[], AnyBank], folder: Path | None = None
) -> AnyBank:
    """The bank with this label from the cache. A missing bank is made and added to the cache.

    If several processes need the same new bank, one makes it and the others wait. A damaged file is made again. If the
    folder cannot be written, the bank is made each time, with a warning.
    """
    path = cache_file(label, folder, bank)
    found = _load(bank, path)
    if found is not None:
        return found
    with _locked(path.with_suffix(".lock")) as can_write, termination_as_interrupt():
        found = _load(bank, path)  # the last holder of the lock may have made it
        if found is not None:
            return found
        start = time.monotonic()
        log.info("%s: %s", bank.SIMULATOR, about)
        made = make()
        log.info("%s: done in %.1f s", bank.SIMULATOR, time.monotonic() - start)
        if can_write:
            try:
                made.save(path)
            except (OSError, PacelineError) as error:
                log.warning("scenes are not kept for the next time: %s", error)
        return made


def _load(bank: type[AnyBank], path: Path) -> AnyBank | None:
    if not path.is_file():
        return None
    try:
        return bank.load(path)
    except UsageError as error:
        log.warning("%s; it is generated again", error)
        return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a file lock; yields whether its folder can be written. The lock is released if its process dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        log.warning("scenes are not kept for the next time: %s", error)
        yield False
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield True
