"""Callbacks are called when they say, and stop a run on all ranks."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from paceline.callbacks import Callback
from paceline.checkpoint import CheckpointFolder
from paceline.config import CheckpointConfig, Config
from paceline.distributed.rank_info import RankInfo
from paceline.errors import UsageError
from paceline.experience.config import LimiterConfig
from paceline.learner.config import D4PGConfig
from paceline.nets.config import ControlConfig
from paceline.pool.config import PoolConfig
from paceline.session import Session
from tests.integration.ranks import on_ranks
from tests.integration.test_d4pg import small as small_d4pg
from tests.integration.test_training import tiny


class Noted(Callback):
    """Notes its calls, and returns True from `event` once `after` steps are trained."""

    def __init__(self, event: str = "", after: int = 10**9) -> None:
        self.calls, self._event, self._after = [], event, after

    def _note(self, event, session, argument=None):
        self.calls.append((event, session.step, argument))
        return event == self._event and session.step >= self._after

    def on_rollout(self, session):
        return self._note("on_rollout", session)

    def on_episode(self, session, episode):
        return self._note("on_episode", session, episode)

    def on_update(self, session):
        return self._note("on_update", session, session.metrics)

    def on_checkpoint(self, session, folder):
        return self._note("on_checkpoint", session, folder)

    def on_stop(self, session, error):
        self._note("on_stop", session, error)

    def of(self, event):
        return [call[1:] for call in self.calls if call[0] == event]


def run(folder, callback, config=None, **arguments):
    with Session(config or tiny("none"), folder, callbacks=[callback], **arguments) as session:
        session.run()
    return session


@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
def test_every_event_is_called(tmp_path, system):
    noted, config = Noted(), tiny("none", system=system, deterministic=False)
    session = run(tmp_path, noted, config)
    updates = [step for step, _ in noted.of("on_update")]
    assert updates == sorted(set(updates)) and updates[-1] == session.step >= config.steps
    assert len(noted.of("on_rollout")) == len(updates)
    assert noted.of("on_rollout")[0][0] == 0, "before its steps are counted"
    returns = [episode.episode_return for _, episode in noted.of("on_episode")]
    assert len(returns) > 3 and set(returns) <= {-1.0, 1.0}
    metrics = noted.of("on_update")[-1][1]
    assert metrics["step"] == session.step and -1 <= metrics["episode_return"] <= 1 and "policy_loss" in metrics
    ((step, folder),) = noted.of("on_checkpoint")
    assert folder == tmp_path / "checkpoints" / f"step_{step}" and folder.is_dir()
    assert noted.calls[-1] == ("on_stop", session.step, None) and len(noted.of("on_stop")) == 1


def test_d4pg(tmp_path):
    config = Config(
        env="gym:Pendulum-v1",
        system="d4pg",
        steps=2000,
        pool=PoolConfig(num_envs=2, kind="serial"),
        control=ControlConfig(actor_hidden=(16,), critic_hidden=(16,)),
        d4pg=D4PGConfig(batch=16),
        limiter=LimiterConfig(minimum=200),
        device="cpu",
    )
    noted = Noted("on_update", after=400)
    session = run(tmp_path, noted, config)
    assert 400 <= session.step < 2000 and not noted.of("on_rollout")
    assert [event for event, *_ in noted.calls[-2:]] == ["on_checkpoint", "on_stop"]


@pytest.mark.parametrize("system", ["ddppo", "ver", "appo", "d4pg"])
def test_no_step_is_saved_twice(tmp_path, system):
    """Also if a checkpoint is due when the run ends. While D4PG fills its replay, the step is 0."""
    noted, changes = Noted(), {"deterministic": False, "checkpoint": CheckpointConfig(seconds=1e-6)}
    config = small_d4pg(steps=400, **changes) if system == "d4pg" else tiny("none", system=system, steps=512, **changes)
    session = run(tmp_path, noted, config)
    saved = [step for step, _ in noted.of("on_checkpoint")]
    steps = [step for step in saved if step > 0]
    assert len(steps) == len(saved) or system == "d4pg"
    assert len(steps) > 1 and steps == sorted(set(steps)) and steps[-1] == session.step


@pytest.mark.parametrize("event", ["on_update", "on_episode", "on_rollout"])
@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
def test_true_stops_the_run_and_saves_it(tmp_path, system, event):
    config = tiny("none", system=system, deterministic=False)
    session = run(tmp_path, Noted(event, after=256), config)
    assert 256 <= session.step < config.steps and session.is_over
    assert not session.state.interrupted, "the program wanted it"
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] == session.step
    resumed = run(tmp_path, Noted(), config, resume="latest")
    assert resumed.step >= config.steps


@pytest.mark.parametrize("system", ["ddppo", "appo"])
def test_an_exception_ends_the_run(tmp_path, system):
    class Broken:
        def on_update(self, session):
            raise ZeroDivisionError("mine")

        def on_stop(self, session, error):
            self.error = error
            raise RuntimeError("another one")

    broken = Broken()
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(tmp_path, broken, tiny("none", system=system, deterministic=False))
    assert isinstance(broken.error, ZeroDivisionError)


def test_an_exception_in_on_stop_is_raised(tmp_path, caplog):
    class Broken:
        def on_stop(self, session, error):
            raise ZeroDivisionError("mine")

    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError, match="mine"):
        run(tmp_path, Broken())
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] >= tiny("none").steps


class Misspelt:
    def on_epsiode(self, session, episode): ...


class Everywhere:
    ranks = "everywhere"

    def on_update(self, session): ...


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Misspelt(), "on_epsiode, did you mean 'on_episode'.*allowed: on_rollout"),
        (object(), "no method that is called"),
        (Noted, "is a class; allowed: an object"),
        (Everywhere(), "'everywhere'; allowed: first, all"),
    ],
)
def test_wrong_callbacks_are_refused_before_anything_starts(tmp_path, callback, message):
    with pytest.raises(UsageError, match=message):
        Session(tiny("none"), tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()


def stop_on_one_rank(folder: Path) -> tuple[int, int, int]:
    """Rank 1 wants to stop."""
    rank = RankInfo.find().rank
    everywhere = Noted("on_update" if rank == 1 else "", after=256)
    everywhere.ranks = "all"
    first = Noted()
    config = tiny("none", deterministic=False, steps=4096)
    with Session(config, folder, callbacks=[everywhere, first]) as session:
        session.run()
    return session.step, len(everywhere.of("on_update")), len(first.of("on_update"))


def test_all_ranks_stop_together(tmp_path):
    """After the next update. A callback is called on the first rank unless it wants all."""
    (steps, updates, first), (other_steps, other_updates, second) = on_ranks(2, partial(stop_on_one_rank, tmp_path))
    assert steps == other_steps < 4096 and updates == other_updates == first > 0
    assert second == 0


class Slower(Callback):
    """Changes the learning rate after the second update."""

    def on_update(self, session):
        if session.step >= 256:
            session.learners[0].hyperparameters.set("optimizer.learning_rate", 1e-5)


def change_learning_rate(folder: Path, ranks: str) -> str:
    """How the run ends on this rank."""
    slower = Slower()
    slower.ranks = ranks
    config = tiny("none", deterministic=False, steps=1024)
    try:
        return str(run(folder, slower, config).step)
    except UsageError as error:
        return str(error)


def test_hyperparameters_that_change_on_one_rank_end_the_run(tmp_path):
    for error in on_ranks(2, partial(change_learning_rate, tmp_path / "first", "first")):
        assert "the hyper-parameters differ between ranks" in error and 'ranks = "all"' in error
    assert on_ranks(2, partial(change_learning_rate, tmp_path / "all", "all")) == ["1024", "1024"]


def test_a_truth_value_of_numpy_stops_and_others_are_refused(tmp_path):
    class Mean:
        answer = np.mean([1.0]) > 0.5

        def on_update(self, session):
            return self.answer

    assert run(tmp_path / "stopped", Mean()).step == 64
    Mean.answer = 0.7
    with pytest.raises(UsageError, match="on_update of a callback returned 0.7; allowed: True to stop, False, None"):
        run(tmp_path / "refused", Mean())


def test_on_stop_is_called_if_the_last_checkpoint_fails(tmp_path):
    class Broken(Noted):
        def on_checkpoint(self, session, folder):
            raise ZeroDivisionError("mine")

    broken = Broken()
    with pytest.raises(ZeroDivisionError, match="mine"):
        begin(tmp_path, broken)
    assert [type(error) for _, error in broken.of("on_stop")] == [ZeroDivisionError]


def begin(folder, callback):
    with Session(tiny("none"), folder, callbacks=[callback]) as session:
        session.run(until=128)
