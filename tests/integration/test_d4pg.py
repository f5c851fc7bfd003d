"""D4PG as a whole: learns while it collects at a fixed ratio, survives its simulators and its end, and learns tasks."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from paceline.accel.config import ComputeConfig
from paceline.assembly import compiles_update
from paceline.checkpoint import CheckpointFolder
from paceline.collect.explorer import Explorer
from paceline.config import Config
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import SimulatorError, UsageError
from paceline.evaluation.evaluate import evaluate
from paceline.experience.config import LimiterConfig, ReplayConfig
from paceline.export import export
from paceline.learner.compiled import CompiledUpdate
from paceline.learner.config import D4PGConfig
from paceline.learner.d4pg import D4PGLearner
from paceline.nets.config import ControlConfig, PolicyConfig, ValueConfig
from paceline.pool.config import PoolConfig
from paceline.session import train
from tests.integration.envs import LENGTH
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, weights
from tests.pool.multi_agent import LIVES


def small(options: str = "", **changes) -> Config:
    """A run of about 1,000 steps."""
    return dataclasses.replace(
        Config(
            env=f"tests.integration.envs:Chase{options}",
            system="d4pg",
            steps=1000,
            device="cpu",
            threads=1,
            pool=PoolConfig(num_envs=4, kind="serial"),
            control=ControlConfig(
                actor_hidden=(16,), critic_hidden=(16,), value=ValueConfig(low=-40.0, high=0.0, atoms=21)
            ),
            d4pg=D4PGConfig(batch=32, steps=3),
            replay=ReplayConfig(capacity=500),
            limiter=LimiterConfig(samples_per_insert=4.0, minimum=200),
        ),
        **changes,
    )


def reports(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder of a run. Tests that write to it have a copy."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(small(), folder)
    return folder


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


@pytest.mark.parametrize("pool", [{"kind": "serial"}, {"kind": "process", "workers": 2}])
@pytest.mark.parametrize("concurrent", [True, False])
def test_draws_and_insertions_keep_their_ratio(tmp_path, pool, concurrent):
    """Whoever is faster, and what is reported is what was done."""
    config = small(pool=PoolConfig(num_envs=4, **pool), d4pg=D4PGConfig(batch=32, steps=3, concurrent=concurrent))
    run = train(config, tmp_path)
    last = reports(tmp_path)[-1]
    assert run.step == last["step"]
    assert concurrent or run.step == run.collection.collected
    assert config.steps <= run.step < config.steps + 300
    inserted, drawn = (run.collection.limiter.state_dict()[name] for name in ("inserted", "drawn"))
    assert drawn == 32 * last["updates"] == 32 * run.learners[0].updates
    assert 4.0 * (inserted - 200) == pytest.approx(drawn, abs=2 * 200)
    assert last["replay"] == len(run.collection.replay) == 500
    assert last["evaluation_return"] < 0 and last["episode_length"] == LENGTH
    # Every decision of the three streams that explore starts one transition, but for those that wait at the end.
    assert run.collection.collected - 3 * 3 <= inserted <= run.collection.collected


def test_deterministic_runs_are_bit_equal_and_so_are_resumed_ones(tmp_path):
    """2N steps at once = N, SIGTERM, resume, N: replay, priorities, noise, pending steps, statistics of observations,
    optimisers and targets."""
    options = {"d4pg": D4PGConfig(batch=32, steps=3, lowest_noise=0.01, weight_decay=0.1)}
    options |= {"policy": PolicyConfig(normalize_obs=True), "deterministic": True, "steps": 800}
    whole = small(**options)
    train(whole, tmp_path / "whole")
    train(whole, tmp_path / "again")
    assert_equal(weights(tmp_path / "whole"), weights(tmp_path / "again"))
    assert weights(tmp_path / "whole")["normalizers.0.moments.count"] > 1000
    stopping = small(f"?marker={tmp_path / 'stopped'}&harm=stop&at=150", **options)
    stopped = train(stopping, tmp_path / "parts")
    assert stopped.interrupted and 0 < stopped.step < whole.steps
    resumed = train(stopping, tmp_path / "parts", resume="latest")
    assert not resumed.interrupted and resumed.step >= whole.steps
    assert_equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    states = [CheckpointFolder(tmp_path / name / "checkpoints").load().state for name in ("whole", "parts")]
    assert states[0]["agent"].pop("parts") == states[1]["agent"].pop("parts")
    torch.testing.assert_close(states[0]["agent"], states[1]["agent"], rtol=0, atol=0)
    for name in ("replay", "limiter", "explorer"):
        one, other = (state["ranks"][0]["agent"][name] for state in states)
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_checkpoints_in_mid_run_are_whole(tmp_path):
    config = small(
        pool=PoolConfig(num_envs=4, kind="process", workers=2),
        checkpoint=dataclasses.replace(Config().checkpoint, seconds=0.05, keep=100),
    )
    train(config, tmp_path)
    assert len(list((tmp_path / "checkpoints").glob("step_*"))) > 2
    resumed = train(dataclasses.replace(config, steps=1300), tmp_path, resume="latest")
    assert 1300 <= resumed.step < 1800 and len(resumed.collection.replay) == 500


def test_a_resumed_run_counts_what_was_collected_and_not_yet_reported(tmp_path):
    """SIGTERM before anything is learned: what is in the replay are steps of the run."""
    stopping = small(f"?marker={tmp_path / 'stopped'}&harm=stop&at=20", deterministic=True, steps=500)
    stopped = train(stopping, tmp_path / "run")
    assert stopped.interrupted and stopped.step == 0 and 0 < stopped.collection.collected < 200
    resumed = train(stopping, tmp_path / "run", resume="latest")
    assert resumed.step == resumed.collection.collected >= 500


def test_segments_of_the_replay_come_back(tmp_path, monkeypatch):
    """The same to the bit where most of the replay is on disk, and resumed from an earlier checkpoint as well."""
    monkeypatch.setattr("paceline.experience.archive.SEGMENT", 64)
    train(small(deterministic=True, steps=800), tmp_path / "whole")
    stopping = small(f"?marker={tmp_path / 'stopped'}&harm=stop&at=150", deterministic=True, steps=800)
    train(stopping, tmp_path / "parts")
    assert len(list((tmp_path / "parts" / "replay" / "rank_0").glob("segment_*"))) > 5
    train(stopping, tmp_path / "parts", resume="latest")
    assert_equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


@pytest.mark.parametrize(
    "changes",
    [
        {"d4pg": D4PGConfig(batch=32, steps=1)},
        {"d4pg": D4PGConfig(batch=32, steps=3, actor_rate=1e-5)},
        {"limiter": LimiterConfig(samples_per_insert=8.0, minimum=400)},
        {"replay": ReplayConfig(capacity=300, prioritized=False)},
    ],
)
def test_a_run_is_resumed_with_other_settings(copied, changes):
    """Mistake 27: the new ones hold."""
    config = dataclasses.replace(small(**changes), steps=1200)
    run = train(config, copied, resume="latest")
    assert run.step >= 1200
    rates = {name: trained.adam["rate"] for name, trained in run.learners[0].trained.items()}
    assert rates == {"policy": config.d4pg.actor_rate, "critic": config.d4pg.critic_rate}


def test_a_replay_that_is_gone_is_collected_anew(copied, caplog):
    saved = CheckpointFolder(copied / "checkpoints").load()
    replay = saved.state["ranks"][0]["agent"]["replay"]
    replay["tail"] = {name: column[:0] for name, column in replay["tail"].items()}
    with mock.patch.object(CheckpointFolder, "load", return_value=saved):
        run = train(dataclasses.replace(small(), steps=1300), copied, resume="latest")
    assert "no longer on disk" in caplog.text and run.step >= 1300


def test_two_ranks_have_the_same_weights_and_replays_of_their_own(tmp_path):
    config = small(checkpoint=dataclasses.replace(Config().checkpoint, seconds=0.3))
    folder = str(tmp_path)

    def work():
        run = train(config, Path(folder))
        shown = run.collection.replay.state_dict()["parts"][0]["obs/obs"]
        return run.step, {name: value.clone() for name, value in run.policy.state_dict().items()}, shown

    (steps, first, mine), (other, second, theirs) = on_ranks(2, work)
    assert steps == other >= config.steps
    assert_equal(first, second)
    assert_equal(weights(tmp_path), first)
    assert not torch.equal(mine[:100], theirs[:100]), "each has its own simulators"
    alone = train(dataclasses.replace(config, steps=1300), tmp_path, resume="latest")
    assert alone.step >= 1300

    def again():
        run = train(dataclasses.replace(config, steps=1800), Path(folder), resume="latest")
        return (
            run.step,
            run.learners[0].updates,
            {name: value.clone() for name, value in run.policy.state_dict().items()},
        )

    (steps, updates, first), (_, _, second) = on_ranks(2, again)
    assert steps >= 1800 and updates > alone.learners[0].updates
    assert_equal(first, second)


@pytest.mark.parametrize(
    ("value", "prioritized", "compiled", "within"),
    [
        ("categorical", True, False, 0.1),
        # One run in twenty of a mixture is not within 0.1, and one in 27 not within 0.3; the reason is not known. Where
        # nothing is compiled or concurrent, 13 seeds were within 0.11; with quadrature for samples, within 0.15.
        pytest.param(
            "mixture", True, True, 0.3, marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
        ),
        ("scalar", False, False, 0.1),
    ],
)
def test_a_task_is_learned(tmp_path, value, prioritized, compiled, within, learning_seed):
    """D4PG and D3PG, with priorities and without: close to the number on average; an agent that says nothing is 0.6
    away. False alarms: none in 20 seeds of the categorical and of the scalar critic; 1 in 27 runs of the mixture, not
    counting 13 that a crash in PyTorch 2.11's compiler ended (a CUDA build without a visible GPU). The compiler takes
    20 s of the mixture's test."""
    config = dataclasses.replace(
        learnable(value, prioritized), compute=ComputeConfig(compile=compiled), seed=learning_seed
    )
    train(config, tmp_path)
    assert evaluate(tmp_path, episodes=20)["mean_return"] > -LENGTH * within**2


def test_nothing_acts_while_an_update_is_compiled(tmp_path, monkeypatch):
    """PyTorch's tracing patches `nn.Module` for the whole process, other threads included."""
    seen, compiling, plain = [], threading.Event(), Explorer.act

    def compile_(update, drawn, *arguments):
        compiling.set()
        time.sleep(0.2)  # many decisions take less
        compiling.clear()
        return functools.partial(_uncompiled, update, drawn)

    def act(explorer, batch):
        seen.append(compiling.is_set())
        return plain(explorer, batch)

    monkeypatch.setattr(CompiledUpdate, "_compile", compile_)
    monkeypatch.setattr(Explorer, "act", act)
    monkeypatch.setattr("paceline.assembly.require_compiler", lambda: None)
    train(small(compute=ComputeConfig(compile=True), steps=500), tmp_path)
    assert len(seen) > 100 and not any(seen)


@torch.enable_grad()
def _uncompiled(update, drawn, memories, weight, rows):
    return update._algorithm(update._networks, dataclasses.replace(drawn, weight=weight, rows=rows))


@pytest.mark.parametrize("system", ["d4pg", "ddppo"])
def test_compiling_without_a_compiler_is_refused(tmp_path, monkeypatch, system):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match="no-such-compiler is not there"):
        train(small(compute=ComputeConfig(compile=True)).under(system), tmp_path)


def test_several_ranks_are_told_that_nothing_is_compiled(caplog):
    caplog.set_level("INFO")
    group = Group(RankInfo(size=2), torch.device("cpu"), None)
    assert not compiles_update(small(compute=ComputeConfig(compile=True)), group)
    assert "on the CPU of a single rank" in caplog.text


def learnable(value: str, prioritized: bool) -> Config:
    """Enough of everything to learn to say the number."""
    return small(
        steps=3000,
        control=ControlConfig(
            actor_hidden=(32, 32), critic_hidden=(32, 32), value=ValueConfig(kind=value, low=-10.0, high=0.0)
        ),
        d4pg=D4PGConfig(batch=64, steps=1, discount=0.5, actor_rate=3e-3, critic_rate=3e-3, target_period=10),
        replay=ReplayConfig(capacity=5000, prioritized=prioritized),
        limiter=LimiterConfig(samples_per_insert=32.0, minimum=200),
    )


def test_what_goes_wrong_in_the_learner_is_what_the_user_sees(tmp_path, monkeypatch):
    def fail(self, drawn):
        raise ArithmeticError("this very error")

    monkeypatch.setattr(D4PGLearner, "step", fail)
    with pytest.raises(ArithmeticError, match="this very error"):
        train(small(), tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name == "learner"]


def test_what_goes_wrong_in_a_simulator_ends_the_learner_too(tmp_path):
    config = small("?harm=error&at=60", pool=PoolConfig(num_envs=4, kind="process", workers=2))
    with pytest.raises(SimulatorError, match="this very error"):
        train(dataclasses.replace(config, steps=10**6), tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name == "learner"]


def test_a_killed_simulator_loses_only_its_unfinished_steps(tmp_path, caplog):
    config = small(
        f"?marker={tmp_path / 'killed'}&harm=kill&at=100",
        pool=PoolConfig(num_envs=4, kind="process", workers=2, on_error="restart"),
    )
    run = train(config, tmp_path / "run")
    assert "replacing a simulator" in caplog.text
    assert run.step >= config.steps
    assert all(report["episode_length"] in (None, LENGTH) for report in reports(tmp_path / "run"))


def test_agents_out_of_the_game_are_not_experience(tmp_path):
    """Mistake 28, of agents with boxes of actions: only steps of those in the game are collected."""
    run = train(
        small(env="tests.integration.envs:MortalBox?env=1", steps=800, replay=ReplayConfig(capacity=1000)), tmp_path
    )
    assert run.step >= 800
    shown = run.collection.replay.state_dict()["parts"][0]["obs/obs"].long()
    agent, step = shown[:, 1], shown[:, 3]
    lives = torch.tensor(list(LIVES.values()))
    assert len(shown) > 700 and (step < lives[agent]).all(), "what a dead agent sees is nothing to learn from"
    seen = torch.bincount(agent * 4 + step, minlength=12).view(3, 4) > 0
    assert (seen == (torch.arange(4) < lives[:, None])).all(), "and every step of a living one is"


def test_the_memory_of_the_replay_is_said(tmp_path, caplog):
    """Two observations, an action, a reward and a discount, of four bytes each."""
    caplog.set_level("INFO")
    run = train(small(steps=400, replay=ReplayConfig(capacity=1000)), tmp_path)
    assert "replay: 1,000 transitions of 20 bytes, 0.00 GiB" in caplog.text
    assert run.collection.replay.bytes == 20 * 1000


def test_bounds_that_cut_returns_off_are_named(tmp_path, caplog):
    config = small(control=ControlConfig(actor_hidden=(8,), critic_hidden=(8,), value=ValueConfig(low=-0.1, high=1.0)))
    train(config, tmp_path)
    said = [record.getMessage() for record in caplog.records if "discounted returns" in record.getMessage()]
    assert len(said) == 1 and "between -0.1 and 1" in said[0] and "--control.value.low" in said[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "gym:CartPole-v1"}, "d4pg needs one bounded Box of actions.*ddppo, ver or appo"),
        ({"env": "gym:CartPole-v1", "steps": 200}, "d4pg needs one bounded Box of actions"),
        ({"env": "tensor:cartpole", "pool": PoolConfig(num_envs=8)}, "bounded Box"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes, said):
    with pytest.raises(UsageError, match=said):
        train(small(**changes), tmp_path)


def test_a_run_that_would_learn_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"limiter\.minimum"):
        train(small(steps=200), tmp_path)


@pytest.mark.parametrize("format", ["onnx", "torchscript"])
def test_its_policy_is_exported(copied, format):
    if format == "onnx":
        pytest.importorskip("onnx")
    exported = export(copied, format)  # compares the file with the policy
    assert exported.verified_with is not None
    assert [port.name for port in (*exported.inputs, *exported.outputs)] == ["obs", "action"]


def test_its_policy_is_evaluated_and_has_nothing_to_sample(trained):
    assert evaluate(trained, episodes=4)["mean_length"] == LENGTH
    with pytest.raises(UsageError, match="no actions to sample"):
        evaluate(trained, episodes=4, sampled=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("value", ["categorical", "mixture", "scalar"])
def test_a_run_on_a_gpu(tmp_path, value):
    config = small(
        device="cuda", control=ControlConfig(actor_hidden=(16,), critic_hidden=(16,), value=ValueConfig(kind=value))
    )
    run = train(config, tmp_path)
    assert run.step >= config.steps
    assert all(torch.isfinite(values).all() for values in run.policy.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("prioritized", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_task_is_learned_on_a_gpu(tmp_path, prioritized, recorded):
    config = dataclasses.replace(learnable("categorical", prioritized), device="cuda")
    config = dataclasses.replace(config, compute=ComputeConfig(cuda_graphs=recorded))
    train(config, tmp_path)
    assert evaluate(tmp_path, episodes=20)["mean_return"] > -LENGTH * 0.1**2


def test_layers_compute_in_the_precision_that_was_asked_for(tmp_path):
    run = train(small(compute=ComputeConfig(precision="bfloat16"), steps=400), tmp_path)
    learner, acting = run.learners[0], run.collection.explorer._policy
    torsos = [learner.policy.torso, learner._critic.module.torso, acting.torso]
    torsos += [target.module.torso for target in (learner._target_policy, learner._target_critic)]
    assert [torso.precision for torso in torsos] == [torch.bfloat16] * 5
    assert all(torch.isfinite(value).all() for value in run.policy.parameters())


def test_a_run_goes_on_in_envpool_with_new_episodes(tmp_path, caplog):
    """The simulators of its checkpoint are another pool's."""
    pytest.importorskip("dm_control")
    pytest.importorskip("envpool")
    config = small(env="dmc:cartpole-balance?flat=true", steps=400)
    train(config, tmp_path)
    other = dataclasses.replace(config, steps=800, pool=PoolConfig(num_envs=4))
    with caplog.at_level("WARNING"):
        run = train(other, tmp_path, resume="latest")
    assert "EnvPool cannot continue" in caplog.text
    assert not run.pool.can_restore and run.step >= 800
