"""Tables of the documentation, generated from results."""

from __future__ import annotations

import pytest

from benchmarks import tables
from benchmarks.report import Result, Table
from benchmarks.tables import select, update

RATES = Table(
    name="rates",
    title="Rates",
    columns=("envs", "ours", "peer"),
    rows=(("8", "20", "10"), ("64", "90", "30")),
    note="A note.",
)


@pytest.fixture
def root(tmp_path):
    """A project with one result, `pool`."""
    for folder in ("benchmarks/results", "docs/benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
    result = Result(
        name="pool",
        command="paceline bench pool",
        machine="2 cores",
        versions={"torch": "2"},
        commit="abc1234",
        date="2026-01-31",
        tables=(RATES,),
    )
    result.save(tmp_path / "benchmarks" / "results" / "pool.json")
    (tmp_path / "README.md").write_text("# Nothing\n")
    return tmp_path


def page(root, text: str):
    path = root / "docs" / "benchmarks" / "pools.md"
    path.write_text(text)
    return path


def test_a_page_gets_the_tables_and_the_facts_of_a_result_and_then_is_up_to_date(root):
    path = page(root, "Before.\n\n<!-- result pool -->\n<!-- end -->\n\nAfter.\n")
    assert update(root, check=True) == ["docs/benchmarks/pools.md: out of date; run python -m benchmarks.tables"], (
        "nothing is written yet"
    )
    assert "| 8 |" not in path.read_text()
    assert update(root, check=False) == [] and update(root, check=True) == []
    text = path.read_text()
    assert text.startswith("Before.\n\n<!-- result pool -->\n") and text.endswith("<!-- end -->\n\nAfter.\n")
    for part in ("paceline bench pool", "2 cores; torch 2; 2026-01-31, commit abc1234.", "| 64 | 90 | 30 |", "A note."):
        assert part in text
    assert "(../../benchmarks/results/pool.json)" in text


def test_one_table_is_shown_in_part(root):
    path = page(root, "<!-- table pool/rates columns=envs; peer rows=64 -->\n<!-- end -->\n")
    update(root, check=False)
    assert "| envs | peer |" in path.read_text() and "| 64 | 30 |" in path.read_text()
    assert "| 8 |" not in path.read_text()
    assert "`paceline bench pool`; 2 cores; 2026-01-31, commit abc1234." in path.read_text()


def test_columns_and_rows_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="allowed"):
        select(RATES, ["envs", "theirs"], None)
    with pytest.raises(ValueError, match="allowed"):
        select(RATES, None, ["128"])


def test_a_result_that_no_page_shows_is_a_problem(root):
    assert update(root, check=True) == ["benchmarks/results/pool.json: no page shows it"]


def test_a_benchmark_page_has_no_table_of_its_own(root):
    page(root, "<!-- result pool -->\n<!-- end -->\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n")
    update(root, check=False)
    assert update(root, check=True) == ["docs/benchmarks/pools.md: not generated from a result: | a | b |"]


def test_an_unknown_result_is_named_with_its_page(root):
    page(root, "<!-- result pol -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match=r"docs/benchmarks/pools.md: <!-- result pol -->: .*pol.json does not exist"):
        update(root, check=True)


def test_a_published_result_has_the_name_of_its_file(root):
    folder = root / "benchmarks" / "results"
    (folder / "pool.json").rename(folder / "other.json")
    with pytest.raises(ValueError, match="its name must be 'other'"):
        update(root, check=True)


def test_the_pages_of_this_project_are_up_to_date():
    assert update(tables.ROOT, check=True) == []
