"""The parts of a run, put together from its configuration: learners, and the collection that feeds them."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from paceline.accel.config import ComputeConfig
from paceline.accel.kernels import (
    choose_cpu_kernels,
    choose_precision,
    keep_in_precision,
    one_thread,
    require_compiler,
)
from paceline.collect.actor import Actor
from paceline.collect.explorer import Explorer
from paceline.collect.kind_slots import all_kinds
from paceline.collect.remote import ActorSettings, RemoteActors
from paceline.collect.replay_sampler import ReplaySampler
from paceline.collect.sampler import Sampler, device_generator
from paceline.config import Config
from paceline.distributed.ownership import Ownership
from paceline.distributed.reduce import synchronize
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.archive import Archive
from paceline.experience.frame_replay import FrameReplay, frame_replay_bytes, num_frames
from paceline.experience.frames import FrameLayout
from paceline.experience.limiter import Limiter
from paceline.experience.replay import Replay
from paceline.free_memory import require_memory
from paceline.learner.d4pg import D4PGLearner
from paceline.learner.policy_copy import PolicyCopy
from paceline.learner.ppo import PPOLearner
from paceline.learner.publication import Reader
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.deterministic import ActionCritic, DeterministicPolicy, control_parts, make_networks, only_box
from paceline.nets.images import is_channels_last, is_image
from paceline.nets.make import make_policy
from paceline.nets.parts import parts_of
from paceline.nets.ppo_policy import PPOPolicy
from paceline.pool import Pool
from paceline.pool.config import available_core_ids
from paceline.pool.protocol import PoolSpec
from paceline.population.parts import PopulationParts
from paceline.population.population import Population
from paceline.schedule.table import ppo_schedule
from paceline.sizes import require_rows, row_bytes, transition_bytes
from paceline.stop import Stop
from paceline.systems import SYSTEMS
from paceline.telemetry.clock import Clock
from paceline.telemetry.phases import Phases
from paceline.transfer import InitialWeights, prepare

log = logging.getLogger(__name__)

COPIES_OF_WEIGHTS = 6
"""Weights that learn, act and are published, gradients, and Adam's two moments."""
COPIES_WITHOUT_TRAINING = 3
"""The same of a policy that only other ranks train."""
POLICY_SEEDS = 1_000_003
"""Difference between the seeds of two policies of a run. Ranks and runs have seeds that lie closer together."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Services:
    """What parts share: the group of ranks, who trains which policy, the stop signal, clock and phases of the
    display."""

    group: Group
    ownership: Ownership
    stop: Stop
    clock: Clock
    phases: Phases


def assemble(
    config: Config, services: Services, pool: Pool, folder: Path, initial: InitialWeights | None = None
) -> tuple[list[PPOLearner | PolicyCopy], Sampler, Population | None] | tuple[list[D4PGLearner], ReplaySampler, None]:
    """The learners, the collection and the population of the configured system. `folder` is the run's. All policies
    begin with the `initial` weights of another run."""
    if SYSTEMS[config.system].family == "d4pg":
        learner, replay_sampler = d4pg_parts(config, services, pool, folder, initial)
        return [learner], replay_sampler, None
    return ppo_parts(config, services, pool, folder, initial)


def ppo_parts(
    config: Config, services: Services, pool: Pool, folder: Path, initial: InitialWeights | None = None
) -> tuple[list[PPOLearner | PolicyCopy], Sampler, Population | None]:
    """The learners and the sampler of a PPO system. With several policies or opponents, also the population."""
    group, spec, policies = services.group, pool.spec, config.population.policies
    require_policies(spec, config)
    schedule, kinds = ppo_schedule(config.system, on_device=spec.on_device, turn_based=spec.turn_based), all_kinds(spec)
    require_rows(config.ppo.minibatches, min(schedule.update_rows(config, kind, services.ownership) for kind in kinds))
    concurrent = schedule.learns_concurrently(config)
    learners: list[PPOLearner | PolicyCopy] = []
    actors: list[Actor] = []
    readers: list[Reader] = []
    acting_compute, _ = recorded_parts(config, concurrent)
    numbers: torch.Generator | None = None
    for number in range(policies):
        if number == 1:
            require_room(learners[0].policy, services.ownership)
        own = kinds[number % len(kinds)].spec
        learner, acting = _learner_and_acting(config, services, own, number, initial, concurrent=concurrent)
        learners.append(learner)
        if numbers is None and concurrent and group.device.type == "cuda":
            # A learner that draws at the same time does so from the device's default generator.
            numbers = device_generator(group.device)
        # After the learner, which may move the memory of the weights.
        actors.append(Actor(acting, own, group.device, acting_compute, services.clock, numbers))
        readers += [learner.publication.reader(acting)] if concurrent else []

    parts = PopulationParts.make(
        config,
        services.ownership,
        services.clock,
        pool,
        folder,
        learners,
        compute=acting_compute,
        numbers=numbers,
    )
    refreshes = [*(reader.refresh for reader in readers), *(parts.refreshes if parts is not None else [])]

    def refresh_all() -> None:
        for refresh in refreshes:
            refresh()

    sampler = Sampler(
        pool,
        [*actors, *(parts.opponents if parts is not None else [])],
        services.stop,
        config.batching,
        refresh_weights=refreshes[0] if len(refreshes) == 1 else refresh_all,
        recorded=not config.deterministic,
        assignment=None if parts is None else parts.assignment,
        learned=services.ownership.own,
        assigned=lambda slots: None if parts is None else parts.assigned(slots),
    )
    state_size = learners[0].policy.state_size
    rows = [schedule.buffer_rows(config, kind, services.ownership) for kind in kinds]
    needed = sum(count * row_bytes(kind.spec, state_size) for count, kind in zip(rows, kinds, strict=True))
    require_memory(needed, group.device, "a rollout", "fewer --pool.num-envs or --rollout-steps")
    return learners, sampler, None if parts is None else parts.population


def require_room(first: PPOPolicy, ownership: Ownership) -> None:
    """Refuse more policies than memory holds. The `first` one is there already."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in first.parameters())
    copies = len([policy for policy in ownership.copies if policy > 0])
    own = ownership.num_policies - 1 - copies
    needed = (own * COPIES_OF_WEIGHTS + copies * COPIES_WITHOUT_TRAINING) * size
    device, several = ownership.group.device, f"{ownership.num_policies} policies"
    require_memory(needed, device, several, "a smaller --population.policies")


def require_policies(spec: PoolSpec, config: Config) -> None:
    """Refuse fewer policies than kinds of agents, because a policy plays one kind, and ranks that train one kind."""
    if len(spec.kinds) == 1:
        return
    kinds = ", ".join(kind.name for kind in spec.kinds)
    if config.population.policies < len(spec.kinds):
        raise UsageError(
            f"the agents of {config.env} have different spaces ({kinds}): allowed: --population.policies "
            f"{len(spec.kinds)} or more"
        )
    if config.population.spread:
        raise UsageError(
            f"population.spread is for agents with equal spaces, and those of {config.env} differ ({kinds}); allowed: "
            "--population.no-spread"
        )


def _learner_and_acting(
    config: Config,
    services: Services,
    spec: PoolSpec,
    number: int,
    initial: InitialWeights | None,
    *,
    concurrent: bool,
) -> tuple[PPOLearner | PolicyCopy, PPOPolicy]:
    """The learner of policy `number`, and the policy that acts: a copy, if a learner thread changes the weights
    meanwhile."""
    group = services.group
    with one_thread():
        policy = make_policy(spec, config.policy).to(group.device)
    prepare(policy, parts_of(policy), config, initial)
    synchronize(policy, group)
    threads_alone = None
    if group.device.type == "cpu":
        threads_alone = choose_cpu_kernels(policy, config.threads, _ranks_here(group), concurrent=concurrent)
    policy.precision = choose_precision(policy, config.compute.precision, group.device)
    if isinstance(policy, ActorCritic):
        policy.core.layer_by_layer = config.compute.layer_by_layer
    acting = copy.deepcopy(policy) if concurrent else policy
    if concurrent and group.device.type == "cpu":
        keep_in_precision(acting)
    if config.compute.compile:
        if group.device.type == "cpu":
            require_compiler()
        for network in {policy, acting}:
            network.compile_encoders()
    if number in services.ownership.copies:
        return PolicyCopy(policy, config.resolved_ppo, config.optimizer), acting
    _, learning_compute = recorded_parts(config, concurrent)
    learner = PPOLearner(
        policy,
        services.ownership.group,
        config.resolved_ppo,
        config.optimizer,
        torch.Generator().manual_seed(config.seed + group.rank + POLICY_SEEDS * number),
        learning_compute,
        num_slots=spec.num_slots,
        stop=services.stop,
        phases=services.phases,
        on_nonfinite=config.on_nonfinite,
    )
    learner.threads_alone = threads_alone
    return learner, acting


def recorded_parts(config: Config, concurrent: bool) -> tuple[ComputeConfig, ComputeConfig]:
    """How decisions and updates are computed: whether they are recorded on a GPU."""
    # While one thread records, another may not draw random numbers on the device, unless it is recorded, too. Auxiliary
    # losses draw some, and so does the entropy of squashed actions. Losses of the user's own may.
    draws = config.ppo.auxiliary.kind != "none" or config.policy.head.squash or config.ppo.has_own_losses
    # Whole policies and losses of the user's own are never recorded: they may wait for the device.
    recorded = config.compute.cuda_graphs and not config.policy.is_own and not (concurrent and draws)
    # VER's overlapping update shares the CUDA stream of the thread that acts.
    learning = recorded and not config.ver.overlap and not config.ppo.has_own_losses
    acting, updates = (dataclasses.replace(config.compute, cuda_graphs=graphs) for graphs in (recorded, learning))
    return acting, updates


def d4pg_parts(
    config: Config, services: Services, pool: Pool, folder: Path, initial: InitialWeights | None = None
) -> tuple[D4PGLearner, ReplaySampler]:
    """The learner of D4PG, and the sampler that fills its replay. `folder` is the run's."""
    group, spec, d4pg = services.group, pool.spec, config.d4pg
    _require_possible(config, spec, group)
    policy, critic = _control_networks(config, spec, group, initial)
    precision = policy.torso.precision
    if group.device.type == "cpu":
        # Updates take most of the time, and collection mostly waits for them: they get all cores.
        ranks = _ranks_here(group)
        threads = config.threads or max(1, len(available_core_ids()) // ranks)
        choose_cpu_kernels(policy, threads, ranks, precision)
    learner = D4PGLearner(
        policy,
        critic,
        group,
        d4pg,
        compiled=compiles_update(config, group),
        stop=services.stop,
        on_nonfinite=config.on_nonfinite,
    )
    acting = copy.deepcopy(policy).requires_grad_(False)
    refresh = learner.publication.reader(acting).refresh
    explorer = Explorer(
        acting,
        spec,
        lambda: learner.config,
        group.device,
        config.seed + group.rank,
        evaluation_envs=d4pg.evaluation_envs,
    )
    replay = _replay(config, spec, group.device)
    at_once = spec.num_slots * d4pg.steps + config.remote.actors * config.remote.transitions
    sampler = ReplaySampler(
        explorer,
        replay,
        Limiter(config.limiter, d4pg.batch, at_once),
        Archive(replay, folder / "replay" / f"rank_{group.rank}", config.checkpoint.keep),
        config.control.value,
        refresh_weights=refresh,
        minimum=config.limiter.minimum,
    )
    if config.remote.actors:

        def weights() -> dict[str, np.ndarray]:
            return {name: tensor.cpu().numpy() for name, tensor in acting.state_dict().items()}

        sampler.remote = RemoteActors(
            config.remote,
            ActorSettings(
                env=config.env,
                pool=config.pool,
                control=config.control,
                policy=config.policy,
                d4pg=d4pg,
                batching=config.batching,
            ),
            insert=sampler.insert,
            refresh_weights=refresh,
            weights=weights,
            d4pg=lambda: learner.config,
            next_seed=lambda made: config.seed + 1000 * group.rank + 7919 * (made + learner.updates),
        )
    return learner, sampler


def _replay(config: Config, spec: PoolSpec, device: torch.device) -> Replay | FrameReplay:
    """An empty replay, for which there is memory."""
    advice = "a smaller --replay.capacity"
    if config.replay.stack == 0:
        require_memory(config.replay.capacity * transition_bytes(spec), device, "the replay", advice)
        return Replay(config.replay, device)
    layouts = [
        FrameLayout(leaf.name, leaf.shape, leaf.dtype, is_channels_last(leaf), config.replay.stack)
        for leaf in spec.obs
        if is_image(leaf)
    ]
    if not layouts:
        raise UsageError(f"replay.stack is {config.replay.stack}, but no observation is an image; allowed: 0")
    streams = spec.num_slots * (1 + config.remote.actors)
    frames = num_frames(config.replay, streams, config.d4pg.steps)
    require_memory(frame_replay_bytes(spec, layouts, config.replay, frames), device, "the replay", advice)
    return FrameReplay(config.replay, device, layouts, frames)


def _control_networks(
    config: Config, spec: PoolSpec, group: Group, initial: InitialWeights | None
) -> tuple[DeterministicPolicy, ActionCritic]:
    """The networks of D4PG, with one encoder for both."""
    policy, critic = make_networks(spec, config.control, config.policy)
    networks, encoder = nn.ModuleDict({"policy": policy, "critic": critic}).to(group.device), policy.encoder
    if encoder.trunk.image_names and "policy" in config.frozen_parts:
        raise UsageError(
            f"freeze {config.freeze} leaves no policy to train: under d4pg only the critic trains the encoders of "
            "images; allowed: encoder"
        )
    prepare(networks, control_parts(policy), config, initial)
    precision = choose_precision(policy, config.compute.precision, group.device)
    synchronize(networks, group)
    encoder.precision = policy.torso.precision = critic.torso.precision = precision
    return policy, critic


def _require_possible(config: Config, spec: PoolSpec, group: Group) -> None:
    """Refuse environments that D4PG cannot learn in, and then settings with which it cannot."""
    if len(spec.kinds) > 1:
        raise UsageError(f"the agents of {config.env} have different spaces: allowed: --system ddppo, ver or appo")
    only_box(spec)
    if config.deterministic and config.replay.prioritized and group.device.type == "cuda":
        raise UsageError(
            "deterministic runs on a GPU need --replay.no-prioritized: its sums of priorities are not reproducible"
        )
    least = config.limiter.minimum * group.size
    if config.steps <= least:
        raise UsageError(
            f"steps is {config.steps}, but learning begins after limiter.minimum steps on every rank, {least} in all"
        )


def compiles_update(config: Config, group: Group) -> bool:
    """Whether D4PG's updates are compiled as a whole. Several ranks average gradients in them; a GPU records them."""
    if not config.compute.compile:
        return False
    if group.size > 1 or group.device.type != "cpu":
        log.info("compute.compile changes nothing here: updates of d4pg are compiled on the CPU of a single rank")
        return False
    require_compiler()
    return True


def _ranks_here(group: Group) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", group.size))
