"""The training systems: four loops over the same parts."""

from paceline.schedule.appo import appo
from paceline.schedule.ddppo import ddppo
from paceline.schedule.ver import ver

SCHEDULES = {"ddppo": ddppo, "ver": ver, "appo": appo}
