"""Actors on other machines, by Ray: each holds a pool and a copy of the policy, and sends transitions in batches.

The learner has one request under way with every actor, and answers whatever comes back with the latest weights and the next
request: an actor that is slow delays nobody, one that dies is replaced, and one for which there is no room in the cluster yet
begins when there is (a machine that joins is room). Ray ends actors whose learner is gone, and a pool's guardian ends the simulators
of an actor that is.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from paceline.accel.kernels import one_thread
from paceline.collect.batching import AdaptiveBatching
from paceline.collect.explorer import Explorer, as_rows
from paceline.collect.remote_access import check_address, check_cluster, stay_on_loopback
from paceline.errors import MissingExtra, PacelineError, UsageError
from paceline.experience.return_range import ReturnRange
from paceline.nets.deterministic import DeterministicPolicy
from paceline.pool import make_pool
from paceline.pool.protocol import Episode

if TYPE_CHECKING:
    from paceline.agent.off_policy import OffPolicy
    from paceline.config import Config

log = logging.getLogger(__name__)


class Harvest(NamedTuple):
    """What an actor sends."""

    rows: dict[str, np.ndarray]
    """Transitions, as a replay takes them."""
    steps: int
    episodes: list[Episode]
    returns: ReturnRange
    """Of all its episodes so far."""


class Sampler:
    """A pool, and an explorer with weights of its own. All of an actor but its being elsewhere."""

    def __init__(self, config: Config, seed: int) -> None:
        pool = dataclasses.replace(config.pool, pin_memory=False)
        self._pool = make_pool(config.env, pool, seed=seed)
        self._policy = DeterministicPolicy(self._pool.spec, config.control).requires_grad_(False)
        # Nothing is evaluated here: what is to be reported has one place, the learner's own pool.
        d4pg = dataclasses.replace(config.d4pg, evaluation_envs=0)
        self._explorer = Explorer(self._policy, self._pool.spec, d4pg, torch.device("cpu"), seed)
        self._batching = AdaptiveBatching(self._pool, config.batching)
        self._held = self._pool.recv(min_slots=None)
        self._in_flight = 0

    @one_thread()
    def collect(self, weights: dict[str, np.ndarray], count: int) -> Harvest:
        """Act with `weights` until there are `count` transitions."""
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


class RemoteActors:
    """The actors of one learner. `take_in` is called by the thread that collects."""

    def __init__(self, config: Config, agent: OffPolicy, rank: int) -> None:
        remote = config.remote
        check_address(remote.address, insecure=remote.insecure)
        if remote.address in (None, "local"):
            stay_on_loopback()
        try:
            import ray
        except ImportError as error:
            raise MissingExtra("remote.actors", "ray", error) from error
        self._ray, self._config, self._agent, self._rank = ray, config, agent, rank
        self._actors: dict[int, Any] = {}
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            _connect(ray, config)
        try:
            check_cluster(ray, insecure=remote.insecure)
        except UsageError:
            self.close()
            raise
        self._make = ray.remote(num_cpus=config.remote.cores)(Sampler)
        self._version = -1
        self._weights: Any = None
        """A reference to them."""
        self._number_of: dict[Any, int] = {}
        """By request under way, the number of its actor."""
        self._made = self._lost = 0
        self._has_sent: set[int] = set()
        for number in range(config.remote.actors):
            self._start(number)

    def take_in(self) -> list[Episode]:
        """Insert what has come by now; its episodes."""
        ready, _ = self._ray.wait(list(self._number_of), num_returns=len(self._number_of), timeout=0)
        episodes: list[Episode] = []
        for request in ready:
            number = self._number_of.pop(request)
            try:
                harvest: Harvest = self._ray.get(request)
            except self._ray.exceptions.RayTaskError:
                raise  # what its environment or its policy raised: the next one's would
            except self._ray.exceptions.RayError as error:  # it, its machine or what it sent is gone
                self._replace(number, error)
                continue
            self._agent.insert(dict(harvest.rows), harvest.steps, harvest.returns)
            self._has_sent.add(number)
            episodes += harvest.episodes
            self._ask(number)
        return episodes

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        if self._started_ray:
            self._ray.shutdown()

    def _start(self, number: int) -> None:
        # Another seed every time: neither a successor nor a resumed run repeats what was collected before.
        self._made += 1
        seed = self._config.seed + 1000 * self._rank + 7919 * (self._made + self._agent.learner.updates)
        self._actors[number] = self._make.remote(self._config, seed)
        self._ask(number)

    def _ask(self, number: int) -> None:
        request = self._actors[number].collect.remote(self._latest(), self._config.remote.transitions)
        self._number_of[request] = number

    def _latest(self) -> Any:
        """The acting weights, put where all actors of a machine share them, once per publication."""
        version = self._agent.pick_up()
        if version != self._version:
            weights = {name: tensor.cpu().numpy() for name, tensor in self._agent.acting.state_dict().items()}
            self._version, self._weights = version, self._ray.put(weights)
        return self._weights

    def _replace(self, number: int, error: Exception) -> None:
        self._lost += 1
        # Ray says first that an actor died, and last why.
        cause = [line for line in str(error).splitlines() if line.strip()][-1].strip()
        if getattr(error, "actor_init_failed", False) and number not in self._has_sent:
            raise PacelineError(f"a remote actor cannot be made: {cause}") from error
        if self._lost > self._config.remote.max_restarts:
            raise PacelineError(
                f"{self._lost} remote actors were lost, more than remote.max_restarts; the last one: {cause}"
            ) from error
        log.warning("remote actor %d was lost and is replaced (%d so far): %s", number, self._lost, cause)
        self._start(number)


def _connect(ray: Any, config: Config) -> None:
    """Join the cluster that was named, or start one here."""
    if config.remote.address is not None:
        options: dict[str, Any] = {"address": config.remote.address}
    else:
        cores = max(1, int(np.ceil(config.remote.actors * config.remote.cores)))
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    # Ray would end the process at a SIGTERM, without a checkpoint.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ray.init(log_to_driver=False, logging_level=logging.WARNING, **options)
    for number, handler in handlers.items():
        signal.signal(number, handler)
