"""Actors on other machines, by Ray. Each has a pool and a copy of the policy, and sends transitions in batches.

One request is under way with every actor. When it returns, the actor gets the latest weights and the next request. A
slow actor delays no other. An actor that dies is replaced. An actor for which the cluster has no room yet begins when a
machine joins. Ray ends actors whose learner is gone. The guardian of a pool ends the simulators of a dead actor.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from paceline.accel.kernels import one_thread
from paceline.collect.batching import AdaptiveBatching
from paceline.collect.config import BatchingConfig, RemoteConfig
from paceline.collect.explorer import Explorer, as_rows
from paceline.collect.remote_access import check_address, check_cluster, stay_on_loopback
from paceline.errors import MissingExtra, PacelineError, UsageError
from paceline.experience.return_range import ReturnRange
from paceline.learner.config import D4PGConfig
from paceline.nets.config import ControlConfig, PolicyConfig
from paceline.nets.deterministic import make_deterministic_policy
from paceline.pool import PoolConfig, make_pool
from paceline.pool.budget import LastHour
from paceline.pool.protocol import Episode
from paceline.signals import handlers_kept

log = logging.getLogger(__name__)

SILENT_SECONDS = 600.0
"""How long an actor that has sent something may send nothing until a warning says so."""


@dataclass(frozen=True, kw_only=True)
class ActorSettings:
    """What a remote actor needs of the run's configuration."""

    env: str
    pool: PoolConfig
    control: ControlConfig
    policy: PolicyConfig
    d4pg: D4PGConfig
    batching: BatchingConfig


class Harvest(NamedTuple):
    """What an actor sends."""

    rows: dict[str, np.ndarray]
    """Transitions, as a replay takes them."""
    steps: int
    episodes: list[Episode]
    returns: ReturnRange
    """The range of the returns of all its episodes so far."""


class RemoteActor:
    """The actor's logic, without Ray."""

    def __init__(self, settings: ActorSettings, seed: int) -> None:
        pool = dataclasses.replace(settings.pool, pin_memory=False)
        self._pool, self._d4pg = make_pool(settings.env, pool, seed=seed), settings.d4pg
        spec = self._pool.spec
        self._policy = make_deterministic_policy(spec, settings.control, settings.policy).requires_grad_(False)
        # Only the learner's own pool evaluates.
        self._explorer = Explorer(self._policy, spec, lambda: self._d4pg, torch.device("cpu"), seed, evaluation_envs=0)
        self._batching = AdaptiveBatching(self._pool, settings.batching)
        self._held = self._pool.recv(min_slots=None)
        self._in_flight = 0

    @one_thread()
    def collect(self, weights: dict[str, np.ndarray], d4pg: D4PGConfig, count: int) -> Harvest:
        """Act with `weights`, and with the noise and discount of `d4pg`, until there are `count` transitions."""
        self._d4pg = d4pg
        self._policy.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in weights.items()})
        parts: list[dict[str, np.ndarray]] = []
        before, gathered = self._explorer.collected, 0
        while gathered < count:
            self._pool.send(self._explorer.act(self._held), self._held.slots)
            self._in_flight += len(self._held)
            self._held = self._batching.receive(self._in_flight)
            self._in_flight -= len(self._held)
            found = self._explorer.complete(self._held)
            if found is not None and len(found.reward):
                parts.append(as_rows(found))
                gathered += len(found.reward)
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        steps = self._explorer.collected - before
        return Harvest(rows, steps, self._pool.take_episodes(), self._explorer.returns)


class Insert(Protocol):
    """`ReplaySampler.insert`."""

    def __call__(self, rows: dict[str, np.ndarray], steps: int, returns: ReturnRange) -> None: ...


class RemoteActors:
    """The remote actors of one rank. The thread that collects calls `receive`."""

    def __init__(
        self,
        config: RemoteConfig,
        settings: ActorSettings,
        *,
        insert: Insert,
        refresh_weights: Callable[[], int],
        weights: Callable[[], dict[str, np.ndarray]],
        d4pg: Callable[[], D4PGConfig],
        next_seed: Callable[[int], int],
    ) -> None:
        """`refresh_weights` returns the number of the latest publication, and `weights` its weights. `d4pg` returns the
        current hyper-parameters. `next_seed(n)` is the n-th actor's seed."""
        self._config, self._settings = config, settings
        self._insert, self._refresh, self._latest, self._next_seed = insert, refresh_weights, weights, next_seed
        self._d4pg = d4pg
        self._ray: Any = None
        self._actors: dict[int, Any] = {}
        self._started_ray = False
        self._version, self._weights = -1, None
        """The publication that was put into Ray's store, and a reference to it."""
        self._number_of: dict[Any, int] = {}
        """By request under way, the number of its actor."""
        self._made = 0
        self._lost = LastHour()
        self._has_sent: set[int] = set()
        self._last_harvest: dict[int, float] = {}
        """When an actor has sent something last. Not those that a warning has named since."""

    def start(self) -> None:
        """Connect to Ray, and start all actors."""
        config = self._config
        check_address(config.address, insecure=config.insecure)
        if config.address in (None, "local"):
            stay_on_loopback()
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("remote.actors", "ray", error) from error
        self._ray = ray
        if not ray.is_initialized():
            self._started_ray = True
            _connect(ray, config)
        try:
            check_cluster(ray, insecure=config.insecure)
        except UsageError:
            self.close()
            raise
        self._make = ray.remote(num_cpus=config.cores)(RemoteActor)
        for number in range(config.actors):
            self._start_actor(number)

    def receive(self) -> list[Episode]:
        """Insert the transitions that have arrived. Returns their episodes."""
        ready, _ = self._ray.wait(list(self._number_of), num_returns=len(self._number_of), timeout=0)
        episodes: list[Episode] = []
        for request in ready:
            number = self._number_of.pop(request)
            try:
                harvest: Harvest = self._ray.get(request)
            except self._ray.exceptions.RayTaskError:
                raise  # its environment or its policy raised it: the next actor would raise it, too
            except self._ray.exceptions.RayError as error:  # the actor, its machine or its data is gone
                self._replace(number, error)
                continue
            self._insert(dict(harvest.rows), harvest.steps, harvest.returns)
            self._has_sent.add(number)
            self._last_harvest[number] = time.monotonic()
            episodes += harvest.episodes
            self._request(number)
        self._warn_of_silence()
        return episodes

    def _warn_of_silence(self) -> None:
        """Ray notices actors and machines that end, but none that is stopped or hangs."""
        now = time.monotonic()
        for number in [number for number, then in self._last_harvest.items() if now - then >= SILENT_SECONDS]:
            del self._last_harvest[number]
            log.warning(
                "remote actor %d has sent nothing for %.0f minutes; it or its simulators may hang",
                number,
                SILENT_SECONDS / 60,
            )

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        if self._started_ray:
            self._started_ray = False
            self._ray.shutdown()

    def _start_actor(self, number: int) -> None:
        # Every actor has another seed: neither a successor nor a resumed run repeats what was collected before.
        self._made += 1
        self._actors[number] = self._make.remote(self._settings, self._next_seed(self._made))
        self._request(number)

    def _request(self, number: int) -> None:
        request = self._actors[number].collect.remote(self._shared_weights(), self._d4pg(), self._config.transitions)
        self._number_of[request] = number

    def _shared_weights(self) -> Any:
        """The latest weights, in Ray's store: the actors of a machine share them. Put there once per publication."""
        version = self._refresh()
        if version != self._version:
            self._version, self._weights = version, self._ray.put(self._latest())
        return self._weights

    def _replace(self, number: int, error: Exception) -> None:
        self._last_harvest.pop(number, None)
        # Ray says first that an actor died, and last why.
        cause = [line for line in str(error).splitlines() if line.strip()][-1].strip()
        if getattr(error, "actor_init_failed", False) and number not in self._has_sent:
            raise PacelineError(f"a remote actor cannot be made: {cause}") from error
        allowed = self._config.max_restarts_per_hour * self._config.actors
        if len(self._lost) >= allowed:
            raise PacelineError(
                f"{len(self._lost) + 1} remote actors were lost within an hour; remote.max_restarts_per_hour allows "
                f"{self._config.max_restarts_per_hour} times {self._config.actors} actors; the last one: {cause}"
            ) from error
        self._lost.add()
        log.warning("remote actor %d was lost and is replaced (%d in an hour): %s", number, len(self._lost), cause)
        self._start_actor(number)


def _connect(ray: Any, config: RemoteConfig) -> None:
    """Join the cluster that was named, or start one here."""
    if config.address is not None:
        options: dict[str, Any] = {"address": config.address}
    else:
        cores = max(1, int(np.ceil(config.actors * config.cores)))
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    with handlers_kept():  # Ray would end the process at a SIGTERM, without a checkpoint
        ray.init(log_to_driver=False, logging_level=logging.WARNING, **options)
