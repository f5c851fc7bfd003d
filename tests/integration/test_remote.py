"""Actors elsewhere: a local Ray cluster, actors that are killed, and what is learned from them."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import psutil
import pytest

from paceline.collect.remote_access import check_address, refuse_unsafe, stay_on_loopback

stay_on_loopback()  # before Ray is imported
ray = pytest.importorskip("ray")

from paceline.checkpoint import CheckpointFolder  # noqa: E402 - Ray first: without it there is nothing to test
from paceline.collect.config import RemoteConfig  # noqa: E402
from paceline.collect.remote import ActorSettings, RemoteActor, RemoteActors, _connect  # noqa: E402
from paceline.config import Config  # noqa: E402 - Ray first: without it there is nothing to test
from paceline.errors import PacelineError, UsageError  # noqa: E402
from paceline.experience.config import LimiterConfig  # noqa: E402
from paceline.experience.return_range import ReturnRange  # noqa: E402
from paceline.nets.deterministic import make_networks  # noqa: E402
from paceline.session import Session  # noqa: E402
from tests.integration.envs import LENGTH, Chase  # noqa: E402
from tests.integration.ranks import ROOT  # noqa: E402
from tests.integration.test_d4pg import reports, small  # noqa: E402

pytestmark = pytest.mark.timeout(1200)

PATIENCE = 600.0
"""Seconds for actors to start, which import PyTorch in processes of their own while other tests run."""


@pytest.fixture(scope="module")
def cluster():
    """One for all tests: it takes seconds to start."""
    _connect(ray, with_actors(2).remote)
    yield
    ray.shutdown()


def with_actors(count: int = 2, **changes) -> Config:
    remote = RemoteConfig(actors=count, transitions=50, **changes)
    return small(remote=remote, limiter=LimiterConfig(samples_per_insert=4.0, minimum=200))


class Unmakable(Chase):
    """Can be made in no process but that of the tests."""

    def __init__(self) -> None:
        super().__init__()
        if "PYTEST_CURRENT_TEST" not in os.environ or "RAY_JOB_ID" in os.environ:
            raise RuntimeError("no licence for this simulator")


def settings_of(config: Config) -> ActorSettings:
    return ActorSettings(
        env=config.env,
        pool=config.pool,
        control=config.control,
        policy=config.policy,
        d4pg=config.d4pg,
        batching=config.batching,
    )


def start_actors(config: Config, learner: Learner) -> RemoteActors:
    actors = RemoteActors(
        config.remote,
        settings_of(config),
        insert=learner.insert,
        refresh_weights=lambda: learner.published,
        weights=learner.weights,
        d4pg=lambda: config.d4pg,
        next_seed=lambda made: config.seed + 7919 * made,
    )
    actors.start()
    return actors


class Learner:
    """What actors need of a learner: weights, and a place for what they send."""

    def __init__(self, config: Config) -> None:
        actor = RemoteActor(settings_of(config), seed=1)
        self.acting, _ = make_networks(actor._pool.spec, config.control, config.policy)
        self.steps = self.published = 0
        self.rows: list[dict[str, np.ndarray]] = []

    def weights(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self.acting.state_dict().items()}

    def insert(self, rows: dict[str, np.ndarray], steps: int, returns: ReturnRange) -> None:
        self.rows.append(rows)
        self.steps += steps
        assert returns.low <= returns.high


def wait_until(remote: RemoteActors, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        remote.receive()
        time.sleep(0.02)


def wait_for(remote: RemoteActors, learner: Learner, harvests: int) -> None:
    goal = len(learner.rows) + harvests
    wait_until(remote, lambda: len(learner.rows) >= goal)


def process_ids(remote: RemoteActors) -> list[int]:
    return ray.get([actor.__ray_call__.remote(lambda actor: os.getpid()) for actor in remote._actors.values()])


def test_a_cluster_of_our_own_listens_on_loopback_only(cluster):
    this = psutil.Process()
    sockets = [socket for one in (this, *this.children(recursive=True)) for socket in one.net_connections(kind="inet")]
    addresses = {ipaddress.ip_address(socket.laddr.ip) for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert addresses
    assert all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address in addresses), addresses


@pytest.mark.parametrize(
    ("address", "mode", "insecure", "safe"),
    [
        (None, "", False, True),  # one that is started here
        ("auto", "", False, True),  # Ray knows which; that is checked once it has said so
        ("127.0.0.1:6379", "", False, True),
        ("localhost:6379", "disabled", False, True),
        ("[::1]:6379", "", False, True),
        ("192.0.2.7:6379", "", False, False),
        ("192.0.2.7:6379", "disabled", False, False),
        ("head.example.org:6379", "", False, False),
        ("ray://head.example.org:10001", "", False, False),
        ("head.example.org", "", False, False),
        ("192.0.2.7:6379", "token", False, True),
        ("ray://head.example.org:10001", "TOKEN", False, True),
        ("192.0.2.7:6379", "", True, True),
    ],
)
def test_clusters_without_authentication_are_refused_unless_on_loopback(monkeypatch, address, mode, insecure, safe):
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with contextlib.nullcontext() if safe else pytest.raises(UsageError, match="RAY_AUTH_MODE=token"):
        check_address(address, insecure=insecure)


def test_a_cluster_is_unsafe_if_one_of_its_machines_is_open():
    with pytest.raises(UsageError, match="the Ray cluster at 192.0.2.7 has no authentication"):
        refuse_unsafe(["127.0.0.1", "192.0.2.7"], "", insecure=False)


def test_a_cluster_says_itself_whether_it_asks_for_tokens(cluster, monkeypatch):
    """Reached by a loopback address, with a token of ours, it may still be open to all."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    nodes = [{"NodeManagerAddress": "192.0.2.7", "Alive": True}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "get", lambda question, timeout: "disabled")
    learner = Learner(with_actors())
    with pytest.raises(UsageError, match="has no authentication"):
        start_actors(with_actors(), learner)


def test_a_sampler_gives_whole_transitions_of_its_own_streams():
    config = with_actors()
    one = RemoteActor(settings_of(config), seed=1)
    weights = {name: tensor.numpy() for name, tensor in one._policy.state_dict().items()}
    first = one.collect(weights, config.d4pg, 50)
    rows = first.rows
    assert 50 <= len(rows["reward"]) <= first.steps
    assert set(rows) == {"obs/obs", "next_obs/obs", "action", "reward", "discount"}
    assert (np.abs(rows["action"]) <= 1).all() and (rows["reward"] <= 0).all()
    assert all(episode.length == LENGTH for episode in first.episodes)
    second = one.collect(weights, config.d4pg, 50)
    assert not np.isin(second.rows["obs/obs"], rows["obs/obs"]).any(), "nothing comes twice"


def test_what_actors_send_arrives_and_a_killed_one_is_replaced(cluster, caplog):
    """kill -9 of an actor: the others go on, its successor has other streams, and no simulator is left. The successor
    takes some 10 s to start."""
    config = with_actors()
    config = dataclasses.replace(config, pool=dataclasses.replace(config.pool, kind="process", workers=1))
    learner = Learner(config)
    with contextlib.closing(start_actors(config, learner)) as remote:
        wait_for(remote, learner, 4)
        learner.published += 1  # new weights: they are sent with the next requests
        wait_for(remote, learner, 4)
        victim = process_ids(remote)[0]
        simulators = [child.pid for child in psutil.Process(victim).children(recursive=True)]
        assert simulators
        os.kill(victim, signal.SIGKILL)
        wait_until(remote, lambda: "was lost and is replaced (1 in an hour)" in caplog.text)
        wait_for(remote, learner, 1)
        assert victim not in process_ids(remote) and len(process_ids(remote)) == 2
        shown = np.concatenate([rows["obs/obs"] for rows in learner.rows])
        assert len(np.unique(shown)) == len(shown), "every decision comes once"
        deadline = time.monotonic() + 120
        while any(psutil.pid_exists(pid) for pid in simulators):
            assert time.monotonic() < deadline, "a simulator outlives its actor"
            time.sleep(0.1)


def test_too_many_losses_end_the_run(cluster):
    config = with_actors(count=1, max_restarts_per_hour=0)
    learner = Learner(config)
    with contextlib.closing(start_actors(config, learner)) as remote:
        wait_for(remote, learner, 1)
        os.kill(process_ids(remote)[0], signal.SIGKILL)
        with pytest.raises(
            PacelineError,
            match=r"^1 remote actors were lost within an hour; remote\.max_restarts_per_hour allows 0 times",
        ):
            wait_for(remote, learner, 1000)


def test_an_actor_for_which_there_is_no_room_yet_does_not_hold_up_the_others(cluster):
    """The cluster has two cores, and each actor wants both: the second begins when the first is gone for good. An actor
    takes some 10 s to start, because it imports PyTorch in a process of its own."""
    config = with_actors(count=2, cores=2.0)
    learner = Learner(config)
    with contextlib.closing(start_actors(config, learner)) as remote:
        wait_for(remote, learner, 6)
        assert len(remote._has_sent) == 1 and not ray.available_resources().get("CPU"), "no room for a second"
        leaver = min(remote._has_sent)
        ray.kill(remote._actors[leaver])
        remote._number_of = {request: n for request, n in remote._number_of.items() if n != leaver}
        wait_until(remote, lambda: len(remote._has_sent) == 2)


def test_an_actor_that_cannot_be_made_says_why(cluster):
    config = dataclasses.replace(with_actors(count=1), env="tests.integration.test_remote:Unmakable")
    learner = Learner(with_actors())
    remote = start_actors(config, learner)
    with contextlib.closing(remote), pytest.raises(PacelineError, match="no licence for this simulator"):
        wait_for(remote, learner, 1)


def test_a_terminated_run_saves_a_checkpoint(tmp_path):
    """Ray has a handler of its own for SIGTERM."""
    config = with_actors(count=1)
    stopping = f"{config.env}?marker={tmp_path / 'stopped'}&harm=stop&at=100"
    config = dataclasses.replace(config, env=stopping, steps=2000)
    program = "import pickle, sys; from paceline.session import train; train(*pickle.load(open(sys.argv[1], 'rb')))"
    (tmp_path / "job").write_bytes(pickle.dumps((config, tmp_path / "run")))
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "job")], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    saved = CheckpointFolder(tmp_path / "run" / "checkpoints").load()
    assert saved.state["step"] < config.steps and saved.state["ranks"][0]["agent"]["replay"]["inserted"] > 0


class EnoughFromElsewhere:
    """Stops a run when actors have sent a thousand transitions, however long they took to start."""

    def on_update(self, session: Session) -> bool:
        collection = session.state.collection
        return collection.collected > collection.explorer.collected + 1000


def test_a_run_learns_from_actors_elsewhere(cluster, tmp_path):
    config = dataclasses.replace(
        with_actors(count=1),
        env="tests.integration.envs:Chase?seconds=0.002",
        steps=1_000_000,
        seconds=PATIENCE,
        limiter=LimiterConfig(samples_per_insert=1.0, minimum=200),
    )
    with Session(config, tmp_path, callbacks=[EnoughFromElsewhere()]) as session:
        session.run()
        run = session.state
    assert run.collection.collected > run.collection.explorer.collected + 1000, "the actors did not start in time"
    last = reports(tmp_path)[-1]
    assert 1000 < run.step == last["step"] < config.steps
    state = run.collection.limiter.state_dict()
    assert state["inserted"] - 200 == pytest.approx(state["drawn"], abs=300)
    assert last["episode_length"] == LENGTH


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"system": "ddppo"}, "no effect under ddppo; it is read by: d4pg"),
        ({"deterministic": True}, "deterministic runs cannot have remote.actors"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        dataclasses.replace(with_actors(), **changes)


@pytest.mark.parametrize("options", [{"actors": -1}, {"transitions": 0}, {"cores": 0.0}, {"max_restarts_per_hour": -1}])
def test_bad_settings_are_refused(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        RemoteConfig(**options)
