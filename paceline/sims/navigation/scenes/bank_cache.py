"""A cache of banks in ~/.cache/paceline/navigation, or under $XDG_CACHE_HOME."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.errors import PacelineError, UsageError
from paceline.signals import termination_as_interrupt
from paceline.sims.navigation.scenes.bank import VERSION, SceneBank, bank_label
from paceline.sims.navigation.scenes.bank_workers import generate
from paceline.wording import counted

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "paceline" / "navigation"


def cache_file(label: str, folder: Path | None = None) -> Path:
    """The file of the bank with this label."""
    return (folder or cache_folder()) / f"{label}-format{VERSION}.safetensors"


def load_or_generate(
    tier: str, split: str = "train", num_scenes: int = 64, seed: int = 0, folder: Path | None = None
) -> SceneBank:
    """The generated bank of these arguments, from the cache if it is there."""
    label = bank_label(tier, split, num_scenes, seed)
    about = f"generating {counted(num_scenes, f'{tier} scene')} for {split}"
    return load_or_make(label, about, lambda: generate(tier, split, num_scenes, seed), folder)


def load_or_make(label: str, about: str, make: Callable[[], SceneBank], folder: Path | None = None) -> SceneBank:
    """The bank with this label from the cache. A missing bank is made and added to the cache.

    If several processes need the same new bank, one makes it and the others wait. A damaged file is made again. If the
    folder cannot be written, the bank is made each time, with a warning.
    """
    path = cache_file(label, folder)
    found = _load(path)
    if found is not None:
        return found
    with _locked(path.with_suffix(".lock")) as can_write, termination_as_interrupt():
        found = _load(path)  # the last holder of the lock may have made it
        if found is not None:
            return found
        start = time.monotonic()
        log.info("navigation: %s", about)
        bank = make()
        log.info("navigation: done in %.1f s", time.monotonic() - start)
        if can_write:
            try:
                bank.save(path)
            except (OSError, PacelineError) as error:
                log.warning("scenes are not kept for the next time: %s", error)
        return bank


def _load(path: Path) -> SceneBank | None:
    if not path.is_file():
        return None
    try:
        return SceneBank.load(path)
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
