"""The parts of a population, put together from a run's configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.accel.config import ComputeConfig
from paceline.collect.actor import Actor
from paceline.collect.kind_slots import all_kinds, kind_of_agents
from paceline.collect.policy_assignment import Draw, PolicyAssignment
from paceline.config import Config
from paceline.distributed.ownership import Ownership
from paceline.errors import UsageError
from paceline.evaluation.saved import PAST_SELVES
from paceline.learner.hyperparameters import ppo_hyperparameters
from paceline.learner.policy_copy import PolicyCopy
from paceline.learner.ppo import PPOLearner
from paceline.nets.make import make_policy
from paceline.nets.ppo_policy import PPOPolicy
from paceline.pool.protocol import Pool, PoolSpec
from paceline.population.league import League, Snapshots
from paceline.population.mapping import make_draw
from paceline.population.mutation import REWARD, tuned_paths
from paceline.population.opponents import make_opponents, require_opponents
from paceline.population.population import Population
from paceline.population.reward_weights import PolicyRewardWeights
from paceline.systems import SYSTEMS
from paceline.telemetry.clock import Clock


def require_possible(config: Config) -> None:
    """Refuse settings of a population that cannot work, before simulators start."""
    if SYSTEMS[config.system].family != "ppo":
        return
    if config.pbt.every is not None:
        own = ppo_hyperparameters(config.resolved_ppo, config.optimizer).as_dict()
        of_rewards = [path for path in config.pbt.tuned if path.startswith(REWARD)]
        tuned_paths(config.pbt, [*own, *of_rewards])  # the environment says later which rewards have weights
        if max(config.pbt.every, config.pbt.start) >= config.steps:
            log.warning("pbt.every %s is more than the run has steps: there is no round", f"{config.pbt.every:,}")
    if config.league.past_share > 0 and config.league.every >= config.steps:
        log.warning("league.every %s is more than the run has steps: no past self plays", f"{config.league.every:,}")
    require_opponents(config.league.opponents, config.env)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PopulationParts:
    """What a sampler needs of a population, and the population itself."""

    assignment: PolicyAssignment
    population: Population
    opponents: list[Any] = field(default_factory=list)
    """Actors of the policies that do not learn."""
    refreshes: list[Callable[[], object]] = field(default_factory=list)
    """To be called before each decision."""
    assigned: Callable[[np.ndarray], None] = lambda slots: None
    """To be called with slots in which other policies act from now on."""

    @classmethod
    def make(
        cls,
        config: Config,
        ownership: Ownership,
        clock: Clock,
        pool: Pool,
        folder: Path,
        learners: Sequence[PPOLearner | PolicyCopy],
        *,
        compute: ComputeConfig,
        numbers: torch.Generator | None,
    ) -> PopulationParts | None:
        """None for a run with one policy and no opponents. `compute` and `numbers` are those of actors."""
        plays = config.league.is_used
        if len(learners) == 1 and not plays:
            return None
        spec, group = pool.spec, ownership.all_ranks
        _require_objective(config, spec)
        opponents: list[Any] = []
        refreshes: list[Callable[[], object]] = []
        draw, league, snapshots = make_draw(config.population, spec, ownership.own), None, None
        if plays:
            if spec.agents_per_env == 1:
                raise UsageError(
                    f"league needs opponents, and {config.env} has one agent; allowed: environments of several agents"
                )
            _require_seats(config, spec)
            snapshots = Snapshots(folder / PAST_SELVES, len(learners), config.league.keep, writes=group.is_first)
            league, opponents = _league(config, ownership, clock, pool, learners, snapshots, draw, compute, numbers)
            draw = league
        pinned = group.device.type == "cuda"
        generator = np.random.default_rng((config.seed, group.rank))
        assignment = PolicyAssignment(spec, draw, generator, pinned=pinned, copies=ownership.copies)
        if league is not None:
            league.assignment = assignment
            league.name_opponents()
            assignment.others = league.others
            refreshes.append(league.refresh)
        rewards = None
        if spec.reward_weights:
            rewards = PolicyRewardWeights(pool, assignment, len(learners))
            refreshes.append(rewards.refresh)
        population = Population(
            config,
            learners,
            assignment,
            ownership,
            folder,
            measures=spec.measures,
            num_kinds=len(spec.kinds),
            rewards=rewards,
            snapshots=snapshots,
            league=league,
        )
        assigned = rewards.assign if rewards is not None else lambda slots: None
        return cls(assignment, population, opponents, refreshes, assigned)


def _require_objective(config: Config, spec: PoolSpec) -> None:
    """Refuse an objective that no episode has. Only batched simulators announce all of their measures."""
    known = ("return", "length", *spec.measures)
    if spec.on_device and config.pbt.objective not in known:
        raise UsageError(
            f"pbt.objective {config.pbt.objective!r} does not exist in {config.env}; allowed: {', '.join(known)}"
        )


def _league(
    config: Config,
    ownership: Ownership,
    clock: Clock,
    pool: Pool,
    learners: Sequence[PPOLearner | PolicyCopy],
    snapshots: Snapshots,
    draw: Draw,
    compute: ComputeConfig,
    numbers: torch.Generator | None,
) -> tuple[League, list[Any]]:
    """The league, and the actors of its seats and fixed opponents."""
    settings, spec, kinds, group = config.league, pool.spec, all_kinds(pool.spec), ownership.all_ranks
    seats: list[PPOPolicy] = []
    actors: list[Any] = []
    if settings.past_share > 0:
        for number in range(len(learners), len(learners) + settings.seats):
            own = kinds[number % len(kinds)].spec
            seat = make_policy(own, config.policy).to(group.device).eval().requires_grad_(False)
            seat.precision = learners[number % len(kinds)].policy.precision
            seats.append(seat)
            actors.append(Actor(seat, own, group.device, compute, clock, numbers))
    actors += make_opponents(settings.opponents, spec, group.device, clock)
    league = League(
        settings,
        snapshots,
        draw,
        seats=seats,
        first_seat=len(learners),
        opponents=settings.opponents,
        generator=np.random.default_rng((config.seed, group.rank, 1)),
        kinds=kind_of_agents(spec),
        copies=ownership.copies,
    )
    return league, actors


def _require_seats(config: Config, spec: PoolSpec) -> None:
    """Refuse opponents that cannot play all kinds of agents."""
    kinds, league = len(spec.kinds), config.league
    if kinds == 1:
        return
    if league.opponents:
        raise UsageError(
            f"league.opponents are for agents with equal spaces, and those of {config.env} differ; allowed: past selves"
        )
    if league.seats < kinds:
        raise UsageError(
            f"league.seats is {league.seats}, but the agents of {config.env} have {kinds} different spaces; allowed: "
            f"--league.seats {kinds} or more"
        )
