"""Finding and running the benchmarks, which live beside the package (in a checkout) or inside it (in a wheel)."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path
from typing import Any

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
    """Name and first line of description of every benchmark: the modules that have a `run` function."""
    found = {}
    for path in sorted(_home()[0].glob("*.py")):
        module = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in module.body):
            found[path.stem] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def run_benchmark(name: str, *, quick: bool, json_path: Path | None) -> None:
    """Run one; its `run(quick)` prints its tables and returns what it measured."""
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
    results: dict[str, Any] = module.run(quick=quick)
    if json_path is not None:
        json_path.write_text(json.dumps(results, indent=2) + "\n")
