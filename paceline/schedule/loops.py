"""The training loop of each system."""

from collections.abc import Callable
from typing import Any

from paceline.schedule.appo import appo
from paceline.schedule.d4pg import d4pg
from paceline.schedule.ddppo import ddppo
from paceline.schedule.ver import ver

SCHEDULES: dict[str, Callable[[Any], None]] = {"ddppo": ddppo, "ver": ver, "appo": appo, "d4pg": d4pg}
