"""A configuration holds what its system reads; files of earlier versions load."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from pathlib import Path

import numpy as np
import pytest

from paceline import recipes
from paceline.accel.config import ComputeConfig
from paceline.cli.options import parse
from paceline.cli.train import TrainOptions
from paceline.collect.config import BatchingConfig, RemoteConfig
from paceline.config import RETIRED, Config, leaves
from paceline.distributed.config import PreemptionConfig
from paceline.errors import UsageError
from paceline.experience.config import LimiterConfig, ReplayConfig
from paceline.learner.config import AuxiliaryConfig, D4PGConfig, OptimizerConfig, PPOConfig
from paceline.nets.config import ControlConfig, CoreConfig, PolicyConfig, ValueConfig
from paceline.pool.config import PoolConfig
from paceline.schedule.config import APPOConfig, VERConfig
from paceline.systems import SYSTEMS, readers, unread_by

OLD = Path(__file__).parent / "old_configs"
PPO = {"ddppo", "ver", "appo"}
SETTINGS = {
    "rollout_steps": ({"rollout_steps": 7}, PPO),
    "policy.encoder": ({"policy": PolicyConfig(encoder="impala")}, set(SYSTEMS)),
    "policy.encoder_size": ({"policy": PolicyConfig(encoder_size=64)}, set(SYSTEMS)),
    "policy.normalize_obs": ({"policy": PolicyConfig(normalize_obs=True)}, set(SYSTEMS)),
    "policy.reduced": ({"policy": PolicyConfig(reduced=("terrain",))}, set(SYSTEMS)),
    "policy.hidden": ({"policy": PolicyConfig(hidden=(8,))}, PPO),
    "policy.core.kind": ({"policy": PolicyConfig(core=CoreConfig(kind="lstm"))}, PPO),
    "ppo.auxiliary.steps": ({"ppo": PPOConfig(auxiliary=AuxiliaryConfig(steps=3))}, PPO),
    "optimizer.eps": ({"optimizer": OptimizerConfig(eps=1e-6)}, PPO),
    "preemption.threshold": ({"preemption": PreemptionConfig(threshold=0.5)}, PPO),
    "compute.layer_by_layer": ({"compute": ComputeConfig(layer_by_layer=False)}, PPO),
    "batching.patience": ({"batching": BatchingConfig(patience=2.0)}, {"ver", "appo", "d4pg"}),
    "ver.overlap": ({"ver": VERConfig(overlap=True)}, {"ver"}),
    "appo.batch": ({"appo": APPOConfig(batch=64)}, {"appo"}),
    "control.value.atoms": ({"control": ControlConfig(value=ValueConfig(atoms=11))}, {"d4pg"}),
    "d4pg.steps": ({"d4pg": D4PGConfig(steps=2)}, {"d4pg"}),
    "replay.capacity": ({"replay": ReplayConfig(capacity=9)}, {"d4pg"}),
    "limiter.minimum": ({"limiter": LimiterConfig(minimum=9)}, {"d4pg"}),
    "remote.actors": ({"remote": RemoteConfig(actors=1)}, {"d4pg"}),
    "compute.precision": ({"compute": ComputeConfig(precision="bfloat16")}, set(SYSTEMS)),
    "threads": ({"threads": 1}, set(SYSTEMS)),
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_the_system_does_not_read_is_refused_by_name(setting, system):
    changes, read_by = SETTINGS[setting]
    if system in read_by:
        assert leaves(Config(system=system, **changes))[setting] != leaves(Config())[setting]
        return
    allowed = ", ".join(name for name in SYSTEMS if name in read_by)
    with pytest.raises(UsageError, match=f"^{setting} has no effect under {system}; it is read by: {allowed}$"):
        Config(system=system, **changes)


def test_the_table_of_systems_names_settings_that_exist():
    names = leaves(Config())
    for system in SYSTEMS:
        for read in (*SYSTEMS[system].reads, *unread_by(system)):
            assert any(name == read or name.startswith(f"{read}.") for name in names), read
    assert readers("pool.num_envs") == list(SYSTEMS)
    for retired in RETIRED:
        assert retired not in names


of_recipe, readers_of = functools.cache(recipes.find), functools.cache(readers)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_every_recipe_moves_to_every_system(recipe, system):
    base = of_recipe(recipe)
    moved = base.under(system)
    before, now, usual = leaves(base), leaves(moved), leaves(Config())
    for name in now:
        if name != "system":
            assert now[name] == (before[name] if system in readers_of(name) else usual[name]), name
    assert moved.system == system and base.under(base.system) == base


def test_a_system_that_does_not_exist_is_refused():
    for ask in (lambda: Config().under("dppo"), lambda: Config(system="dppo")):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="'dppo' does not exist.*allowed: ddppo, ver, appo, d4pg"):
            ask()


@pytest.mark.parametrize("recipe", ["cartpole", "doom_basic", "pendulum"])
def test_a_file_has_what_the_system_reads_and_loads_as_it_was(tmp_path, recipe):
    config = dataclasses.replace(recipes.find(recipe), seed=7, recipe=recipe)
    config.save(tmp_path / "config.json")
    written = json.loads((tmp_path / "config.json").read_text())
    for name in ("ver", "appo", "d4pg", "replay", "policy", "rollout_steps", "batching"):
        assert (name in written) == (config.system in readers(name)), name
    assert ("layer_by_layer" in written["compute"]) == (config.system != "d4pg")
    assert Config.load(tmp_path / "config.json") == config


def test_a_file_of_an_earlier_version_loads_without_what_its_system_never_read():
    config = Config.load(OLD / "appo.json")
    cartpole = recipes.find("cartpole").under("appo")
    pool = dataclasses.replace(cartpole.pool, kind="serial")
    assert config == dataclasses.replace(cartpole, steps=1000, device="cpu", recipe="cartpole", pool=pool)
    old = json.loads((OLD / "appo.json").read_text())
    assert old["ver"]["overlap"] is True and old["batching"]["inference_workers"] == 2, "the file had more"


def test_a_file_of_an_earlier_version_of_d4pg_loads():
    config = Config.load(OLD / "d4pg.json")
    pendulum = recipes.find("pendulum")
    pool = dataclasses.replace(pendulum.pool, kind="serial")
    assert config == dataclasses.replace(pendulum, steps=1100, device="cpu", recipe="pendulum", pool=pool)
    old = json.loads((OLD / "d4pg.json").read_text())
    assert old["rollout_steps"] == 77 and old["optimizer"]["schedule"] == "linear", "the file had more"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "expected an object"),
        ({"stesp": 1}, "no field 'stesp', did you mean 'steps'"),
        ({"ppo": {"clipp": 1}}, "ppo: there is no field 'clipp'"),
        ({"ppo": 3}, "ppo: expected an object"),
        ({"steps": "many"}, "steps is 'many'; allowed: a whole number"),
        ({"steps": True}, "steps is True; allowed: a whole number"),
        ({"system": "dqn"}, "system is 'dqn'; allowed: ddppo, ver, appo, d4pg"),
        ({"system": ["ver"]}, "allowed: ddppo, ver, appo, d4pg"),
        ({"policy": {"hidden": 64}}, "hidden is 64; allowed: tuple"),
        ({"ppo": {"epochs": 0}}, "ppo.epochs must be at least 1"),
        ({"log_seconds": 0}, "log_seconds must be above 0"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path, data, said):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=said):
        Config.load(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"system": "appo"}, "allowed: ddppo, ver, d4pg"),
        ({"system": "ver", "ver": VERConfig(overlap=True)}, "ver.overlap"),
        ({"system": "d4pg", "remote": RemoteConfig(actors=1)}, "remote.actors"),
    ],
)
def test_deterministic_runs_refuse_what_depends_on_timing(changes, said):
    Config(**changes)
    with pytest.raises(UsageError, match=said):
        Config(deterministic=True, **changes)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: OptimizerConfig(max_grad_norm=0.0), "optimizer.max_grad_norm must be above 0 or None, got 0.0"),
        (
            lambda: OptimizerConfig(schedule="steps"),
            "optimizer.schedule 'steps' does not exist; allowed: constant, linear",
        ),
        (lambda: PPOConfig(trace_decay=1.1), "ppo.trace_decay must be between 0 and 1, got 1.1"),
        (lambda: BatchingConfig(minimum=0.0), "batching.minimum must be above 0 and at most 1, got 0.0"),
        (
            lambda: BatchingConfig(minimum=0.6, maximum=0.5),
            "batching.minimum 0.6 must not be above batching.maximum 0.5",
        ),
        (lambda: D4PGConfig(target_share=0.0), "d4pg.target_share must be above 0 and at most 1"),
        (lambda: ReplayConfig(capacity=1), "replay.capacity must be at least 2"),
        (lambda: Config(seed=-1), "^seed must be at least 0, got -1"),
        (lambda: Config(device="tpu"), "^device 'tpu' does not exist; allowed: cpu, cuda, cuda:N, auto"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_is_allowed(make, said):
    with pytest.raises(UsageError, match=said):
        make()


@pytest.mark.parametrize(("text", "steps"), [("1e6", 1_000_000), ("2_000", 2000), ("2.5e3", 2500), ("17", 17)])
def test_whole_numbers_may_have_an_exponent(text, steps):
    _, config = parse(TrainOptions, Config(), ["--steps", text, "--threads", "1e0"], prog="train")
    assert config.steps == steps and config.threads == 1 and isinstance(config.steps, int)


@pytest.mark.parametrize("text", ["1.5", "many", "inf", "nan"])
def test_other_numbers_are_no_whole_numbers(text):
    with pytest.raises(UsageError, match=f"^--steps is '{text}'; allowed: a whole number$"):
        parse(TrainOptions, Config(), ["--steps", text], prog="train")


def test_unknown_parts_are_refused_at_once():
    """Also without a run folder to look into."""
    with pytest.raises(UsageError, match="init 'encoders' does not exist; allowed: encoder, policy, planner, critic"):
        Config(init_from="nowhere", init="encoders")


def test_whole_numbers_of_any_numeric_type_are_ints():
    config = Config(
        steps=1e5, seed=np.int64(3), seconds=np.float32(2), pool=PoolConfig(num_envs=np.int32(8), workers=2.0)
    )
    assert (config.steps, config.seed, config.pool.num_envs, config.pool.workers) == (100_000, 3, 8, 2)
    assert {type(value) for value in (config.steps, config.seed, config.pool.num_envs, config.pool.workers)} == {int}
    assert type(config.seconds) is float
    data = {"steps": 2e3, "policy": {"hidden": [np.int64(8), 4.0]}, "ppo": {"clip": np.float64(0.25)}}
    config = Config.from_settings(data, "here")
    assert (config.steps, config.policy.hidden, config.ppo.clip) == (2000, (8, 4), 0.25)
    json.dumps(config.settings())


@pytest.mark.parametrize("wrong", [1.5, np.float64(2.5), float("inf"), float("nan"), True, "3"])
def test_other_values_are_no_whole_numbers(wrong):
    for refused in (lambda: Config(steps=wrong), lambda: Config.from_settings({"steps": wrong}, "here")):
        with pytest.raises(UsageError, match="steps is .*; allowed: a whole number"):
            refused()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 1e-3}, "a configuration has no setting 'learning_rate'; allowed: optimizer.learning_rate"),
        ({"num_envs": 4}, "a configuration has no setting 'num_envs'; allowed: pool.num_envs"),
        ({"step": 4}, "a configuration has no setting 'step', did you mean 'steps'.*; allowed: env, system, steps, "),
    ],
)
def test_an_unknown_setting_is_one_line_that_names_the_right_one(settings, message):
    with pytest.raises(UsageError, match=f"^{message}") as raised:
        Config(**settings)
    assert "\n" not in str(raised.value)
    assert list(inspect.signature(Config).parameters)[:2] == ["env", "system"], "for editors and documentation"
