"""The one table of training loops, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable

from paceline.collect.replay_sampler import ReplaySampler
from paceline.collect.sampler import Sampler
from paceline.config import Config
from paceline.errors import UsageError
from paceline.learner.d4pg import D4PGLearner
from paceline.learner.ppo import PPOLearner
from paceline.schedule.appo import APPO
from paceline.schedule.d4pg import D4PG
from paceline.schedule.ddppo import DDPPO
from paceline.schedule.protocol import TrainingRun
from paceline.schedule.ver import VER

PPO_SYSTEMS: dict[str, type[DDPPO | VER | APPO]] = {"ddppo": DDPPO, "ver": VER, "appo": APPO}


def make_schedule(
    run: TrainingRun, config: Config, learner: PPOLearner | D4PGLearner, sampler: Sampler | ReplaySampler
) -> Callable[[], None]:
    """The training loop of the configured system. Call it to train until the run ends; it can be called again.

    Simulators on a device step together, so nothing is uneven. All PPO systems then collect in lock-step.
    """
    if isinstance(sampler, ReplaySampler):
        assert isinstance(learner, D4PGLearner)
        return D4PG(run, config, learner, sampler)
    assert isinstance(learner, PPOLearner)
    system = PPO_SYSTEMS[config.system]
    if not run.pool.spec.on_device:
        return system(run, config, learner, sampler)
    if config.ver.overlap:
        raise UsageError("ver.overlap is for simulators in other processes; batched ones step in this one")
    return DDPPO(run, config, learner, sampler, system.preempts_by)
