"""The one table of training loops, and the choice between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.collect.replay_sampler import ReplaySampler
from paceline.collect.sampler import Sampler
from paceline.config import Config
from paceline.errors import UsageError
from paceline.learner.d4pg import D4PGLearner
from paceline.learner.policy_copy import PolicyCopy
from paceline.learner.ppo import PPOLearner
from paceline.schedule.appo import APPO
from paceline.schedule.d4pg import D4PG
from paceline.schedule.ddppo import DDPPO
from paceline.schedule.protocol import TrainingRun
from paceline.schedule.ver import VER

PPO_SYSTEMS: dict[str, type[DDPPO | VER | APPO]] = {"ddppo": DDPPO, "ver": VER, "appo": APPO}


def ppo_schedule(system: str, *, on_device: bool, turn_based: bool = False) -> type[DDPPO | VER | APPO]:
    """The training loop of a PPO system. Simulators on a device step together, so all systems collect in lock-step.

    In turn-based games slots give different numbers of rows, so DD-PPO collects rollouts like those of VER.
    """
    if on_device:
        return DDPPO
    return VER if turn_based and system == "ddppo" else PPO_SYSTEMS[system]


def make_schedule(
    run: TrainingRun,
    config: Config,
    learners: Sequence[PPOLearner | PolicyCopy] | Sequence[D4PGLearner],
    sampler: Sampler | ReplaySampler,
) -> Callable[[], None]:
    """The training loop of the configured system. Call it to train until the run ends; it can be called again."""
    if isinstance(sampler, ReplaySampler):
        (learner,) = learners
        assert isinstance(learner, D4PGLearner)
        return D4PG(run, config, learner, sampler)
    of_ppo = [learner for learner in learners if isinstance(learner, PPOLearner)]
    if run.pool.spec.on_device and config.ver.overlap:
        raise UsageError("ver.overlap is for simulators in other processes; batched ones step in this one")
    spec = run.pool.spec
    schedule = ppo_schedule(config.system, on_device=spec.on_device, turn_based=spec.turn_based)
    if schedule is VER and config.system == "ddppo":
        return VER(run, config, of_ppo, sampler, lock_step=True)
    if schedule is DDPPO:
        return DDPPO(run, config, of_ppo, sampler, PPO_SYSTEMS[config.system].preempts_by)
    return schedule(run, config, of_ppo, sampler)
