"""Sessions: a run is trained in parts, looked at and changed in between, and continued."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from paceline.checkpoint import CheckpointFolder
from paceline.errors import UsageError
from paceline.experience.config import LimiterConfig
from paceline.learner.config import D4PGConfig
from paceline.schedule.config import VERConfig
from paceline.session import Session, train
from tests.integration.test_d4pg import small as small_d4pg
from tests.integration.test_training import tiny

SELDOM = LimiterConfig(minimum=64, samples_per_insert=4.0)


def weights_of(run) -> dict[str, torch.Tensor]:
    return {name: values.clone() for name, values in run.policy.state_dict().items()}


def config_of(system: str, **changes):
    if system == "d4pg":
        return small_d4pg(**{"deterministic": True, **changes})
    return tiny("lstm", system=system, **changes)


@pytest.mark.parametrize("system", ["ddppo", "ver", "d4pg"])
def test_a_run_in_parts_is_the_same_run(tmp_path, system):
    """To the bit: nothing is lost where one part ends and the next begins."""
    config = config_of(system)
    whole = train(config, tmp_path / "whole")
    with Session(config, tmp_path / "parts") as session:
        session.run(until=config.steps // 2)
        assert config.steps // 2 <= session.state.step < config.steps
        session.run()
        parts = session.state
    assert parts.step == whole.step
    for name, values in weights_of(whole).items():
        assert torch.equal(values, weights_of(parts)[name]), name


@pytest.mark.parametrize(
    ("system", "changes"),
    [
        ("appo", {"deterministic": False}),
        ("ver", {"deterministic": False, "ver": VERConfig(overlap=True)}),
        ("d4pg", {"deterministic": False, "d4pg": D4PGConfig(batch=32), "limiter": SELDOM}),
    ],
    ids=["appo", "ver overlapping", "d4pg"],
)
def test_concurrent_systems_continue(tmp_path, system, changes):
    """The learner thread ends with a part, and another begins with the next. Steps are counted once."""
    config = config_of(system, **changes)
    with Session(config, tmp_path) as session:
        steps = []
        for until in (config.steps // 3, 2 * config.steps // 3, None):
            session.run(until=until)
            steps.append(session.state.step)
        assert steps == sorted(set(steps)) and steps[-1] >= config.steps
        assert session.state.finished()


def test_until_is_a_number(tmp_path):
    config = tiny("none")
    with Session(config, tmp_path) as session:
        for wrong in ("abc", lambda: 3, 1.5):
            with pytest.raises(UsageError, match="^until is .*; allowed: a whole number$"):
                session.run(until=wrong)
        assert session.step == 0 and not session.is_over
        session.run(until=config.steps / 2)
        assert config.steps // 2 <= session.step < config.steps


def test_hyperparameters_change_between_two_parts(tmp_path):
    config = tiny("none")
    with Session(config, tmp_path) as session:
        session.run(until=config.steps // 2)
        before = weights_of(session.state)
        (learner,) = session.learners
        learner.hyperparameters.set("optimizer.learning_rate", 1e-12)
        session.run()
        for name, values in session.learners[0].policy.named_parameters():
            torch.testing.assert_close(values, before[name], rtol=0, atol=1e-6)


def test_an_unfinished_session_saves_when_it_is_closed(tmp_path):
    config = tiny("none")
    with Session(config, tmp_path) as session:
        session.run(until=config.steps // 2)
        step = session.state.step
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] == step
    assert train(config, tmp_path, resume="latest").step >= config.steps


def test_a_finished_session_does_not_run_again(tmp_path):
    with Session(tiny("none"), tmp_path) as session:
        session.run()
        with pytest.raises(UsageError, match="over"):
            session.run()


def test_a_closed_session_does_not_run_again(tmp_path):
    with Session(tiny("none"), tmp_path) as session:
        session.run(until=64)
    with pytest.raises(UsageError, match="this session is over.*resume=True continues it"):
        session.run()


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    """Neither a new session nor one that is entered again writes over it."""
    config = tiny("none", steps=64)
    first = Session(config, tmp_path)
    with first:
        first.run()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    for session in (first, Session(config, tmp_path)):
        with pytest.raises(UsageError, match="holds a run already; resume=True continues it, another folder starts"):
            session.__enter__()
    with pytest.raises(UsageError, match="holds a run already; --resume continues it, another --run-dir starts"):
        train(config, tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    with Session(tiny("none", steps=128), tmp_path, resume=True) as resumed:
        assert resumed.step == 64


def fail_inside(folder, error: Exception) -> None:
    with Session(tiny("none"), folder) as session:
        session.run(until=128)
        raise error


@pytest.mark.parametrize("error", [RuntimeError("mine"), UsageError("mine")])
def test_an_exception_between_two_parts_is_raised_and_loses_no_work(tmp_path, error):
    """A usage error deletes the folder of a run that has not begun, and no other."""
    with pytest.raises(type(error), match="mine"):
        fail_inside(tmp_path / "run", error)
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").load().state["step"] == 128
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_signal_does_not_interrupt_the_last_checkpoint(tmp_path, monkeypatch):
    plain = CheckpointFolder.save

    def signalled(self, *arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, *arguments, **options)

    with Session(tiny("none"), tmp_path) as session:
        session.run(until=128)
        monkeypatch.setattr(CheckpointFolder, "save", signalled)
    monkeypatch.undo()
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] == 128


def test_time_between_two_parts_does_not_count(tmp_path):
    with Session(tiny("none"), tmp_path) as session:
        session.run(until=128)
        before = session.state.seconds
        time.sleep(0.3)
        assert session.state.seconds == before


def test_a_signal_during_the_start_says_that_nothing_was_saved(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("paceline.session.make_pool", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), Session(tiny("lstm"), tmp_path):
        pass
    assert "stopped before training; nothing was saved" in caplog.text
