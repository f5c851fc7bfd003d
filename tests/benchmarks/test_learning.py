"""What benchmarks of learning say of several seeds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tyro

from benchmarks import efficiency, learning
from benchmarks.learning import Curve, interval, over_steps, slug, train_all
from paceline import recipes
from paceline.config import Config


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


@pytest.mark.parametrize("system", sorted(efficiency.SYSTEMS | efficiency.VARIANTS))
@pytest.mark.parametrize("task", sorted(efficiency.TASKS | efficiency.LONG_TASKS))
def test_all_tasks_can_be_asked_for_under_all_systems(task, system):
    recipe, *rest = (efficiency.TASKS | efficiency.LONG_TASKS)[task].split()
    rest += [*(efficiency.SYSTEMS | efficiency.VARIANTS)[system].split(), "--pool.kind", "process"]
    options = tyro.cli(Config, args=rest, default=recipes.find(recipe))
    assert options.system == system.split(",")[0] and options.pool.kind == "process"


def test_a_run_that_said_too_little_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "train", lambda *_: '{"step": 8, "seconds": 1.0}\n')
    with pytest.raises(RuntimeError, match="no report of cartpole, 1 has 'episode_return': it was too short"):
        train_all({("cartpole", 1): []}, at_once=1, keep=tmp_path)
    assert not list(tmp_path.iterdir())
