"""Refuses to run code from files of other users without this user's consent.

Two things in a run folder can run code: names in `config.json` (`may_run`: an environment, a class of a network), and
saved simulators, which are pickles (`may_unpickle`). Files with this user's signature are trusted (see `signatures`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.distributed.rank_info import RankInfo
from paceline.envs.registry import code_named_by
from paceline.errors import UsageError
from paceline.signatures import why_foreign

log = logging.getLogger(__name__)


def may_run(
    env: str | None,
    file: Path,
    *,
    trust: bool = False,
    address: str | None = None,
    classes: Mapping[str, str] | None = None,
) -> bool:
    """Check the environment `env`, the classes of networks (`package.module:Class` by option), and the Ray cluster at
    `address`, that `file` names.

    Raises a `UsageError` if they would run another user's code without consent. Returns whether the user gave consent:
    by `trust` (--trust), or by an answer on the terminal.
    """
    if trust:
        return True
    dangers = []
    if env is not None and (danger := code_named_by(env)) is not None:
        dangers.append(f"environment {env!r} would {danger}")
    own = ", or --env to name the environment yourself" if dangers and not classes and address is None else ""
    for option, name in (classes or {}).items():
        module, _, attribute = name.partition(":")
        dangers.append(f"{option} {name!r} would import the module {module!r} and call {attribute!r}")
    if address is not None:
        dangers.append(f"remote.address would run what the Ray cluster at {address!r} sends")
    why = why_foreign(file) if dangers else None
    if why is None:
        return False
    problem = f"{file} is not recognised as yours ({why}), and its {', and its '.join(dangers)}"
    if _ask(f"{problem}. Run it?"):
        return True
    raise UsageError(f"{problem}; allowed: --trust if you know what it runs{own}")


def may_unpickle(manifest: Path, *, trust: bool = False) -> bool:
    """Whether to load the saved simulators of the checkpoint with this manifest. Loading them can run any code."""
    why = None if trust else why_foreign(manifest)
    if why is None:
        return True
    problem = (
        f"the simulators saved in {manifest.parent} are not recognised as yours ({manifest.name}: {why}), and can run "
        "any code when they are loaded"
    )
    if _ask(f"{problem}. Load them?"):
        return True
    log.warning("%s. They are not loaded, and all episodes start anew; --trust, or trust=True, loads them", problem)
    return False


def _ask(question: str) -> bool:
    """Ask on the terminal. False if there is no terminal, or if there are several ranks."""
    if RankInfo.find().size > 1 or not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"paceline: {question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
