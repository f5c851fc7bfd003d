"""Networks use accelerations, and not the other way round, except for the perceptron, which no network uses."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found |= {f"{node.module}.{name.name}" for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
    return found | {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}


@pytest.mark.parametrize("path", sorted((ROOT / "accel").glob("*.py")), ids=lambda path: path.stem)
def test_an_acceleration_imports_no_network_learner_or_loop(path):
    above = ("nets", "learner", "collect", "experience", "schedule", "agent", "run")
    allowed = ("paceline.nets",) if path.stem == "perceptron" else ()
    found = {name for name in imported(path) if name.startswith(tuple(f"paceline.{part}" for part in above))}
    assert not {name for name in found if not name.startswith(allowed or "none")}


def test_no_network_imports_the_perceptron():
    for path in (ROOT / "nets").glob("*.py"):
        assert not any("perceptron" in name for name in imported(path)), path
