"""From a configuration to the agent of its system."""

from __future__ import annotations

from pathlib import Path

from paceline.agent.off_policy import OffPolicy
from paceline.agent.on_policy import OnPolicy
from paceline.config import Config
from paceline.distributed.runtime import Group
from paceline.pool import Pool
from paceline.stop import Stop
from paceline.telemetry.clock import Clock
from paceline.telemetry.phases import Phases


def make_agent(
    config: Config, group: Group, pool: Pool, clock: Clock, folder: Path, stop: Stop, phases: Phases
) -> OnPolicy | OffPolicy:
    """`folder` is the run's."""
    if config.system == "d4pg":
        return OffPolicy(config, group, pool, folder, stop)
    return OnPolicy(config, group, pool, clock, stop, phases)
