"""What a resumed run may change, and what it may not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.checkpoint import Checkpoint
from paceline.config import Config
from paceline.errors import PacelineError, UsageError

_FAMILIES = {"ddppo": "PPO", "ver": "PPO", "appo": "PPO", "d4pg": "D4PG"}
_FIXED = {"PPO": ("policy.", "ppo.auxiliary.kind", "ppo.auxiliary.hidden"), "D4PG": ("control.",)}
"""Beginnings of the fields that a network follows from, by family of systems."""


class RunFinished(PacelineError):
    """There is nothing left to train. This is no failure: a script may resume a run until it is finished."""

    exit_code = 0


def require_same_network(saved: Config, wanted: Config, folder: Path) -> None:
    """Refuse a configuration by which the run's weights cannot go on."""
    family = _FAMILIES[saved.system]
    changed = []
    if _FAMILIES[wanted.system] != family:
        changed.append(_change("system", saved.system, wanted.system))
    before, now = dict(_fields(saved)), dict(_fields(wanted))
    changed += [_change(n, before[n], now[n]) for n in before if n.startswith(_FIXED[family]) and before[n] != now[n]]
    if family == "PPO" and (saved.ppo.entropy_target is None) != (wanted.ppo.entropy_target is None):
        changed.append(_change("ppo.entropy_target", saved.ppo.entropy_target, wanted.ppo.entropy_target))
    if changed:
        raise UsageError(
            f"cannot resume {folder} with {', '.join(changed)}: the network and the family of systems (PPO or D4PG) are fixed; "
            "start a new run to change them"
        )


def require_same_spaces(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], saved: Config, wanted: Config
) -> None:
    """Refuse weights that do not fit the policy of this configuration: its environment has other observations or actions."""
    wrong = [name for name in expected if name not in weights or weights[name].shape != expected[name].shape]
    wrong += [name for name in weights if name not in expected]
    if wrong:
        env = wanted.env if wanted.env == saved.env else f"{wanted.env} (the run was trained with {saved.env})"
        raise UsageError(
            f"the run cannot go on with env {env}: its observations or actions are not those of the checkpoint, which differs "
            f"in {', '.join(wrong[:3])}{' and others' if len(wrong) > 3 else ''}"
        )


def require_unfinished(checkpoint: Checkpoint, config: Config) -> None:
    """Raise `RunFinished` if the checkpoint is of the end of the run."""
    step, seconds = checkpoint.state["step"], checkpoint.state["seconds"]
    if step >= config.steps:
        raise RunFinished(
            f"the run is finished: {step:,} of {config.steps:,} steps are trained; a larger --steps extends it"
        )
    if config.seconds is not None and seconds >= config.seconds:
        raise RunFinished(
            f"the run is finished: it has trained for {seconds:.0f} of {config.seconds:g} seconds; a larger --seconds extends it"
        )


def _fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field by its dotted name."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


def _change(name: str, before: Any, now: Any) -> str:
    return f"{name} {now} instead of {before}"
