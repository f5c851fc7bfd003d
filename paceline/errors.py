"""Errors that users see. Each has the exit code of the command that it ends."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass


class PacelineError(Exception):
    """A failure whose message is written for the user, who needs no traceback to understand it."""

    exit_code = 1
    names_rank = False
    """Whether the message says by itself which of several ranks is concerned."""


class UsageError(PacelineError, ValueError):
    """The user asked for something impossible. The message says what, where, and what is allowed."""

    exit_code = 2


class MissingPackage(UsageError):
    """An optional dependency is not installed. `install` is the command that installs it."""

    def __init__(self, what: str, install: str, cause: ImportError) -> None:
        super().__init__(f"{what} needs a package that is not installed ({cause}); {install}")


class MissingExtra(MissingPackage):
    """An optional dependency that an extra of Paceline installs."""

    def __init__(self, what: str, extra: str, cause: ImportError) -> None:
        super().__init__(what, f"pip install 'paceline[{extra}]'", cause)


EXTRAS = {
    "atari": ("ale_py", "cv2"),
    "doom": ("vizdoom", "cv2"),
    "mujoco": ("mujoco", "imageio"),
    "dmc": ("dm_control",),
    "envpool": ("envpool",),
    "pettingzoo": ("pettingzoo",),
    "video": ("cv2", "pygame"),
    "onnx": ("onnx",),
    "ray": ("ray",),
    "wandb": ("wandb",),
    "sweep": ("optuna",),
    "bench": ("stable_baselines3", "faster_fifo", "scipy"),
}
"""The modules that each extra of Paceline installs."""
EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def is_installed(module: str) -> bool:
    """Whether a top-level module can be found. It is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def missing_of(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if not is_installed(module)]


def extra_of(module: str) -> str:
    """The extra that installs a module; `bench` for one that no extra names."""
    return EXTRA_OF.get(module.partition(".")[0], "bench")


def extra_hint(error: Exception) -> str:
    """ "; pip install ..." if an extra of Paceline installs the package that is missing, else an empty string."""
    name = getattr(error, "name", None)
    words = {name.split(".")[0]} if name else set(re.findall(r"\w+", str(error).lower()))
    extra = next((extra for package, extra in EXTRA_OF.items() if package in words), None)
    return f"; pip install 'paceline[{extra}]'" if extra else ""


def closest(name: str, allowed: Iterable[str]) -> str:
    """ ", did you mean ...?" if an allowed name is similar to `name`, else an empty string."""
    match = difflib.get_close_matches(name, list(allowed), n=3, cutoff=0.6)
    return f", did you mean {' or '.join(map(repr, match))}?" if match else ""


@dataclass(frozen=True, kw_only=True)
class SimulatorFailure:
    """The failure of one simulator, with all facts that the message to the user needs."""

    cause: str
    """One line: the exception, the signal, or what was wrong with a returned value."""
    phase: str
    """"make", "reset", "step", "save", "restore", "wait" (between two commands), "worker" (before the worker reached an
    environment) or "usage" (the environment cannot run this way)."""
    envs: tuple[int, ...] = ()
    """The environments concerned: several only if a whole worker was lost between steps."""
    slots: tuple[int, ...] = ()
    """The slots of those environments."""
    worker: int | None = None
    """The worker process's number in its pool; None if the pool runs in this process."""
    seed: int | None = None
    """The seed of the environment's last seeded reset."""
    episode: int | None = None
    """How many episodes the environment had begun before this one."""
    step: int | None = None
    """Steps in the current episode before the failure."""
    traceback: str = ""
    """The traceback as text, if known."""

    def __str__(self) -> str:
        slots = ", ".join(map(str, self.slots)) or None
        facts = {"slot" if len(self.slots) == 1 else "slots": slots}
        facts |= {name: getattr(self, name) for name in ("worker", "seed", "episode", "step")}
        known = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        where = {"wait": "between two commands", "worker": "in its worker"}.get(self.phase, f"in {self.phase}")
        text = f"the simulator failed {where} ({known}): {self.cause}"
        return f"{text}\n{self.traceback.rstrip()}" if self.traceback else text


class SimulatorError(PacelineError):
    """A simulator failed, and the pool may not replace it, or not again."""

    def __init__(self, failure: SimulatorFailure, note: str = "") -> None:
        super().__init__(f"{failure}\n{note}".rstrip())
        self.failure = failure
