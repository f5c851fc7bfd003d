"""`paceline bench`: run a benchmark. Benchmarks are in benchmarks/ of a checkout, or in the package of a wheel."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

import paceline
from paceline.errors import EXTRAS, MissingExtra, UsageError, closest, extra_of

_PACKAGE = Path(paceline.__file__).parent
_CHECKOUT = _PACKAGE.parent / "benchmarks"


@dataclass(frozen=True)
class Bench:
    """Run a benchmark. It prints the machine, the versions, the command and a table."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """The benchmark. Without a name: list all benchmarks."""
    quick: bool = False
    """Run a small part of it, in less than a minute, to see that it works. Do not quote its figures."""
    json: Path | None = None
    """Also write all measurements to this file. None: no file."""

    def run(self) -> None:
        if self.name is None:
            listed = available()
            width = max(map(len, listed))
            for name, about in listed.items():
                print(f"{name:<{width}}  {about}")
        else:
            run_benchmark(self.name, quick=self.quick, json_path=self.json)


def available() -> dict[str, str]:
    """Every benchmark with the first line of its docstring: the modules that have a `run` function."""
    found = {}
    for path in sorted(_home()[0].glob("*.py")):
        module = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in module.body):
            found[path.stem] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def run_benchmark(name: str, *, quick: bool, json_path: Path | None) -> None:
    """Run one benchmark. Its `run(quick)` prints tables and returns a `benchmarks.report.Result`."""
    name = name.replace("-", "_")
    known = available()
    if name not in known:
        raise UsageError(f"benchmark {name!r} does not exist{closest(name, known)}; allowed: {', '.join(known)}")
    if json_path is not None and not json_path.parent.is_dir():
        raise UsageError(f"--json {json_path}: the folder {json_path.parent} does not exist")
    try:
        module = importlib.import_module(f"{_home()[1]}.{name}")
        if hasattr(module, "EXTRA"):
            _require(module.EXTRA)
        result = module.run(quick=quick)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"benchmark {name}", extra_of(error.name or ""), error) from error
    if json_path is not None:
        result.save(json_path)


def _require(extra: str) -> None:
    """`ModuleNotFoundError` if a module of an extra is not installed."""
    for module in EXTRAS[extra]:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)


def _home() -> tuple[Path, str]:
    """The folder of the benchmarks, and their package. They import each other by relative names."""
    if (_CHECKOUT / "__init__.py").exists():
        return _CHECKOUT, "benchmarks"
    return _PACKAGE / "benchmarks", "paceline.benchmarks"
