"""Reports: their content, valid HTML, and no external resources."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from paceline.cli import main as cli
from paceline.errors import UsageError
from paceline.evaluation.charts import running_mean, short
from paceline.evaluation.history import History
from paceline.evaluation.report import write_report
from tests.evaluation.runs import make_run

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checked(HTMLParser):
    """Fails if elements are not closed in order. Keeps the ids and the addresses that a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert len(values) == len(attributes), f"an attribute of {tag} appears twice"
        if tag == "img":
            assert values.get("alt"), "a picture without words"
        self.loads += [values[name] for name in ("src", "href", "srcset", "data", "poster") if values.get(name)]
        self.ids += [values["id"]] if "id" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "cartpole", "gym:CartPole-v1")


def check(text: str, folder) -> Checked:
    page = Checked(text)
    assert page.loads and all(address.startswith("data:image/") for address in page.loads)
    assert "http://" not in text and "https://" not in text and "<script" not in text
    assert "url(" not in text and "@import" not in text and str(folder) not in text
    assert len(set(page.ids)) == len(page.ids)
    return page


def test_a_report_of_any_run(cartpole):
    path = write_report(cartpole)
    assert path == cartpole / "report.html"
    text = path.read_text()
    page = check(text, cartpole)
    assert page.ids == ["learning", "episode", "speed", "optimisation", "configuration"]
    assert page.headings[0] == "gym:CartPole-v1"
    for heading in ("Episode return over steps", "Episode return over time", "Where the time goes", "Entropy"):
        assert heading in page.headings
    for words in ("ddppo", "rollout_steps", "pool.num_envs", "PyTorch", "256"):
        assert words in text


def test_the_command_writes_where_it_is_told_to_and_prints_the_path(cartpole, tmp_path, monkeypatch, capsys):
    path = tmp_path / "elsewhere.html"
    monkeypatch.setattr("sys.argv", ["paceline", "report", str(cartpole), "--output", str(path)])
    cli.main()
    assert capsys.readouterr().out.split() == [str(path)]
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_names_are_escaped(cartpole, tmp_path):
    folder = tmp_path / "<b>run & co"
    folder.mkdir()
    for name in ("config.json", "metrics.jsonl"):
        (folder / name).write_text((cartpole / name).read_text())
    text = write_report(folder).read_text()
    assert "<b>" not in text and "&lt;b&gt;run &amp; co" in text
    Checked(text)


def test_a_run_that_has_hardly_begun(cartpole, tmp_path):
    (tmp_path / "config.json").write_text((cartpole / "config.json").read_text())
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "seconds": 1.0, "episode_return": null}\n{"step": 2')
    assert "No episode has ended" in write_report(tmp_path).read_text()


def test_folders_without_a_run_or_reports_are_refused(cartpole, tmp_path):
    with pytest.raises(UsageError, match="not the folder of a run"):
        write_report(tmp_path)
    (tmp_path / "config.json").write_text((cartpole / "config.json").read_text())
    with pytest.raises(UsageError, match="metrics.jsonl"):
        write_report(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UsageError, match="has not reported anything yet"):
        write_report(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(UsageError, match="has not reported anything yet"):
        write_report(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        write_report(cartpole, output=tmp_path / "no" / "report.html")
    with pytest.raises(UsageError, match="at least 1"):
        write_report(cartpole, evaluate_episodes=0)


def test_broken_lines_are_left_out_with_one_warning(tmp_path, caplog):
    """A run that was killed while writing and then resumed leaves half a line in the middle."""
    lines = [
        b'{"step": 1}',
        b'{"step": 2, "ent{"step": 3}',
        b"\xff\xfe",
        b"7",
        b'{"step": "x"}',
        b'{"step": 4}',
        b'{"st',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert History.load(tmp_path).columns["step"].tolist() == [1, 4]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "4 damaged lines are left out, the first is line 2" in warning
    caplog.clear()
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"st')
    assert len(History.load(tmp_path)) == 1 and not caplog.records, "an incomplete last line is no warning"


def test_steps_that_a_resumed_run_repeats_are_shown_once(tmp_path):
    rows = [{"step": step, "entropy": value} for step, value in ((10, 1), (20, 2), (30, 3), (20, None), (25, 5))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    history = History.load(tmp_path)
    assert history.columns["step"].tolist() == [10, 20, 25]
    assert history.last("entropy") == 5.0 and np.isnan(history.columns["entropy"][1])
    assert not history.has("episode_spl") and history.last("episode_spl") is None


def test_running_means_are_of_neighbours():
    assert running_mean(np.array([0.0, 3.0, 6.0, 0.0]), 3).tolist() == [1.5, 3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (1234, "1,234"),
        (100_352, "100.4k"),
        (2.5e6, "2.5M"),
        (0.0015, "0.0015"),
        (2e-5, "2e-5"),
        (-0.5, "-0.5"),
    ],
)
def test_numbers_are_short(value, shown):
    assert short(value) == shown
    assert not re.search(r"e-0", shown)
