"""Statistics over seeds, and runs that are kept."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import numpy as np
import pytest

pytest.importorskip("scipy")

from benchmarks import efficiency, learning
from benchmarks.learning import Curve, interval, over_steps, slug, steps_to, train_all
from paceline import recipes
from paceline.cli.options import parse
from paceline.cli.train import TrainOptions
from paceline.config import Config, leaves


def test_an_interval_is_the_mean_and_its_standard_error_times_students_t():
    assert interval([0.25]) == "0.25"
    assert interval([1.0, 2.0, 3.0]) == "2.00 ± 2.48"
    assert interval([float(x) for x in range(12)]) == "5.50 ± 2.29"


def test_every_step_counts_alike_however_often_it_was_reported():
    steps = np.array([100, 110, 120, 200, 300])
    curve = Curve(steps, steps / 10, np.array([0.0, 0.1, 0.2, 1.0, 1.0]))
    assert over_steps(curve, 200) == pytest.approx(0.5)
    assert over_steps(curve, 300, begin=200) == pytest.approx(1.0)
    assert math.isnan(over_steps(curve, 200, begin=250))


def test_a_return_is_reached_between_reports_and_not_by_the_first_episodes():
    curve = Curve(np.array([10, 100, 200, 400]), np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.9, -1.0, 0.0, 1.0]))
    assert steps_to(curve, 0.5, begin=50) == pytest.approx(300)
    assert steps_to(curve, 0.5) == 10
    assert steps_to(curve, 0.5, begin=250) == 400
    assert steps_to(curve, 1.5) == math.inf


def test_steps_to_a_return_are_compared_seed_by_seed_where_all_have_it(capsys):
    def line(steps: int) -> Curve:
        return Curve(np.array([0, steps]), np.array([0.0, 1.0]), np.array([0.0, 1.0]))

    never = Curve(np.array([0, 10]), np.array([0.0, 1.0]), np.array([0.0, 0.1]))
    curves = {"ddppo": [line(1000), line(2000)], "ver": [line(1100), line(2100)], "appo": [line(1000), never]}
    efficiency.print_steps(0.5, 0, curves)
    _, _, first, second, third = (row for row in capsys.readouterr().out.splitlines() if row.startswith("|"))
    assert [cell.strip() for cell in first.split("|")[1:4]] == ["ddppo", "2 of 2", "750"]
    assert [cell.strip() for cell in second.split("|")[2:6]] == ["2 of 2", "800", "800 ± 3,177", "50 ± 0"]
    assert [cell.strip() for cell in third.split("|")[2:6]] == ["1 of 2", "never", "", ""]


def test_steps_to_a_return_are_asked_of_one_task():
    with pytest.raises(SystemExit, match="needs exactly one task"):
        efficiency.Plan(reach=0.5)


def test_runs_that_are_kept_are_not_run_again(tmp_path, monkeypatch):
    ran = []

    def train(arguments, cores, runs):
        ran.append(arguments)
        return json.dumps({"step": 8, "seconds": 1.0, "episode_return": len(ran)}) + "\n"

    monkeypatch.setattr(learning, "train", train)
    jobs = {("Doom, my_way", "appo, in turns", seed): ["doom", "--seed", str(seed)] for seed in (1, 2)}
    assert slug(next(iter(jobs))) == "doom-my_way-appo-in-turns-1"
    first = train_all(jobs, at_once=1, keep=tmp_path / "runs")
    again = train_all(jobs, at_once=1, keep=tmp_path / "runs")
    assert len(ran) == 2 and all(first[job].returns == again[job].returns for job in jobs)
    with pytest.raises(RuntimeError, match="other arguments"):
        train_all({("new", 1): [], **jobs}, at_once=1, keep=tmp_path / "runs", device="cuda")
    assert len(ran) == 2, "it is refused before anything is run"


EVERY_TASK = efficiency.TASKS | efficiency.LONG_TASKS


@functools.cache
def asked(task: str, system: str) -> Config:
    """What the command line of a task and a system, or of a variant, asks for."""
    recipe, *rest = EVERY_TASK[task].split()
    rest += [*(efficiency.SYSTEMS | efficiency.VARIANTS)[system].split(), "--pool.kind", "process"]
    return parse(TrainOptions, recipes.find(recipe), rest, prog="train")[1]


@pytest.mark.parametrize("system", sorted(efficiency.SYSTEMS))
@pytest.mark.parametrize("task", sorted(EVERY_TASK))
def test_all_tasks_can_be_asked_for_under_all_systems(task, system):
    config = asked(task, system)
    assert config.system == system and config.pool.kind == "process"


@pytest.mark.parametrize("variant", sorted(efficiency.VARIANTS))
def test_all_tasks_can_be_asked_for_under_all_variants(variant):
    """The options of a variant are those of its system in all tasks. To parse them once saves seconds."""
    system = variant.split(",")[0]
    words = efficiency.VARIANTS[variant].split()
    names = [word[2:].replace("-", "_").replace(".no_", ".") for word in words if word.startswith("--")]
    values = leaves(asked("CartPole", variant))
    for task in EVERY_TASK:
        settings = dataclasses.asdict(asked(task, system))
        for name in names:
            *sections, last = name.split(".")
            functools.reduce(dict.__getitem__, sections, settings)[last] = values[name]
        found = Config.from_settings(settings, variant)
        assert found.system == system and found.pool.kind == "process"
        assert {name: leaves(found)[name] for name in names} == {name: values[name] for name in names}


def test_a_run_that_said_too_little_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "train", lambda *_: '{"step": 8, "seconds": 1.0}\n')
    with pytest.raises(RuntimeError, match="no report of cartpole, 1 has 'episode_return': it was too short"):
        train_all({("cartpole", 1): []}, at_once=1, keep=tmp_path)
    assert not list(tmp_path.iterdir())
