"""The environment ids of navigation: `pointnav:small`, or `pointnav?tier=small&resolution=64`, for every task.

PyTorch is imported only when an environment is made, or when an id names floor plans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.errors import UsageError, closest
from paceline.sims.navigation.config import PATHS, TIERS, NavigationConfig
from paceline.sims.navigation.tasks.table import TASKS


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

        return NavigationEnv(self.config.task, render_mode="rgb_array", **self.config.options())


def names() -> Iterable[str]:
    return TIERS


def resolve(env_id: EnvId) -> Factory:
    config, label = _config(env_id), str(env_id)
    return Factory(
        make=MakeBatch(config), backend="tensor", label=label, single=Factory(make=MakeOne(config), label=label)
    )


def scenes_label(env_id: EnvId) -> str | None:
    """The label of the bank of floor plans or of a file. None for generated scenes, which the id describes."""
    if not any(name in env_id.options for name in PATHS):
        return None
    from paceline.sims.navigation.simulator import load_bank

    return load_bank(_config(env_id)).label


def _config(env_id: EnvId) -> NavigationConfig:
    options = dict(env_id.options)
    if env_id.name:
        if env_id.name not in TIERS:
            raise UsageError(
                f"tier {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, TIERS)}; "
                f"allowed: {', '.join(TIERS)}"
            )
        if options.setdefault("tier", env_id.name) != env_id.name:
            raise UsageError(f"{str(env_id)!r} names two tiers; allowed: one of {', '.join(TIERS)}")
    config = TASKS[env_id.family].config.of_options(options, str(env_id))
    if config.plans:
        from paceline.sims.navigation.plans.bank import plan_bank

        config = replace(config, tier=plan_bank(config.plans).tier)  # wrong plans raise here
    return config
