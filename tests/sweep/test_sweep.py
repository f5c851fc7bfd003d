"""Sweeps: the objective, trials that end in every way, interruption, and the command."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("optuna")

from paceline.cli import main as cli
from paceline.cli.sweep import _planner
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation.history import History
from paceline.population.launch import MemberPlan
from paceline.sweep.objective import Objective
from paceline.sweep.page import write_page
from paceline.sweep.search import Search
from paceline.sweep.space import SearchChoices, SearchRange
from paceline.sweep.trials import TrialProcesses
from tests.evaluation.test_report import check

SPACE = {"x": SearchRange(low=0.0, high=1.0), "kind": SearchChoices(("a", [1, 2]))}
STEPS = 100
RUN = """
import json, sys, time, pathlib
folder, behaviour = pathlib.Path(sys.argv[1]), sys.argv[2]
folder.mkdir(exist_ok=True)
with open(folder / "metrics.jsonl", "a") as file:
    for step in range(10, 101, 10):
        report = {"step": step, "seconds": step / 10, "episode_return": step * float(sys.argv[3])}
        file.write(json.dumps(report) + "\\n")
        file.flush()
        if behaviour == "hang" and step == 50:
            (folder / "waits").touch()
            time.sleep(60)
        if behaviour == "fail" and step == 50:
            sys.exit("it broke")
"""


def history(steps, values) -> History:
    return History({"step": np.array(steps, float), "episode_return": np.array(values, float)})


@pytest.mark.parametrize(
    ("statistic", "window", "value"),
    [("median", 0.5, 30.0), ("mean", 0.5, 40.0), ("last", 0.5, 10.0), ("max", 1.0, 80.0), ("median", 0.01, 10.0)],
)
def test_the_objective_is_a_statistic_of_the_last_reports(statistic, window, value):
    run = history([20, 40, 50, 60, 80, 100, 110], [1, 2, 80, 30, 20 + 20, 10, np.nan])
    run.columns["episode_return"][4] = 40 if statistic == "mean" else 30
    found = Objective(metric="episode_return", statistic=statistic, window=window).of(run)
    assert found == pytest.approx(value)


def test_the_objective_of_a_part_of_a_run_and_of_none():
    objective = Objective(metric="episode_return", statistic="last")
    assert objective.of(history([10, 20, 30], [1, 2, 3]), until=20) == 2
    assert objective.of(history([10, 20], [np.nan, 2]), until=10) is None
    assert Objective(metric="spl").of(history([10], [1])) is None
    with pytest.raises(UsageError, match="--window is 0; allowed: above 0, up to 1"):
        Objective(metric="x", window=0.0)


def sweep(folder: Path, behaviours: list[str], *, jobs: int = 2, show=None, **options):
    """Run trials that behave as told, in turn. Their returns are 100, 101 and so on."""
    search = Search(folder, SPACE, minimize=False, prune=options.pop("prune", True), seed=1)
    count = len(search.study.trials)

    def plan(trial, place):
        number = trial.number - count
        command = [sys.executable, "-c", RUN, str(folder / trial.folder), behaviours[number], str(1 + number / 100)]
        log = folder / f"{trial.folder}.log"
        return MemberPlan(
            name=trial.folder, folder=folder / trial.folder, log=log, new=command, resumed=command, cores=[0], gpus=None
        )

    objective = Objective(metric=options.pop("metric", "episode_return"), statistic="last")
    processes = TrialProcesses(search, objective, plan, steps=STEPS, seconds=options.pop("seconds", None))
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        if show is not None:
            show(processes, line)

    return search, processes.run(len(behaviours), jobs, note), lines


def test_a_trial_that_fails_is_recorded_and_the_sweep_goes_on(tmp_path):
    search, code, lines = sweep(tmp_path, ["", "fail", ""])
    assert code == 0 and [one.outcome for one in search.results()] == ["complete", "failed", "complete"]
    assert search.results()[1].error == "it broke" and "trial_0001 failed: it broke" in lines
    assert [one.folder for one in search.ranked()] == ["trial_0002", "trial_0000"]
    assert search.ranked()[0].value == pytest.approx(102) and search.ranked()[0].values["kind"] in ("a", [1, 2])
    again, code, lines = sweep(tmp_path, ["", "", ""])
    assert code == 0 and not lines and again.results() == search.results(), "it was finished"


@pytest.mark.parametrize(("seconds", "value"), [(None, 20.0), (5.0, 10.0)])
def test_a_bad_trial_is_pruned_at_a_fifth_of_its_steps_or_seconds(tmp_path, monkeypatch, seconds, value):
    monkeypatch.setattr("paceline.sweep.search.FREE_TRIALS", 2)
    monkeypatch.setattr("paceline.sweep.trials.READ_SECONDS", 0.05)

    search = Search(tmp_path, SPACE, minimize=False, prune=True, seed=1)
    for good in (1000.0, 2000.0):
        trial = search.ask()
        for point in range(1, 20):
            trial.should_stop(point, good)
        trial.complete(good)
    search, code, lines = sweep(tmp_path, ["hang"] * 3, jobs=1, seconds=seconds)
    assert code == 0 and search.results()[-1].outcome == "pruned" and search.results()[-1].value == pytest.approx(value)
    assert any("pruned" in line for line in lines)


@pytest.mark.parametrize("minimize", [False, True])
def test_a_trial_is_compared_with_the_median_at_the_same_point(tmp_path, minimize):
    """A good beginning does not protect a trial that collapses, and a bad one does not end a trial that is good."""
    sign = -1.0 if minimize else 1.0

    def stops_at(values: dict[int, float]) -> list[int]:
        trial = search.ask()
        return [point for point, value in values.items() if trial.should_stop(point, sign * value)]

    search = Search(tmp_path, SPACE, minimize=minimize, prune=True, seed=1)
    for number in range(5):
        assert stops_at(dict.fromkeys(range(1, 20), -500.0)) == [], "five trials are complete first"
        trial = search.ask()
        assert not any(trial.should_stop(point, sign * (10 * point + number)) for point in range(1, 20))
        trial.complete(sign * (190 + number))
    assert stops_at({1: 999.0, 3: -500.0, 4: 41.0, 5: 52.0, 6: 62.1, 7: 71.9, 19: 200.0}) == [4, 7]
    assert stops_at(dict.fromkeys(range(1, 20), 999.0)) == []
    search = Search(tmp_path, SPACE, minimize=minimize, prune=False, seed=1)
    assert stops_at(dict.fromkeys(range(1, 20), -500.0)) == []


def test_a_stopped_sweep_continues_its_trials_and_leaves_no_process(tmp_path):
    def interrupt(processes, line):
        def wait() -> None:
            while not (tmp_path / "trial_0000" / "waits").exists():
                time.sleep(0.02)
            processes._count(2, None)

        threading.Thread(target=wait).start()

    search, code, lines = sweep(tmp_path, ["hang"], jobs=1, show=interrupt)
    assert code == 130 and search.results() == [] and lines[-1] == "trial_0000 stopped"
    values = search.study.trials[0].params
    search, code, lines = sweep(tmp_path, [""], jobs=1)
    (result,) = search.results()
    assert code == 0 and result.folder == "trial_0000" and result.number == 1
    assert search.study.trials[1].params == values, "the same settings again, in the same run folder"


def test_a_misspelt_metric_is_said_at_the_first_report(tmp_path, monkeypatch):
    """A trial may take hours."""
    monkeypatch.setattr("paceline.sweep.trials.READ_SECONDS", 0.05)
    lines: list[str] = []

    def stop(processes, line):
        lines.append(line)
        if "no metric" in line:
            processes._count(2, None)

    _, code, _ = sweep(tmp_path, ["hang"], metric="episode_retrun", jobs=1, show=stop)
    assert code == 130 and "did you mean 'episode_return'" in lines[1] and "Some metrics come later" in lines[1]


def test_a_metric_that_no_run_has_ends_the_sweep(tmp_path):
    with pytest.raises(UsageError, match="runs have no metric 'episode_spl'.*allowed: episode_return, seconds, step"):
        sweep(tmp_path, ["", ""], metric="episode_spl", jobs=1)


def test_the_page_has_history_importances_and_all_trials(tmp_path):
    search = Search(tmp_path, SPACE, minimize=True, prune=True, seed=1)
    for _ in range(8):
        trial = search.ask()
        trial.complete(trial.values["x"])
    trial = search.ask()
    trial.fail("it <broke>")
    assert set(search.importances()) == {"x", "kind"}
    objective = Objective(metric="value_loss", minimize=True)
    text = write_page(tmp_path, "task", search, SPACE, objective, "paceline train x").read_text()
    page = check(text, tmp_path)
    assert page.ids == ["history", "settings", "best", "trials"] and "it &lt;broke&gt;" in text
    assert "Importance of the settings" in page.headings and "8 complete, 1 failed" in text


def run_command(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["paceline", "sweep", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cartpole"], "needs --space FILE"),
        (["cartpole", "--space", "none.json"], "cannot be read"),
        (["cartpole", "--space", "SPACE", "--trials", "0"], "at least 1"),
        (["cartpole", "--space", "SPACE", "--ppo.epochs", "3"], "is also in"),
        (["cartpole", "--space", "SPACE", "--resume"], "without --resume"),
    ],
)
def test_bad_usage_is_one_line_before_anything_starts(tmp_path, monkeypatch, capsys, arguments, message):
    space = tmp_path / "space.json"
    space.write_text('{"ppo.epochs": {"low": 1, "high": 2}}')
    arguments = [space if one == "SPACE" else one for one in arguments]
    assert run_command(monkeypatch, *arguments, "--run-dir", tmp_path / "sweep") == 2
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert message in line and not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    "given", [["--policy.no-normalize-obs"], ["--policy.normalize_obs"], ["--policy.normalize-obs", "--seed", "3"]]
)
def test_a_flag_that_is_also_searched_is_refused(tmp_path, monkeypatch, capsys, given):
    space = tmp_path / "space.json"
    space.write_text('{"policy.normalize_obs": {"choices": [true, false]}}')
    monkeypatch.setattr("paceline.cli.sweep._search", lambda *args: 0)
    assert run_command(monkeypatch, "cartpole", "--space", space, "--run-dir", tmp_path / "sweep", *given) == 2
    assert "--policy.normalize_obs is also in" in capsys.readouterr().err and not (tmp_path / "sweep").exists()


def test_a_sweep_of_nothing_does_not_propose_to_resume(monkeypatch, capsys):
    assert run_command(monkeypatch, "--space", "space.json") == 2
    line = capsys.readouterr().err
    assert "paceline sweep RECIPE [options]" in line and "--resume" not in line


def test_a_missing_extra_is_named_before_there_is_a_folder(tmp_path, monkeypatch, capsys):
    space = tmp_path / "space.json"
    space.write_text('{"ppo.epochs": {"low": 1, "high": 2}}')
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "paceline.sweep.search")
    monkeypatch.delattr("paceline.sweep.search", raising=False)
    assert run_command(monkeypatch, "cartpole", "--space", space, "--run-dir", tmp_path / "sweep") == 2
    assert "pip install 'paceline[sweep]'" in capsys.readouterr().err and not (tmp_path / "sweep").exists()


def test_settings_that_are_proposed_again_get_another_seed(tmp_path):
    """Also those of a failed trial. A trial that was stopped continues with its own seed."""
    space = {"ppo.epochs": SearchChoices((3,))}
    plan = _planner(tmp_path, ["cartpole"], Config(seed=7), jobs=1, trust=False)

    def seed_of_next() -> str:
        trial = search.ask()
        trials.append(trial)
        command = plan(trial, 0).new
        return command[command.index("--seed") + 1]

    trials: list = []
    search = Search(tmp_path, space, minimize=False, prune=False, seed=1)
    assert [seed_of_next(), seed_of_next(), seed_of_next()] == ["7", "100007", "200007"]
    trials[0].complete(1.0)
    trials[2].fail("it broke")
    search = Search(tmp_path, space, minimize=False, prune=False, seed=1)
    assert [seed_of_next(), seed_of_next()] == ["100007", "300007"] and trials[-2].folder == "trial_0001"
    assert [result.repeat for result in search.results()] == [0, 2]


def test_a_repeated_setting_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(SPACE, "x", SearchChoices((1,)))
    monkeypatch.setitem(SPACE, "kind", SearchChoices(("a",)))
    _, _, lines = sweep(tmp_path, ["", ""], jobs=1)
    assert [line for line in lines if ":" in line] == [
        "trial_0000: x 1, kind a",
        "trial_0001: x 1, kind a; the same settings again, with another seed",
    ]


def test_the_command_runs_real_trials_and_refuses_another_sweep(tmp_path, monkeypatch, capfd):
    space = tmp_path / "space.json"
    space.write_text('{"ppo.epochs": {"choices": [1]}}')
    options = ["cartpole", "--space", space, "--run-dir", tmp_path / "sweep", "--steps", "1000", "--trials", "1"]
    options += ["--pool.kind", "serial"]
    assert run_command(monkeypatch, *options) == 0
    command = capfd.readouterr().out.strip().split("\n")[-1]
    assert command == "paceline train cartpole --steps 1000 --pool.kind serial --seed 1 --ppo.epochs 1"
    run = tmp_path / "sweep" / "trial_0000"
    assert (run / "checkpoints" / "latest").exists()
    assert json.loads((run / "config.json").read_text())["ppo"]["epochs"] == 1
    assert run_command(monkeypatch, *options, "--statistic", "last") == 2
    assert "holds a sweep with another statistic" in capfd.readouterr().err
