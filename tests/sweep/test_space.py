"""The space of a sweep: what a file may say, and the one line that refuses anything else."""

from __future__ import annotations

import json

import pytest

from paceline import recipes
from paceline.cli.options import options_of, parse, without_options
from paceline.cli.train import TrainOptions
from paceline.errors import UsageError
from paceline.sweep.space import SearchChoices, SearchRange, changed, load_space

CONFIG = recipes.find("cartpole")
LOG = {"low": 1e-4, "high": 1e-2, "log": True}


def load(tmp_path, data, name="space.json"):
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return load_space(path, CONFIG)


def test_ranges_and_choices(tmp_path):
    entries = {
        "optimizer.learning_rate": LOG,
        "ppo.epochs": {"low": 1, "high": 8},
        "policy.hidden": {"choices": [[32], [64, 64]]},
        "ppo.clip": {"low": 0.1, "high": 0.4},
        "ppo.normalize_advantage": {"choices": [True, False]},
    }
    space = load(tmp_path, entries)
    assert space["optimizer.learning_rate"] == SearchRange(low=1e-4, high=1e-2, log=True)
    assert space["ppo.epochs"] == SearchRange(low=1, high=8, is_int=True)
    assert space["ppo.clip"] == SearchRange(low=0.1, high=0.4), "an optional number"
    assert space["policy.hidden"] == SearchChoices(([32], [64, 64]))


def test_toml_has_tables_or_quoted_names(tmp_path):
    text = '"ppo.epochs" = {low = 1, high = 4}\n[optimizer.learning_rate]\nlow = 1e-4\nhigh = 1e-2\nlog = true\n'
    assert set(load(tmp_path, text, "space.toml")) == {"ppo.epochs", "optimizer.learning_rate"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"ppo.epoch": {"low": 1, "high": 2}},
            "ppo.epoch: there is no such setting of ddppo, did you mean 'ppo.epochs'",
        ),
        ({"appo.max_lag": {"low": 1, "high": 2}}, "no such setting of ddppo"),
        ({"ppo": {"epochs": {"low": 0, "high": 2}}}, "ppo.epochs: .*at least 1, got 0"),
        ({"ppo.epochs": {"low": 1.5, "high": 2}}, "allowed: whole numbers"),
        ({"ppo.epochs": {"low": 4, "high": 2}}, "low 4 above high 2"),
        ({"ppo.epochs": {"low": 1}}, 'is {"low": 1}; allowed: '),
        ({"ppo.epochs": {"low": 1, "high": 2, "choices": [1]}}, "allowed: "),
        ({"ppo.epochs": {"low": 1, "high": 2, "step": 1}}, "allowed: "),
        ({"ppo.epochs": {"choices": []}}, "allowed: "),
        ({"ppo.epochs": {"choices": ["x"]}}, "'x'; allowed: a whole number"),
        ({"ppo.epochs": 3}, "ppo.epochs is 3; allowed: "),
        ({"policy.activation": {"low": 1, "high": 2}}, "is not a number"),
        ({"policy.activation": {"choices": ["swosh"]}}, "swosh"),
        ({"optimizer.learning_rate": {**LOG, "low": 0}}, "must be above 0|above 0"),
        ({"optimizer.learning_rate": {**LOG, "log": 1}}, "has log 1; allowed: true, false"),
        ({"seed": {"low": 1, "high": 2}}, "the same in all trials"),
        ({}, "has no settings"),
        ([], "is a list"),
        ("{", "is not JSON"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, data, message):
    with pytest.raises(UsageError, match=message) as raised:
        load(tmp_path, data)
    assert "\n" not in str(raised.value) and "space.json" in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_space(tmp_path / "none.json", CONFIG)
    with pytest.raises(UsageError, match=r"ends in '.txt'; allowed: .json, .toml"):
        load(tmp_path, "", "space.txt")


def test_a_value_becomes_an_option_and_back():
    values = {
        "optimizer.learning_rate": 0.0006824078427098838,
        "policy.hidden": [32, 16],
        "ppo.normalize_advantage": False,
        "ppo.clip": None,
    }
    options = [part for name, value in values.items() for part in options_of(name, value)]
    assert options[-3:] == ["--ppo.no-normalize-advantage", "--ppo.clip", "None"]
    _, config = parse(TrainOptions, CONFIG, options, prog="test")
    assert config == changed(CONFIG, values, "test")


def test_own_options_are_taken_out():
    arguments = ["--steps", "9", "--space", "a.json", "--jobs=2", "--no-prune", "--ppo.epochs", "3"]
    assert without_options(arguments, ("--space", "--jobs"), ("--no-prune",)) == ["--steps", "9", "--ppo.epochs", "3"]
