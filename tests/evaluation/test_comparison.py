"""Reports of several runs: groups, aggregates, missing metrics, tasks, commands and evaluations."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline import recipes
from paceline.cli import main as cli
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation.compared_runs import measures_of
from paceline.evaluation.report import write_report
from paceline.evaluation.run_groups import ComparedRun, grouped
from paceline.run_records import evaluations_of, record_evaluation, starts_of
from paceline.sims.navigation.plans.examples import plan_text
from tests.evaluation.runs import make_run
from tests.evaluation.test_report import check


def fake_run(folder: Path, *, value: float = 1.0, metric: str = "episode_return", **settings) -> Path:
    """A run folder with a configuration and a metric that rises to `value`."""
    config = dataclasses.replace(recipes.find("cartpole"), **settings)
    folder.mkdir(parents=True)
    config.save(folder / "config.json")
    rows = [{"step": 1000 * n, "seconds": float(n), metric: value * n / 20} for n in range(1, 21)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def with_ppo(**settings) -> dict:
    return {"ppo": dataclasses.replace(recipes.find("cartpole").ppo, **settings)}


@pytest.fixture
def six(tmp_path) -> list[Path]:
    """Two configurations of three seeds each."""
    few = [fake_run(tmp_path / f"few{seed}", seed=seed, value=100 + seed, **with_ppo(epochs=2)) for seed in range(3)]
    return few + [fake_run(tmp_path / f"many{seed}", seed=seed, value=200 + seed) for seed in range(3)]


def test_seeds_of_a_configuration_are_one_group_named_by_what_differs(six):
    few, many = grouped([ComparedRun.load(folder) for folder in six])
    assert (few.name, many.name) == ("ppo.epochs 2", "ppo.epochs 6")
    assert [run.name for run in many.runs] == ["many0", "many1", "many2"]
    np.testing.assert_allclose(few.results("gym:CartPole-v1", "episode_return"), [95.0, 95.95, 96.9])


def test_a_page_shows_groups_curves_profiles_differences_and_runs(six):
    path = write_report(six[0], others=six[1:])
    assert path == six[0] / "comparison.html" and not (six[0] / "report.html").exists()
    text = path.read_text()
    page = check(text, six[0])
    assert page.ids == ["task-0", "differences", "runs"]
    for heading in ("Return over steps", "Performance profiles", "Interquartile mean and its interval"):
        assert heading in page.headings
    for words in ("ppo.epochs 2", "95.95", "95 to 96.9", "not recorded", "none yet", ">many2<"):
        assert words in text


def test_many_differences_make_short_names_and_a_table(tmp_path):
    other = with_ppo(epochs=2, minibatches=4, entropy_coef=0.01, discount=0.9)
    runs = [fake_run(tmp_path / "one", seed=1), fake_run(tmp_path / "other", seed=2, **other)]
    first, second = grouped([ComparedRun.load(folder) for folder in runs])
    assert (first.name, second.name) == ("group A", "group B")
    assert set(first.settings) == {"ppo.epochs", "ppo.minibatches", "ppo.discount", "ppo.entropy_coef"}
    assert "ppo.minibatches" in write_report(runs[0], others=runs[1:]).read_text()


def test_runs_of_several_tasks_are_compared_by_task_and_over_all(tmp_path, caplog):
    runs = []
    for env, scale in (("gym:CartPole-v1", 1.0), ("gym:Acrobot-v1", -100.0)):
        for epochs in (2, 6):
            folders = [tmp_path / f"{env[4:8]}{epochs}{seed}" for seed in range(3)]
            runs += [
                fake_run(folder, env=env, seed=seed, value=scale * (epochs + 0.1 * seed), **with_ppo(epochs=epochs))
                for seed, folder in enumerate(folders)
            ]
    with caplog.at_level("INFO"):
        text = write_report(runs[0], others=runs[1:]).read_text()
    assert "runs of 2 tasks: each task has its own section" in caplog.text
    page = check(text, runs[0])
    assert page.ids == ["tasks", "task-0", "task-1", "differences", "runs"]
    assert page.headings[0] == "gym:CartPole-v1 and gym:Acrobot-v1"
    assert "gym:Acrobot-v1: return" in page.headings and "mean nothing outside of this page" in text


def test_a_setting_that_differs_only_between_tasks_makes_no_group(tmp_path):
    runs = [fake_run(tmp_path / "a"), fake_run(tmp_path / "b", env="gym:Acrobot-v1", rollout_steps=32)]
    (group,) = grouped([ComparedRun.load(folder) for folder in runs])
    assert group.name == "all runs"


def test_missing_metrics_never_crash_a_report(six, tmp_path, caplog):
    fake_run(tmp_path / "other_metric", metric="entropy", seed=7)
    silent = fake_run(tmp_path / "silent", seed=8)
    (silent / "metrics.jsonl").unlink()
    odd = fake_run(tmp_path / "odd", seed=9)
    (odd / "metrics.jsonl").write_text('{"step": 5, "episode_return": null}\n{"step": 7, "entropy": "x"}\n')
    text = write_report(six[0], others=[*six[1:], tmp_path / "other_metric", silent, odd]).read_text()
    check(text, six[0])
    assert "silent has not reported anything yet" in caplog.text and "other_metric has no episode_return" in caplog.text
    assert "no reports" in text
    text = write_report(silent, others=[odd]).read_text()
    assert "No run has reported episode_return." in text
    check(write_report(tmp_path / "other_metric").read_text(), tmp_path)


def test_one_run_without_times_has_a_report(tmp_path):
    run = fake_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"step": 1, "episode_return": 2.0, "sps": 3.0}\n{"step": 2, "sps": 4.0}\n')
    assert "Episode return over steps" in check(write_report(run).read_text(), run).headings


def test_another_metric_can_be_compared(six, tmp_path):
    assert "No run has reported" not in write_report(six[0], others=six[1:], metric="seconds").read_text()
    with pytest.raises(UsageError, match="no run has the metric 'episode_retrun'"):
        write_report(six[0], others=six[1:], metric="episode_retrun")
    with pytest.raises(UsageError, match="--metric is for a report of several runs"):
        write_report(six[0], metric="seconds")


@pytest.mark.parametrize("is_run", [False, True])
def test_bad_folders_are_refused_in_one_line(six, tmp_path, monkeypatch, capsys, is_run):
    bad = six[0] if is_run else tmp_path / "nothing"
    monkeypatch.setattr("sys.argv", ["paceline", "report", str(six[0]), str(six[1]), str(bad)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert ended.value.code == 2
    assert ("a run is given more than once" if is_run else "not the folder of a run") in line


def test_starts_and_evaluations_are_recorded_and_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/bin/paceline", "train", "cartpole", "--seed", "a b"])
    monkeypatch.setattr("paceline.run_records.commit_of", lambda folder: f"commit of {folder}")
    run = make_run(tmp_path / "run", "gym:CartPole-v1")
    (start,) = starts_of(run)
    assert start["command"] == "paceline train cartpole --seed 'a b'"
    assert start["commit"] == f"commit of {Path.cwd()}" and start["paceline"].startswith("0.")
    monkeypatch.setattr("sys.argv", ["paceline", "eval", str(run), "--episodes", "3", "--json"])
    cli.main()
    assert json.loads(capsys.readouterr().out) == evaluations_of(run)[-1]
    text = write_report(run, others=[fake_run(tmp_path / "other")]).read_text()
    assert "paceline train cartpole --seed &#x27;a b&#x27;" in text and "3 episodes, step_256, deterministic" in text


def test_evaluations_elsewhere_and_of_past_selves_are_not_those_of_the_run(tmp_path):
    run = make_run(tmp_path / "run", "gym:CartPole-v1")
    own = {"env": "gym:CartPole-v1", "policy": "0", "mean_return": 20.5, "ci95_return": [20.0, 21.0], "episodes": 7}
    record_evaluation(run, own)
    record_evaluation(run, own | {"env": "gym:CartPole-v1?max_episode_steps=5", "episodes": 8})
    record_evaluation(run, own | {"policy": "0@100", "episodes": 9})
    text = write_report(run, others=[fake_run(tmp_path / "other")]).read_text()
    assert "7 episodes" in text and "8 episodes" not in text and "9 episodes" not in text


def test_an_evaluation_in_the_runs_own_plans_is_its_own_however_they_are_named(tmp_path, monkeypatch):
    """Runs of earlier versions have relative paths."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "studio.json").write_text(plan_text("studio"))
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run", "pointnav?plans=home")
    own = {"env": f"pointnav?plans={tmp_path.resolve()}/home", "mean_return": 2.5, "ci95_return": [2.0, 3.0]}
    record_evaluation(run, own | {"policy": "0", "episodes": 7})
    assert "7 episodes" in write_report(run, others=[fake_run(tmp_path / "other")]).read_text()


def test_runs_are_compared_where_their_simulator_is_not_installed(tmp_path, monkeypatch):
    for name in ("envpool", "paceline.envs.envpool"):
        monkeypatch.setitem(sys.modules, name, None)
    env = "envpool:Breakout-v5?frame_skip=2"
    one, other = (fake_run(tmp_path / name, env=env) for name in ("one", "other"))
    record_evaluation(one, {"env": env, "policy": "0", "mean_return": 2.0, "ci95_return": [1, 3], "episodes": 7})
    assert "7 episodes" in write_report(one, others=[other]).read_text()


def test_a_comparison_says_what_was_played(tmp_path):
    """Episodes of training do not stand beside those of another run's validation."""
    run = make_run(tmp_path / "run", "gym:CartPole-v1")
    own = {"policy": "1", "policies": 2, "mean_return": 20.5, "ci95_return": [20.0, 21.0], "checkpoint": "step_256"}
    record_evaluation(run, own | {"split": "val", "episodes": 7})
    record_evaluation(run, own | {"split": "train", "episodes": 8})
    text = write_report(run, others=[fake_run(tmp_path / "other")]).read_text()
    assert "7 episodes, val, step_256, deterministic, policy 1" in text and "8 episodes" not in text


def test_damaged_records_are_left_out(tmp_path):
    record_evaluation(tmp_path, {"spl": 0.5, "spl_ci95": [0.4, 0.6], "success": None, "success_ci95": None})
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write('[1]\n{"result": 3}\n{"da')
    (result,) = evaluations_of(tmp_path)
    assert measures_of(result) == [("spl", 0.5, [0.4, 0.6])]


def test_a_run_that_differs_only_in_how_often_it_reports_is_of_the_same_group(tmp_path):
    runs = [fake_run(tmp_path / "a"), fake_run(tmp_path / "b", log_seconds=3.0)]
    assert len(grouped([ComparedRun.load(folder) for folder in runs])) == 1
    assert Config.load(runs[1] / "config.json").log_seconds == 3.0
