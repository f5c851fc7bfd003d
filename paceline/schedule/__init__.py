"""The training systems: four loops over the same parts."""

from paceline.schedule.ddppo import ddppo

SCHEDULES = {"ddppo": ddppo}
