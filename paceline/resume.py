"""What a resumed run may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from paceline.checkpoint import Checkpoint
from paceline.config import Config, leaves
from paceline.errors import PacelineError, UsageError
from paceline.nets.config import named_classes
from paceline.own_code import is_moved
from paceline.systems import SYSTEMS

_FIXED = {
    "ppo": ("policy.", "ppo.auxiliary.kind", "ppo.auxiliary.hidden", "population.policies", "init", "freeze"),
    "d4pg": ("control.", "policy.encoder", "policy.reduced", "policy.normalize_obs", "replay.stack", "init", "freeze"),
}
"""For each family of systems: beginnings of the names of settings that define its networks, how they began, and
the form of saved transitions."""


class RunFinished(PacelineError):
    """Nothing is left to train. This is not a failure: a script may resume a run until it is finished."""

    exit_code = 0


def require_same_network(saved: Config, wanted: Config, folder: Path) -> None:
    """Refuse a configuration that the weights of the saved run do not fit."""
    family = SYSTEMS[saved.system].family
    before, now = leaves(saved), leaves(wanted)
    if SYSTEMS[wanted.system].family != family:
        changed = ["system"]
    else:
        changed = [name for name in before if name.startswith(_FIXED[family]) and before[name] != now[name]]
        # A class of the user's own may have moved. Whether its weights fit is checked later.
        changed = [name for name in changed if not is_moved(before[name], now[name])]
        if (saved.ppo.entropy_target is None) != (wanted.ppo.entropy_target is None):
            changed.append("ppo.entropy_target")
    if changed:
        changes = ", ".join(f"{name} {now[name]} instead of {before[name]}" for name in changed)
        raise UsageError(
            f"cannot resume {folder} with {changes}: the network, its initial weights, its frozen parts, the frames of "
            "a replay and the family of systems (PPO or D4PG) are fixed; start a new run to change them"
        )


def require_same_spaces(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], saved: Config, wanted: Config
) -> None:
    """Refuse weights that do not fit the policy: the environment has other observations or actions, or a class of the
    user's own has changed."""
    wrong = [name for name in expected if name not in weights or weights[name].shape != expected[name].shape]
    wrong += [name for name in weights if name not in expected]
    names = f"{', '.join(wrong[:3])}{' and others' if len(wrong) > 3 else ''}"
    own = [f"{option} {name}" for option, name in named_classes(wanted.policy, wanted.control).items()]
    if wrong and own and wanted.env == saved.env:
        raise UsageError(f"cannot resume with {', '.join(own)}, which has changed: the checkpoint differs in {names}")
    if wrong:
        env = wanted.env if wanted.env == saved.env else f"{wanted.env} (the run was trained with {saved.env})"
        raise UsageError(
            f"cannot resume with env {env}: its observations or actions differ from those of the checkpoint, in {names}"
        )


def require_unfinished(checkpoint: Checkpoint, config: Config, saved: Config) -> None:
    """Raise `RunFinished` if the checkpoint is the end of the run, and a `UsageError` if more steps than those of the
    `saved` run are wanted, but its time is over."""
    step, seconds = checkpoint.state["step"], checkpoint.state["seconds"]
    if step >= config.steps:
        raise RunFinished(
            f"the run is finished: {step:,} of {config.steps:,} steps are trained; a larger --steps extends it"
        )
    if config.seconds is not None and seconds >= config.seconds:
        if config.steps > saved.steps and config.seconds == saved.seconds:
            raise UsageError(
                f"--steps {config.steps} cannot be reached: the run has trained for {seconds:.0f} of "
                f"{config.seconds:g} seconds; allowed: also a larger --seconds, or --seconds None"
            )
        raise RunFinished(
            f"the run is finished: it has trained for {seconds:.0f} of {config.seconds:g} seconds; a larger --seconds "
            "extends it"
        )
