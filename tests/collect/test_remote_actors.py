"""What becomes of remote actors that are lost or silent. A stand-in takes the place of Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.collect import remote as module
from paceline.collect.config import RemoteConfig
from paceline.collect.remote import Harvest, RemoteActors
from paceline.errors import PacelineError


class RayError(Exception):
    """The actor, its machine or its data is gone."""


class RayTaskError(RayError):
    """The actor's code has failed."""


class Cluster:
    """Actors on several machines. Each answers every request at once, unless it is lost or silent."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self) -> None:
        self.made = 0
        self.requests: dict[int, int] = {}
        """By request, the actor that was asked."""
        self.lost: set[int] = set()
        self.silent: set[int] = set()

    def remote(self, settings, seed) -> SimpleNamespace:
        """Another actor."""
        actor = self.made
        self.made += 1
        return SimpleNamespace(collect=SimpleNamespace(remote=lambda *_: self._ask(actor)))

    def _ask(self, actor: int) -> int:
        request = len(self.requests)
        self.requests[request] = actor
        return request

    def put(self, value):
        return value

    def kill(self, actor) -> None:
        pass

    def wait(self, requests, num_returns, timeout):
        assert timeout == 0, "the thread that collects waits for no actor"
        return [one for one in requests if self.requests[one] not in self.silent], []

    def get(self, request):
        if self.requests[request] in self.lost:
            raise RayError("the machine is gone")
        return Harvest({}, 1, [], None)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [0.0]
    for place in ("paceline.collect.remote.time", "paceline.pool.budget.time"):
        monkeypatch.setattr(place, SimpleNamespace(monotonic=lambda: now[0]))
    return now


def actors_of(cluster: Cluster, **changes) -> RemoteActors:
    actors = RemoteActors(
        RemoteConfig(**changes),
        settings=None,
        insert=lambda rows, steps, returns: None,
        refresh_weights=lambda: 0,
        weights=dict,
        d4pg=lambda: None,
        next_seed=lambda made: made,
    )
    actors._ray, actors._make = cluster, cluster
    for number in range(actors._config.actors):
        actors._start_actor(number)
    return actors


def test_the_loss_of_a_machine_with_many_actors_does_not_end_the_run(clock, caplog):
    cluster = Cluster()
    actors = actors_of(cluster, actors=16)
    actors.receive()
    cluster.lost = set(range(16))
    actors.receive()
    assert cluster.made == 32 and caplog.text.count("was lost and is replaced") == 16
    cluster.lost = set()
    actors.receive()
    assert actors._has_sent == set(range(16))


def test_more_losses_in_an_hour_than_all_actors_may_have_end_the_run(clock):
    cluster = Cluster()
    actors = actors_of(cluster, actors=4, max_restarts_per_hour=2)
    cluster.lost = set(range(1000))
    actors.receive()
    clock[0] = 3000.0
    actors.receive()
    clock[0] = 3600.0  # the first four losses are an hour old
    actors.receive()
    clock[0] = 6000.0
    with pytest.raises(
        PacelineError,
        match=r"^9 remote actors were lost within an hour; remote.max_restarts_per_hour allows 2 times 4 actors; "
        "the last one: the machine is gone$",
    ):
        actors.receive()


def test_an_actor_that_falls_silent_is_named_once(clock, caplog):
    """An actor that has never sent anything may wait for room in the cluster."""
    cluster = Cluster()
    cluster.silent = {2}
    actors = actors_of(cluster, actors=3)
    actors.receive()
    cluster.silent = {1, 2}
    for clock[0] in (module.SILENT_SECONDS - 1, module.SILENT_SECONDS, 2 * module.SILENT_SECONDS):
        actors.receive()
    assert [record.message for record in caplog.records] == [
        "remote actor 1 has sent nothing for 10 minutes; it or its simulators may hang"
    ]
    cluster.silent = {2}
    actors.receive()
    cluster.silent = {1, 2}
    clock[0] += module.SILENT_SECONDS
    actors.receive()
    assert len(caplog.records) == 2
