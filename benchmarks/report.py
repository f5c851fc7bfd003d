"""The result of a benchmark: one schema for all benchmarks, and the functions that print, save and load it.

A result is one command on one machine. It has one or more tables. The published results are
`benchmarks/results/NAME.json`, and `python -m benchmarks.tables` writes their tables into the documentation.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

_PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "envpool",
    "ale-py",
    "vizdoom",
    "mujoco",
    "stable-baselines3",
    "faster-fifo",
)
_NAME = re.compile(r"[a-z0-9_]+")
_NUMBER = re.compile(r"[*±+-]*\d")
_LONGEST_NUMBER = 32
"""Longer cells that begin with a digit are text."""

PlanT = TypeVar("PlanT")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells are text, exactly as they are shown. A cell without a figure is empty."""

    name: str
    """Unique within the result: lower-case letters, digits and underscores."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str | None = None
    """What a reader must know to understand the figures."""

    def __post_init__(self) -> None:
        _require_name("table", self.name)
        _require_text(f"table {self.name}", title=self.title, note=self.note)
        if not self.columns or not self.rows:
            raise ValueError(f"table {self.name} needs columns and rows")
        for row in (self.columns, *self.rows):
            if len(row) != len(self.columns) or not all(isinstance(cell, str) for cell in row):
                raise ValueError(f"table {self.name}: every row needs {len(self.columns)} cells of text, not {row!r}")

    def markdown(self, *, padded: bool = False) -> list[str]:
        """The lines of the table. `padded` aligns the columns, for a terminal."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) if padded else 0 for i in range(len(self.columns))]
        right = [self._is_numeric(i) for i in range(len(self.columns))]

        def shown(line: Sequence[str]) -> str:
            cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
            return "| " + " | ".join(cells) + " |"

        rule = "|".join("-" * max(3, w + 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True))
        return [shown(self.columns), f"|{rule}|", *map(shown, self.rows)]

    def _is_numeric(self, column: int) -> bool:
        cells = [row[column] for row in self.rows if row[column] not in ("", "-")]
        return column > 0 and all(_NUMBER.match(cell) and len(cell) <= _LONGEST_NUMBER for cell in cells)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one command measured on one machine. Facts that were not recorded are None."""

    name: str
    """Lower-case letters, digits and underscores. A published result has the name of its file."""
    command: str | None
    """One or more lines of a shell."""
    machine: str | None
    versions: dict[str, str] | None
    """Of the packages that matter."""
    commit: str | None
    """Of Paceline, as measured."""
    date: str | None
    """Of the measurement: YYYY-MM-DD."""
    tables: tuple[Table, ...]
    note: str | None = None
    """How it was measured: number of runs, intervals, what else ran on the machine."""
    measurements: Any = None
    """Unrounded figures and single samples, in any form."""

    def __post_init__(self) -> None:
        _require_name("result", self.name)
        for field in ("command", "machine", "commit", "date", "note"):
            _require_text(f"result {self.name}", **{field: getattr(self, field)})
        if self.date is not None:
            datetime.date.fromisoformat(self.date)
        names = [table.name for table in self.tables]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"result {self.name} needs tables with different names, not {names}")

    def table(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        raise ValueError(f"result {self.name} has no table {name!r}; allowed: {', '.join(t.name for t in self.tables)}")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


def load(path: Path) -> Result:
    """Read a saved result. `ValueError` if the file does not follow the schema."""
    found = json.loads(path.read_text())
    _require_keys(path, found, Result)
    tables = []
    for table in found["tables"]:
        _require_keys(path, table, Table)
        rows = tuple(tuple(row) for row in table["rows"])
        tables.append(Table(**table | {"columns": tuple(table["columns"]), "rows": rows}))
    return Result(**found | {"tables": tuple(tables)})


def _require_keys(path: Path, found: Any, schema: type) -> None:
    expected = {field.name for field in fields(schema)}
    if not isinstance(found, dict) or set(found) != expected:
        raise ValueError(f"{path}: a {schema.__name__} has the keys {', '.join(sorted(expected))}")


def _require_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"a {what} is named with lower-case letters, digits and underscores, not {name!r}")


def _require_text(where: str, **texts: str | None) -> None:
    for field, text in texts.items():
        if text is not None and (not isinstance(text, str) or not text.strip()):
            raise ValueError(f"{where}: {field} must be text, not {text!r}")


def context(program: str = "paceline") -> dict[str, Any]:
    """The machine, versions, commit, date and command of this process. `program` is the start of the command."""
    import paceline
    from paceline.pool.config import available_core_ids

    versions = {"paceline": paceline.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    parts = [_cpu_model(), f"{len(available_core_ids())} cores", *_gpus(), f"{platform.system()} {platform.machine()}"]
    return {
        "machine": f"{', '.join(parts)} (load before: {os.getloadavg()[0]:.1f})",
        "versions": versions,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "command": f"{program} {shlex.join(_arguments())}".strip(),
    }


def _arguments() -> list[str]:
    """The arguments of this process, without `--json FILE`."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json")
    return parser.parse_known_args()[1]


def _output(*command: str) -> str:
    """What the command prints; nothing if it fails or does not exist."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _commit() -> str | None:
    git = ("git", "-C", str(Path(__file__).parent))
    commit = _output(*git, "rev-parse", "--short=7", "HEAD")
    changed = commit and _output(*git, "status", "--porcelain", "--untracked-files=no")
    return f"{commit} with changes" if changed else commit or None


def _gpus() -> list[str]:
    # Not by PyTorch: some benchmarks measure processes that must not import it.
    return sorted(set(_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()))


def _cpu_model() -> str:
    # ARM kernels have only numbers in /proc/cpuinfo; lscpu knows the names.
    for text in (Path("/proc/cpuinfo").read_text(), _output("lscpu")):
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE | re.IGNORECASE):
            return found[1].strip()
    return platform.processor() or "unknown processor"


def print_context(facts: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f"machine   {facts['machine']}")
    console.print("versions  " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    console.print(f"commit    {facts['commit']}, {facts['date']}")
    console.print(f"command   {facts['command']}\n")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    name: str | None = None,
    note: str | None = None,
) -> Table:
    """Print a table, which is valid Markdown, and return it. By default its name is made of its title."""
    name = name or re.sub("[^a-z0-9]+", "_", title.lower()).strip("_")
    table = Table(name=name, title=title, columns=tuple(columns), rows=tuple(tuple(row) for row in rows), note=note)
    print("\n".join(["", title, "", *table.markdown(padded=True)]), flush=True)
    return table


def make_result(
    name: str,
    facts: dict[str, Any],
    tables: Iterable[Table],
    *,
    measurements: Any = None,
    note: str | None = None,
) -> Result:
    """A result with the facts of `context`."""
    known = {key: facts[key] for key in ("command", "machine", "versions", "commit", "date")}
    return Result(name=name, tables=tuple(tables), note=note, measurements=measurements, **known)


def command_line(
    name: str, plan: type[PlanT], measure: Callable[[PlanT, dict[str, Any]], Result], description: str | None
) -> None:
    """`python -m benchmarks.NAME`: the options are the fields of the plan. `--json FILE` also saves the result."""
    import tyro

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json", type=Path)
    ours, rest = parser.parse_known_args()
    about = f"{description}\n\n--json FILE also saves the result."
    found = measure(tyro.cli(plan, description=about, args=rest), context(f"python -m {__package__}.{name}"))
    if ours.json is not None:
        found.save(ours.json)


def progress(text: str) -> None:
    """One overwritten line on a terminal; silent elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
