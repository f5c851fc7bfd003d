"""The schema of benchmark results."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import report
from benchmarks.report import Result, Table, context, load, make_result, print_table

TABLE = Table(name="rates", title="Rates", columns=("envs", "ours"), rows=(("8", "1,024"), ("64", "")))


def of(**changes) -> Result:
    facts = {"command": "paceline bench x", "machine": "2 cores", "versions": {"torch": "2"}, "commit": None}
    return Result(**{"name": "x", "date": "2026-01-31", "tables": (TABLE,), **facts, **changes})


def test_a_saved_result_is_loaded_as_it_was(tmp_path):
    result = of(note="one run", measurements={"rates": [1.5, 2]})
    result.save(tmp_path / "x.json")
    assert load(tmp_path / "x.json") == result


@pytest.mark.parametrize(
    "changes",
    [{"name": "Two words"}, {"date": "yesterday"}, {"tables": ()}, {"tables": (TABLE, TABLE)}, {"command": ""}],
)
def test_a_result_that_breaks_the_schema_is_refused(changes):
    with pytest.raises(ValueError):
        of(**changes)


@pytest.mark.parametrize("changes", [{"rows": (("8",),)}, {"rows": (("8", 1024),)}, {"rows": ()}, {"name": "a b"}])
def test_a_table_that_breaks_the_schema_is_refused(changes):
    with pytest.raises(ValueError):
        Table(**{**vars(TABLE), **changes})


@pytest.mark.parametrize("change", [{"author": "me"}, {"date": None, "machine": ...}])
def test_a_file_has_exactly_the_keys_of_the_schema(tmp_path, change):
    path = tmp_path / "x.json"
    of().save(path)
    found = {key: value for key, value in (json.loads(path.read_text()) | change).items() if value is not ...}
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match="a Result has the keys"):
        load(path)


def test_what_is_printed_is_the_table_that_is_returned(capsys):
    table = print_table("Steps / second", ["system", "rate"], [["ours", "12,000"], ["peer", "-"]])
    assert table.name == "steps_second"
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Steps / second"
    assert lines[3:] == ["| system |   rate |", "|--------|-------:|", "| ours   | 12,000 |", "| peer   |      - |"]


def test_columns_of_text_are_aligned_left_and_columns_of_figures_right():
    rows = (("a", "310 points (278 to 338) in 32 whole games", "-0.5 ± 0.1"),)
    table = Table(name="t", title="T", columns=("run", "score", "return"), rows=rows)
    assert table.markdown()[1] == "|----|----|---:|"


def test_the_facts_of_a_run_make_a_result_without_the_path_of_its_file(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["paceline", "bench", "pool", "--quick", "--json", "/somewhere/pool.json"])
    facts = context()
    assert facts["command"] == "paceline bench pool --quick"
    result = make_result("pool", facts, [TABLE])
    assert "cores" in (result.machine or "") and result.date and result.versions


def test_a_benchmark_module_saves_its_result(monkeypatch, tmp_path):
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Plan:
        rounds: int = 3

    path = tmp_path / "x.json"
    monkeypatch.setattr(sys, "argv", ["x", "--rounds", "2", "--json", str(path)])
    report.command_line(
        "x", Plan, lambda plan, facts: make_result("x", facts, [TABLE], note=str(plan.rounds)), "About x."
    )
    assert load(path).note == "2" and load(path).command == "python -m benchmarks.x --rounds 2"
