"""Writes the published results (`benchmarks/results/*.json`) into the documentation: `python -m benchmarks.tables`.

A page marks the places. `<!-- result NAME -->` shows all tables of a result, with its command, machine, versions,
date and commit. `<!-- table NAME/TABLE -->` shows one table; `columns=A; B` and `rows=C; D` after the name select a
part of it, rows by their first cell. Each place ends with `<!-- end -->`, and everything between the two lines is
generated.

`--check` changes nothing. It fails if a page is out of date, if no page shows a result, or if a benchmark page has a
table of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from .report import Result, Table, load

ROOT = Path(__file__).parent.parent
RESULTS = Path("benchmarks") / "results"
BENCHMARK_PAGES = Path("docs") / "benchmarks"
PLACE = re.compile(
    r"(?P<start><!-- (?P<kind>result|table) (?P<what>[^\n]+?) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL
)
SELECTION = re.compile(r"(?P<result>\w+)/(?P<table>\w+)(?: columns=(?P<columns>.*?))?(?: rows=(?P<rows>.*))?")


def read_results(root: Path) -> dict[str, Result]:
    results = {path.stem: load(path) for path in sorted((root / RESULTS).glob("*.json"))}
    for stem, result in results.items():
        if result.name != stem:
            raise ValueError(f"{RESULTS / stem}.json: its name must be {stem!r}, not {result.name!r}")
    return results


class Page:
    """A Markdown file with marked places."""

    def __init__(self, root: Path, path: Path) -> None:
        self._root, self._path = root, path
        self.text = (root / path).read_text()
        self.shown: set[str] = set()
        """Names of the results that it shows."""

    def filled(self, results: dict[str, Result]) -> str:
        """The page with its tables up to date."""

        def fill(place: re.Match[str]) -> str:
            try:
                lines = self._place(place["kind"], place["what"], results)
            except (KeyError, ValueError) as error:
                raise ValueError(f"{self._path}: <!-- {place['kind']} {place['what']} -->: {error}") from error
            return "\n".join([place["start"], *lines, "", place["end"]])

        return PLACE.sub(fill, self.text)

    def own_tables(self) -> list[str]:
        """The first lines of tables outside the marked places."""
        return re.findall(r"^\|.*\n(?=\|[-:| ]+\|$)", PLACE.sub("", self.text), re.MULTILINE)

    def _place(self, kind: str, what: str, results: dict[str, Result]) -> list[str]:
        if kind == "result":
            result = self._find(what, results)
            return [*self._source(result), *(line for table in result.tables for line in ("", *titled(table)))]
        if not (found := SELECTION.fullmatch(what)):
            raise ValueError("a place is written NAME/TABLE columns=A; B rows=C; D")
        result = self._find(found["result"], results)
        table = select(result.table(found["table"]), _names(found["columns"]), _names(found["rows"]))
        return [*table.markdown(), "", f"{short_source(result)} {self._link(result)}"]

    def _find(self, name: str, results: dict[str, Result]) -> Result:
        if name not in results:
            raise ValueError(f"{RESULTS / name}.json does not exist")
        self.shown.add(name)
        return results[name]

    def _source(self, result: Result) -> list[str]:
        command = ["```", *result.command.splitlines(), "```"] if result.command else ["Command not recorded."]
        lines = [*command, "", f"{facts(result)} {self._link(result)}"]
        return [*lines, "", result.note] if result.note else lines

    def _link(self, result: Result) -> str:
        path = os.path.relpath(self._root / RESULTS / f"{result.name}.json", (self._root / self._path).parent)
        return f"([data]({path}))"


def facts(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in (result.versions or {}).items())
    known = [result.machine or "Machine not recorded", *([versions] if versions else []), when(result)]
    return "; ".join(known) + "."


def short_source(result: Result) -> str:
    first, *more = (result.command or "").splitlines() or [""]
    command = f"`{first}`{' and more' if more else ''}" if first else "Command not recorded"
    return f"{command}; {result.machine or 'machine not recorded'}; {when(result)}."


def when(result: Result) -> str:
    if result.date is None and result.commit is None:
        return "date and commit not recorded"
    commit = f"commit {result.commit}" if result.commit else "commit not recorded"
    return f"{result.date or 'date not recorded'}, {commit}"


def titled(table: Table) -> list[str]:
    lines = [f"**{table.title}**", "", *table.markdown()]
    return [*lines, "", table.note] if table.note else lines


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(";")]


def select(table: Table, columns: list[str] | None, rows: list[str] | None) -> Table:
    """Some columns and some rows of a table, in the order asked for. `ValueError` if one does not exist."""
    headings, first_cells = list(table.columns), [row[0] for row in table.rows]
    chosen_columns = headings if columns is None else columns
    chosen_rows = first_cells if rows is None else rows
    for asked, allowed in ((chosen_columns, headings), (chosen_rows, first_cells)):
        if missing := [name for name in asked if name not in allowed]:
            raise ValueError(f"{missing} not in table {table.name}; allowed: {allowed}")
    at = [headings.index(name) for name in chosen_columns]
    kept = table.rows if rows is None else [table.rows[first_cells.index(name)] for name in chosen_rows]
    cells = tuple(tuple(row[i] for i in at) for row in kept)
    return Table(name=table.name, title=table.title, columns=tuple(chosen_columns), rows=cells, note=table.note)


def update(root: Path, *, check: bool) -> list[str]:
    """Bring all pages up to date, or only look with `check`. What is wrong, line by line."""
    results, shown, problems = read_results(root), set[str](), []
    for path in [Path("README.md"), *(p.relative_to(root) for p in sorted((root / "docs").rglob("*.md")))]:
        page = Page(root, path)
        text = page.filled(results)
        shown |= page.shown
        if BENCHMARK_PAGES in path.parents:
            problems += [f"{path}: not generated from a result: {line.strip()}" for line in page.own_tables()]
        if text != page.text and check:
            problems.append(f"{path}: out of date; run python -m benchmarks.tables")
        elif text != page.text:
            (root / path).write_text(text)
    return problems + [f"{RESULTS / name}.json: no page shows it" for name in sorted(set(results) - shown)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something is wrong")
    try:
        problems = update(ROOT, check=parser.parse_args().check)
    except ValueError as error:
        problems = [str(error)]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
