"""Runs of a benchmark that stay in a folder."""

import json

import pytest

pytest.importorskip("scipy", reason="for the intervals")

from benchmarks import kept_runs
from benchmarks.control_suite import Plan, panels, row, works
from benchmarks.kept_runs import RunFailed, Work, measurements, shown_seconds, train_kept
from benchmarks.panels import draw_panels

JOBS = {("cartpole-swingup", "D4PG", 1): Work(["dmc_cartpole_swingup"], "evaluation_return")}


@pytest.fixture
def calls(monkeypatch):
    """The commands of Paceline, which only write what a run writes."""
    found = []

    def call(arguments, run, seconds, runs):
        found.append(arguments)
        if "fail" in arguments:
            raise RunFailed("status 1: it fails")
        if arguments[0] == "eval":
            return json.dumps({"run": "r", "episodes": 2, "mean_return": 7.0})
        checkpoint = run / "checkpoints" / "latest"
        if checkpoint.exists() and float(checkpoint.read_text()) >= seconds:
            return "the run is finished"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_text(str(seconds))
        write_reports(run, seconds)
        return ""

    monkeypatch.setattr(kept_runs, "_call", call)
    return found


def write_reports(run, seconds):
    reports = [{"step": 10 * at, "seconds": seconds * at / 2, "updates": 5, "evaluation_return": at} for at in (1, 2)]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(report) + "\n" for report in reports))


def kept(folder, jobs=JOBS, seconds=4.0, episodes=2):
    return train_kept(jobs, folder, seconds, at_once=1, episodes=episodes)


def test_finished_run_is_read_and_not_run_again(tmp_path, calls):
    first = kept(tmp_path)
    calls.clear()
    again = kept(tmp_path)
    assert not calls
    for ended in (*first.values(), *again.values()):
        assert ended.result.steps == 20 and ended.result.gradient_steps == 5
        assert ended.result.returns["mean_return"] == 7.0
        assert ended.curve.returns.tolist() == [1, 2]


def test_more_seconds_continue_a_run(tmp_path, calls):
    kept(tmp_path)
    calls.clear()
    kept(tmp_path, seconds=9.0)
    train, evaluation = calls
    assert train[:2] == ["train", "--resume"] and train[-2:] == ["--seconds", "9.0"]
    assert evaluation[0] == "eval"


def test_run_that_was_killed_before_its_last_checkpoint_trains_to_the_end(tmp_path, calls):
    run = tmp_path / "cartpole-swingup-d4pg-1"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "latest").write_text("1.0")
    write_reports(run, 4.0)
    kept(tmp_path, seconds=4.0)
    assert calls[0][:2] == ["train", "--resume"]


def test_steps_that_a_continued_run_repeats_count_once(tmp_path, calls):
    run = tmp_path / "cartpole-swingup-d4pg-1"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "latest").write_text("0.0")
    old = [{"step": step, "seconds": 0.1 * step, "updates": 9, "evaluation_return": 0.0} for step in (5, 10, 15, 30)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(report) + "\n" for report in old))
    (ended,) = kept(tmp_path).values()
    assert ended.curve.steps.tolist() == [5, 10, 20]
    assert ended.curve.returns.tolist() == [0, 1, 2]
    assert (ended.result.steps, ended.result.trained_seconds) == (20, 4.0)


@pytest.mark.parametrize("episodes", [2, 3])
def test_run_that_trained_longer_is_shown_with_its_own_time(tmp_path, calls, capsys, episodes):
    kept(tmp_path, seconds=9.0)
    runs = kept(tmp_path, seconds=4.0, episodes=episodes)
    (ended,) = runs.values()
    assert (ended.result.seconds, ended.result.trained_seconds) == (9.0, 9.0) and shown_seconds(runs) == "9 s"
    assert "mean_return 7 after 9 s, 20 steps and 5 updates" in capsys.readouterr().out.splitlines()[-1]
    others = {("fish-swim", "D4PG", 1): Work(["dmc_fish_swim"], "evaluation_return")}
    assert shown_seconds(runs | kept(tmp_path, others)) == "4 to 9 s"


def test_run_without_a_checkpoint_begins_anew(tmp_path, calls):
    run = tmp_path / "cartpole-swingup-d4pg-1"
    run.mkdir()
    (run / "config.json").write_text("{}")
    kept(tmp_path)
    assert "--resume" not in calls[0] and not (run / "config.json").exists()


def test_failed_run_leaves_a_blank_and_says_why(tmp_path, calls, capsys):
    plan = Plan(tasks=("cartpole-swingup",), ppo="fail")
    runs = kept(tmp_path, works(plan))
    assert "cartpole-swingup, PPO, 1: failed: status 1: it fails" in capsys.readouterr().out
    assert row("cartpole-swingup", plan, runs) == ["cartpole-swingup", "7", "", "20", "5", "", ""]
    assert measurements(runs)["cartpole-swingup, PPO, 1"] == {"evaluation": None, "steps, seconds, returns": None}


def test_incomplete_last_report_does_not_count(tmp_path, calls):
    kept(tmp_path)
    with (tmp_path / "cartpole-swingup-d4pg-1" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "sec')
    calls.clear()
    (ended,) = kept(tmp_path).values()
    assert not calls and ended.curve.returns.tolist() == [1, 2]


def test_run_with_a_checkpoint_and_no_report_continues(tmp_path, calls):
    kept(tmp_path)
    (tmp_path / "cartpole-swingup-d4pg-1" / "metrics.jsonl").unlink()
    kept(tmp_path, seconds=9.0)
    assert calls[2][:2] == ["train", "--resume"]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ("", "metrics.jsonl has no report"),
        ('{"step": 1, "updates": 5}\n', "KeyError: 'seconds'"),
        ("a\n{}\n", "JSONDecodeError: Expecting value"),
    ],
    ids=["empty", "without a time", "damaged"],
)
def test_unreadable_reports_fail_one_run_alone(tmp_path, calls, capsys, monkeypatch, metrics, said):
    write = kept_runs._call

    def call(arguments, run, seconds, runs):
        printed = write(arguments, run, seconds, runs)
        if arguments[:2] == ["train", "broken"]:
            (run / "metrics.jsonl").write_text(metrics)
        return printed

    monkeypatch.setattr(kept_runs, "_call", call)
    broken, whole = kept(tmp_path, {("broken", 1): Work(["broken"], "evaluation_return"), **JOBS}).values()
    assert broken is None and whole.result.steps == 20
    assert f"broken, 1: failed: {said}" in capsys.readouterr().out


def test_evaluation_without_a_result_fails_the_run(tmp_path, calls, capsys, monkeypatch):
    write = kept_runs._call
    monkeypatch.setattr(kept_runs, "_call", lambda *given: write(*given) and "a warning\n")
    assert kept(tmp_path) == dict.fromkeys(JOBS)
    assert "failed: the evaluation printed no result: a warning" in capsys.readouterr().out


def test_folder_with_another_run_is_refused(tmp_path, calls):
    kept(tmp_path)
    other = {job: Work(["dmc_walker_walk"], work.key) for job, work in JOBS.items()}
    with pytest.raises(RuntimeError, match="other arguments"):
        kept(tmp_path, other)


def test_picture_has_a_panel_for_every_task(tmp_path, calls):
    plan = Plan(tasks=("cartpole-swingup", "fish-swim"), systems=("D4PG",))
    found = panels(plan, kept(tmp_path, works(plan)))
    assert list(found) == ["cartpole-swingup", "fish-swim"]
    assert [curve.returns.tolist() for curve in found["fish-swim"]["D4PG"]] == [[1, 2]]
    draw_panels(found | {"empty": {"D4PG": []}}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 0


def test_reason_of_an_error_is_its_last_line_with_words():
    assert kept_runs._reason("it begins\n  wrong option  \n---\n") == "wrong option"
