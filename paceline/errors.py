"""The errors that users see, and the exit code that each ends a command with."""

from __future__ import annotations

from dataclasses import dataclass


class PacelineError(Exception):
    """A failure with a message written for the user; no traceback of ours is needed to understand it."""

    exit_code = 1


class UsageError(PacelineError, ValueError):
    """Something the user asked for is impossible: the message says what, where, and what is allowed."""

    exit_code = 2


class MissingExtra(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str, cause: ImportError) -> None:
        super().__init__(f"{what} needs a package that is not installed ({cause}); pip install 'paceline[{extra}]'")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong in one simulator, complete enough to be shown without looking anything else up."""

    cause: str
    """One line: the exception, the signal, or what was wrong with a returned value."""
    phase: str
    """"make", "reset", "step", "save", "restore", "wait" (between two commands), "worker" (before any environment was reached) or
    "usage" (the environment cannot be run this way)."""
    envs: tuple[int, ...] = ()
    """The environments concerned; several only where a whole worker was lost between steps."""
    slots: tuple[int, ...] = ()
    """The slots of those environments."""
    worker: int | None = None
    """The worker process's number in its pool; None for a pool that runs in this process."""
    seed: int | None = None
    """The seed of the environment's last seeded reset."""
    episode: int | None = None
    """How many episodes the environment had begun before this one."""
    step: int | None = None
    """Steps taken in the current episode before the failure."""
    traceback: str = ""
    """Where it happened, as text, where that is known."""

    def __str__(self) -> str:
        facts = []
        for label, value in [
            ("slot" if len(self.slots) == 1 else "slots", ", ".join(map(str, self.slots)) or None),
            ("worker", self.worker),
            ("seed", self.seed),
            ("episode", self.episode),
            ("step", self.step),
        ]:
            if value is not None:
                facts.append(f"{label} {value}")
        where = {"wait": "between two commands", "worker": "in its worker"}.get(self.phase, f"in {self.phase}")
        text = f"the simulator failed {where} ({', '.join(facts)}): {self.cause}"
        return f"{text}\n{self.traceback.rstrip()}" if self.traceback else text


class SimulatorError(PacelineError):
    """A simulator failed and the pool may not, or may no longer, replace it."""

    def __init__(self, failure: Failure, note: str = "") -> None:
        super().__init__(f"{failure}\n{note}".rstrip())
        self.failure = failure
