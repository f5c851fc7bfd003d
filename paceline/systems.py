"""The training systems and the settings that each reads. Free of PyTorch: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

System = Literal["ddppo", "ver", "appo", "d4pg"]


@dataclass(frozen=True, kw_only=True)
class SystemSpec:
    """One training system."""

    about: str
    """One line for the user."""
    family: Literal["ppo", "d4pg"]
    """Systems of one family train the same networks. A run can be resumed under another system of its family."""
    reads: tuple[str, ...]
    """The settings that this system reads and some other system does not: names of fields or sections of `Config`."""
    targets: Literal["gae", "vtrace"] = "gae"
    """The advantage estimator of `ppo.targets auto`."""
    lags: bool = False
    """Whether rows may be older than the weights that learn from them. Results then depend on timing."""


_PPO = (
    *("policy.kind", "policy.embedding", "policy.hidden", "policy.activation", "policy.critic"),
    *("policy.core", "policy.head", "policy.planner"),
    *("rollout_steps", "ppo", "optimizer", "preemption", "compute.layer_by_layer"),
    *("population", "league"),
)
"""Of the section `policy`, all systems read the encoder of images and the normalisation."""

SYSTEMS: dict[str, SystemSpec] = {
    "ddppo": SystemSpec(
        about="all environments step together; slow ranks are preempted (DD-PPO)",
        family="ppo",
        reads=_PPO,
    ),
    "ver": SystemSpec(
        about="collects from the environments that are ready; no environment waits for the slowest (VER)",
        family="ppo",
        reads=(*_PPO, "batching", "ver"),
    ),
    "appo": SystemSpec(
        about="collects and learns at the same time, with V-trace (Sample Factory)",
        family="ppo",
        reads=(*_PPO, "batching", "appo"),
        targets="vtrace",
        lags=True,
    ),
    "d4pg": SystemSpec(
        about="learns continuous actions from a replay (D4PG)",
        family="d4pg",
        reads=("batching", "control", "d4pg", "replay", "limiter", "remote"),
    ),
}


def readers(setting: str) -> list[str]:
    """The systems that read a setting, given by its dotted name. Every system reads a setting that no system lists."""
    listed = [
        name
        for name, system in SYSTEMS.items()
        if any(setting == read or setting.startswith(f"{read}.") for read in system.reads)
    ]
    return listed or list(SYSTEMS)


def unread_by(system: str) -> list[str]:
    """The fields and sections of `Config` that only other systems read."""
    listed = dict.fromkeys(setting for other in SYSTEMS.values() for setting in other.reads)
    return [setting for setting in listed if setting not in SYSTEMS[system].reads]
