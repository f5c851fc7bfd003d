"""Finds and runs the benchmarks. They are next to the package in a checkout, and inside it in a wheel."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import paceline
from paceline.envs.registry import closest
from paceline.errors import MissingExtra, UsageError

_PACKAGE = Path(paceline.__file__).parent
_CHECKOUT = _PACKAGE.parent / "benchmarks"


def _home() -> tuple[Path, str]:
    if (_CHECKOUT / "__init__.py").exists():
        return _CHECKOUT, "benchmarks"
    return _PACKAGE / "benchmarks", "paceline.benchmarks"


def available() -> dict[str, str]:
    """Name and first line of the description of every benchmark. Benchmarks are the modules with a function `run`."""
    found = {}
    for path in sorted(_home()[0].glob("*.py")):
        module = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in module.body):
            found[path.stem] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def run_benchmark(name: str, *, quick: bool, json_path: Path | None) -> None:
    """Run a benchmark: `run(quick)` prints its tables and returns a `benchmarks.report.Result`."""
    name = name.replace("-", "_")
    if name not in available():
        raise UsageError(
            f"benchmark {name!r} does not exist{closest(name, available())}; allowed: {', '.join(available())}"
        )
    if json_path is not None and not json_path.parent.is_dir():
        raise UsageError(f"--json {json_path}: the folder {json_path.parent} does not exist")
    try:
        module = importlib.import_module(f"{_home()[1]}.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"benchmark {name}", "bench", error) from error
    result = module.run(quick=quick)
    if json_path is not None:
        result.save(json_path)
