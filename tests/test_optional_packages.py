"""Tests of packages that are not installed are skipped: no test file imports one before it has asked for it."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("paceline", "benchmarks", "tests")
REQUIRED = {
    *("torch", "numpy", "gymnasium", "cloudpickle", "tyro", "rich", "psutil", "safetensors", "tensorboard"),
    *("matplotlib", "PIL", "pytest", "hypothesis"),
}
"""What every installation with tests has."""
FILES = sorted((ROOT / "tests").rglob("*.py"))


def imported(statement: ast.stmt, package: str = "") -> Iterator[str]:
    """Modules that a statement imports, and what may be modules. Relative names need the `package` of the file."""
    if isinstance(statement, ast.Import):
        yield from (name.name for name in statement.names)
    elif isinstance(statement, ast.ImportFrom) and (package or not statement.level):
        above = package.split(".")[: 1 - statement.level or None] if statement.level else []
        module = ".".join([*above, *([statement.module] if statement.module else [])])
        yield module
        yield from (f"{module}.{name.name}" for name in statement.names)


def asked_for(statement: ast.stmt) -> str | None:
    """The package of `pytest.importorskip("package")`."""
    value = getattr(statement, "value", None)
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "pytest.importorskip"):
        return None
    return ast.literal_eval(value.args[0])


@functools.cache
def statements(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


def packages_of(statement: ast.stmt) -> set[str]:
    """Packages that not everybody has and that a statement imports, by way of our own modules too."""
    found: set[str] = set()
    seen: set[str] = set()
    left = [*imported(statement)]
    while left:
        module = left.pop()
        top = module.split(".")[0]
        if top not in OURS:
            found |= {top} - REQUIRED - sys.stdlib_module_names
        elif module not in seen:
            seen.add(module)
            left += imports_of(module)
    return found


@functools.cache
def imports_of(module: str) -> list[str]:
    """What a module of ours imports when it is imported."""
    return [
        name
        for file in files_of(module)
        for part in statements(file)
        for name in imported(part, ".".join(file.relative_to(ROOT).parent.parts))
    ]


def files_of(module: str) -> list[Path]:
    place = ROOT.joinpath(*module.split("."))
    return [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]


def not_asked_for(path: Path) -> set[str]:
    """Packages that a test file imports without having asked for them."""
    found: set[str] = set()
    asked: set[str | None] = set()
    for statement in statements(path):
        asked.add(asked_for(statement))
        found |= packages_of(statement) - asked
    return found


def test_test_files_ask_for_optional_packages_before_they_import_them():
    found = {str(path.relative_to(ROOT)): packages for path in FILES if (packages := not_asked_for(path))}
    assert found == {}, "pytest.importorskip is to come before these"


def test_packages_are_found_by_way_of_our_own_modules():
    statement = ast.parse("from paceline.pool.envpool_engine import Binding").body[0]
    assert packages_of(statement) == {"envpool"}
