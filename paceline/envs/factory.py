"""What a family of environments makes of an id, and what all families need to read one. Imports no family."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.envs.ids import EnvId
from paceline.errors import MissingExtra, UsageError, closest


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Builds one environment. Picklable, and imports nothing heavy until it is called."""

    make: Callable[[int], Any]
    """`make(env_index)` returns a Gymnasium environment, or a PettingZoo environment with either of its APIs. If the
    backend is "tensor", `make(num_envs, device)` returns that many environments as one simulator."""
    frameskip: int = 1
    """Simulator frames per step."""
    backend: str | None = None
    """The only pool backend that can run it, if there is only one: "envpool" or "tensor"."""
    label: str = ""
    """The id it came from."""
    single: Factory | None = None
    """A factory for one such environment at a time, where `make` makes many at once."""

    @property
    def steps_singly(self) -> bool:
        """Whether `serial` and `process` pools can run it. Unlike EnvPool they save and replace environments."""
        return self.backend is None or (self.backend == "envpool" and self.single is not None)


@contextlib.contextmanager
def needs(family: str, extra: str | None = None) -> Iterator[None]:
    """Within it, an import of a package that is not installed raises a `MissingExtra` for the family. By default the
    extra has the family's name.

    Families import the package that they adapt only inside functions. So a factory can be unpickled anywhere without
    importing a simulator.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("paceline"):
            raise
        raise MissingExtra(f"the environment family {family!r}", extra or family, error) from error


def check_options(env_id: EnvId, allowed: Iterable[str]) -> None:
    """Raise for options that are not `allowed`."""
    allowed = list(allowed)
    for option in env_id.options:
        if option not in allowed:
            raise UsageError(
                f"option {option!r} of {str(env_id)!r} does not exist{closest(option, allowed)}; "
                f"allowed: {', '.join(allowed) or 'none'}"
            )
