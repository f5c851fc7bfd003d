"""Reports are whole lines, and a destination that fails does not end a run."""

from __future__ import annotations

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from paceline.evaluation.history import History
from paceline.telemetry.metrics import LineFile, MetricsWriter, OptionalSink

REPORT = {"step": 30, "sps": 2.5, "episode_return": None, "loss": float("nan"), "bottleneck": "learning"}


def test_a_half_line_of_a_killed_run_is_cut_off_before_more_is_added(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10}\n{"step": 20, "lo')
    writer = MetricsWriter(tmp_path)
    assert path.read_text().endswith('"lo'), "nothing changes before there is something to add"
    writer.write(REPORT)
    writer.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 30] and rows[1]["loss"] is None
    assert History.load(tmp_path).columns["step"].tolist() == [10, 30]


def test_a_number_that_is_not_finite_is_named_once(tmp_path, caplog):
    writer = MetricsWriter(tmp_path)
    for step in (30, 40):
        writer.write(REPORT | {"step": step})
    writer.write(REPORT | {"step": 50, "loss": 1.0, "episode_spl": float("inf")})
    writer.close()
    assert [record.message for record in caplog.records] == [
        "loss is nan at step 30; metrics.jsonl has null for it",
        "episode_spl is inf at step 50; metrics.jsonl has null for it",
    ]


def test_tensorboard_reads_the_numbers(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(REPORT)
    writer.write(REPORT | {"step": 40, "sps": 3.5})
    writer.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    events = [event for event in EventFileLoader(str(path)).Load() if event.HasField("summary")]
    found = [(event.step, value.tag, value.tensor.float_val[0]) for event in events for value in event.summary.value]
    assert found == [(30, "sps", 2.5), (40, "sps", 3.5)]


def test_a_run_that_goes_on_from_an_earlier_checkpoint_discards_later_reports(tmp_path):
    """TensorBoard and metrics.jsonl have the same reports. Those up to the checkpoint stay."""
    for resumed_from, steps in ((None, (10, 20, 30, 40)), (20, (50, 60))):
        writer = MetricsWriter(tmp_path, resumed_from=resumed_from)
        for step in steps:
            writer.write({"step": step, "sps": step / 2})
        writer.close()
    assert History.load(tmp_path).columns["step"].tolist() == [10, 20, 50, 60]
    events = EventAccumulator(str(tmp_path / "tensorboard"), purge_orphaned_data=True).Reload()
    assert [(event.step, event.value) for event in events.Scalars("sps")] == [(10, 5), (20, 10), (50, 25), (60, 30)]


def test_a_full_disk_costs_reports_and_not_the_run(tiny_disk, caplog):
    """Each destination warns once. metrics.jsonl has no partial line, and warns at the end how many are missing."""
    writer = MetricsWriter(tiny_disk)
    report = REPORT | {"loss": 0.5}
    long = report | {f"number_{index}": 0.12345678 for index in range(400)}
    for step in range(40):
        writer.write(long | {"step": step})
    text = (tiny_disk / "metrics.jsonl").read_text()
    written = [json.loads(line)["step"] for line in text.splitlines()]
    assert text.endswith("\n") and 0 < len(written) < 40 and written == list(range(len(written)))
    next((tiny_disk / "tensorboard").iterdir()).unlink()  # makes room again
    writer.write(report | {"step": 40})
    writer.close()
    assert json.loads((tiny_disk / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 40
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3
    assert any("metrics.jsonl cannot be written: the disk is full" in warning for warning in warnings)
    assert any("no more reports are sent to TensorBoard" in warning for warning in warnings)
    assert warnings[-1] == f"{40 - len(written)} reports could not be written to {tiny_disk / 'metrics.jsonl'}"


def test_a_folder_that_is_gone_costs_reports_and_not_the_run(tmp_path, caplog):
    lines = LineFile(tmp_path / "gone" / "metrics.jsonl")
    lines.append("{}")
    lines.append("{}")
    lines.close()
    assert lines.missing == 2 and caplog.text.count("cannot be written") == 1 and "2 reports" in caplog.text


@pytest.mark.parametrize("failing", ["make", "log", "finish"])
def test_a_destination_that_failed_is_not_used_again(caplog, failing):
    logged = []

    def fail_in(place: str) -> None:
        if failing == place:
            raise ConnectionError("refused")

    class Service:
        def __init__(self) -> None:
            fail_in("make")

        def log(self, report, step):
            fail_in("log")
            logged.append(step)

        def finish(self):
            fail_in("finish")

    sink = OptionalSink("Weights & Biases", Service)
    for _ in range(3):
        sink.write(REPORT)
    sink.close()
    assert caplog.text.count("no more reports are sent to Weights & Biases: ConnectionError: refused") == 1
    assert logged == ([30] * 3 if failing == "finish" else [])
