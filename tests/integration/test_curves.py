"""The curves of a run have its own reports only: not those of another run in the same folder, nor those of an end that
was given up."""

from __future__ import annotations

import json

from paceline.evaluation.history import History
from paceline.session import Session, train
from tests.integration.test_training import tiny


def add_report(folder, step: int) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "episode_return": 1e6}) + "\n")


def test_a_run_in_the_folder_of_one_that_was_killed_early_has_curves_of_its_own(tmp_path, caplog):
    """The first checkpoint may come after minutes. What was reported before is kept apart."""
    for number in (1, 2):
        (tmp_path / "tensorboard").mkdir()
        (tmp_path / "tensorboard" / "events").write_text("events")
        add_report(tmp_path, 7)
        tiny().save(tmp_path / "config.json")
        if number == 2:
            (tmp_path / "checkpoints").rename(tmp_path / "gone")
        run = train(tiny(), tmp_path)
        assert History.load(tmp_path).columns["step"].tolist()[-1] == run.step
        assert 1e6 not in History.load(tmp_path).columns["episode_return"]
        aside = tmp_path / f"ended_{number}"
        assert str(aside) in caplog.text
        assert 7 in History.load(aside).columns["step"] and (aside / "tensorboard" / "events").exists()
        assert not (tmp_path / "tensorboard" / "events").exists()
        (tmp_path / "tensorboard").rename(tmp_path / f"seen_{number}")


def test_reports_after_the_checkpoint_that_a_run_continues_from_do_not_count(tmp_path):
    """A killed run may have reported more steps than it saved. Its successor's first report may be later than those."""
    config = tiny()
    with Session(config, tmp_path) as session:
        session.run(until=config.steps // 2)
        middle = session.state.step
    add_report(tmp_path, middle + 1)
    run = train(config, tmp_path, resume="latest")
    steps = History.load(tmp_path).columns["step"].tolist()
    assert middle + 1 not in steps and steps[-1] == run.step and middle in steps
    rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [row["resumed_from"] for row in rows if "resumed_from" in row] == [middle]
    assert "resumed_from" not in History.load(tmp_path).columns
