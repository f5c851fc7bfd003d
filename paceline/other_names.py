"""Names that settings have in other libraries, for hints in errors."""

from __future__ import annotations

from paceline.config import Config, leaves
from paceline.systems import readers

LEARNING_RATE = ("optimizer.learning_rate", "d4pg.actor_rate", "d4pg.critic_rate")
DISCOUNT = ("ppo.discount", "d4pg.discount")
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "lr": LEARNING_RATE,
    "learning_rate": LEARNING_RATE,
    "actor_lr": ("d4pg.actor_rate",),
    "critic_lr": ("d4pg.critic_rate",),
    "gamma": DISCOUNT,
    "discount_factor": DISCOUNT,
    "gae_lambda": ("ppo.trace_decay",),
    "lam": ("ppo.trace_decay",),
    "clip_range": ("ppo.clip",),
    "clip_coef": ("ppo.clip",),
    "clip_param": ("ppo.clip",),
    "ent_coef": ("ppo.entropy_coef",),
    "vf_coef": ("ppo.value_coef",),
    "n_epochs": ("ppo.epochs",),
    "num_epochs": ("ppo.epochs",),
    "update_epochs": ("ppo.epochs",),
    "num_minibatches": ("ppo.minibatches",),
    "n_steps": ("rollout_steps",),
    "num_steps": ("rollout_steps",),
    "rollout": ("rollout_steps",),
    "batch_size": ("appo.batch", "d4pg.batch"),
    "buffer_size": ("replay.capacity",),
    "learning_starts": ("limiter.minimum",),
    "tau": ("d4pg.target_share",),
    "n_envs": ("pool.num_envs",),
    "num_workers": ("pool.workers",),
    "total_timesteps": ("steps",),
    "total_steps": ("steps",),
    "timesteps": ("steps",),
    "env_id": ("env",),
    "env_name": ("env",),
    "algo": ("system",),
    "algorithm": ("system",),
}
"""By another library's name: our settings with the same meaning."""


def meant_by(name: str, system: str) -> list[str]:
    """The settings, by dotted name, that the user may mean by `name`, of those that the system reads.

    A setting of a section may have been named without the section.
    """
    settings = OTHER_NAMES.get(name) or [setting for setting in leaves(Config()) if setting.endswith(f".{name}")]
    return [setting for setting in settings if system in readers(setting)]
