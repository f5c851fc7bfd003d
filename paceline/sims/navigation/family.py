"""The environment ids of navigation: `pointnav:small`, or `pointnav?tier=small&resolution=64`, for every task.

PyTorch is imported only when an environment is made, or when an id names floor plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.errors import UsageError, closest
from paceline.sims.navigation.config import TIERS, NavigationConfig
from paceline.sims.navigation.tasks.table import TASKS

PLANS = "plans"
"""The option for floor plans of the user's own: a file, or a folder of files (docs/floor_plans.md)."""


@dataclass(frozen=True)
class MakeBatch:
    """Makes N environments on a device, for the `tensor` pool."""

    config: NavigationConfig

    def __call__(self, num_envs: int, device: str = "cpu") -> Any:
        from paceline.sims.navigation.simulator import Navigation

        return Navigation(num_envs, device, self.config)


@dataclass(frozen=True)
class MakeOne:
    """Makes one environment, for the other pools."""

    config: NavigationConfig

    def __call__(self, env_index: int) -> Any:
        from paceline.sims.navigation.env import NavigationEnv

        return NavigationEnv(self.config.task, render_mode="rgb_array", **asdict(self.config))


def names() -> Iterable[str]:
    return TIERS


def resolve(env_id: EnvId) -> Factory:
    options = dict(env_id.options)
    if env_id.name:
        if env_id.name not in TIERS:
            raise UsageError(
                f"tier {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, TIERS)}; "
                f"allowed: {', '.join(TIERS)}"
            )
        if options.setdefault("tier", env_id.name) != env_id.name:
            raise UsageError(f"{str(env_id)!r} names two tiers; give one")
    if PLANS in options:
        options = _with_bank_of_plans(options, env_id)
    config = TASKS[env_id.family].config.of_options(options, str(env_id))
    label = str(env_id)
    return Factory(
        make=MakeBatch(config), backend="tensor", label=label, single=Factory(make=MakeOne(config), label=label)
    )


def _with_bank_of_plans(options: dict[str, Any], env_id: EnvId) -> dict[str, Any]:
    """The options with a bank of the floor plans instead of their names. Wrong plans raise here."""
    others = {name: value for name, value in options.items() if name != PLANS}
    if "bank_file" in others:
        raise UsageError(f"{str(env_id)!r} names plans and a bank_file; give one")
    from paceline.sims.navigation.plans.bank import bank_options

    return {**others, **bank_options(str(options[PLANS]))}
