"""From a configuration to the agent of its system."""

from __future__ import annotations

from paceline.agent.off_policy import OffPolicy
from paceline.agent.on_policy import OnPolicy
from paceline.config import Config
from paceline.distributed.runtime import Group
from paceline.pool import Pool
from paceline.telemetry.clock import Clock


def make_agent(config: Config, group: Group, pool: Pool, clock: Clock) -> OnPolicy | OffPolicy:
    return (OffPolicy if config.system == "d4pg" else OnPolicy)(config, group, pool, clock)
