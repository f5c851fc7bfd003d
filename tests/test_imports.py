"""Imports point down the layers and form no circle. Late and TYPE_CHECKING imports count."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "paceline"

LAYERS = (
    "__main__ cli bench api",
    "session saving run callbacks keywords other_names run_names saved_spaces assembly transfer resume export "
    "population evaluation recipes process_settings",
    "schedule",
    "collect learner",
    "nets experience",
    "distributed stop pool telemetry sizes envs sims trust accel ops",
    "checkpoint run_folder free_memory settings",
    "signatures files signals systems checks own_code errors wording paceline",
)
"""Parts of the package, from the top down. A part imports parts of its own layer and of the layers below it.

A part is a folder of `paceline/`, or a file in it; `paceline` is its `__init__.py`. Every `config.py` is in "settings".
"""
SEPARATE = {
    ("envs", "sims", "pool"): ("learner", "nets", "collect", "schedule", "run"),
    ("settings",): ("telemetry", "checkpoint", "run_folder", "free_memory"),
}
"""Parts on the left never import parts on the right, whatever their layers."""
ALLOWED = {
    ("sims", "evaluation"): "a simulator implements the protocols of evaluation and of its report",
    ("accel", "collect"): "an acceleration implements the protocol of the part that it speeds up",
    ("accel", "experience"): "the same",
    ("accel", "nets"): "the same",
}
"""Imports that point up."""


@cache
def files() -> dict[str, ast.Module]:
    """The syntax tree of every file of the package, by the module's name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


@cache
def imports() -> dict[str, set[str]]:
    """The modules of the package that each module imports, wherever the import stands."""
    return {name: _imported_by(tree) - {name} for name, tree in files().items()}


def _imported_by(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in files() else str(node.module) for name in names}
    return found & files().keys()


def part_of(module: str) -> str:
    return "settings" if module.endswith(".config") else module.removeprefix("paceline.").split(".")[0]


def arrows() -> dict[tuple[str, str], list[str]]:
    """The imports between two parts, by the names of the parts."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, imported in imports().items():
        for other in imported:
            if part_of(module) != part_of(other):
                found.setdefault((part_of(module), part_of(other)), []).append(f"{module} imports {other}")
    return found


def test_no_circle_of_imports():
    graph = {name: set(imported) for name, imported in imports().items()}
    circles = []
    while circle := _find_circle(graph):
        circles.append(circle)
        graph[circle[1]].discard(circle[0])
    assert not circles, "\n".join(" < ".join(circle) for circle in circles)


def _find_circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle, each module imported by the next; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_part_has_a_layer():
    assert {part_of(module) for module in files()} <= set(" ".join(LAYERS).split())


def test_imports_point_down():
    height = {part: -depth for depth, layer in enumerate(LAYERS) for part in layer.split()}
    up = {arrow for arrow in arrows() if height[arrow[0]] < height[arrow[1]]}
    wrong = up - ALLOWED.keys()
    assert not wrong, "\n".join(one for arrow in wrong for one in arrows()[arrow])


@pytest.mark.parametrize(("parts", "others"), SEPARATE.items())
def test_parts_that_are_separate(parts, others):
    wrong = [one for arrow, all_of in arrows().items() if arrow[0] in parts and arrow[1] in others for one in all_of]
    assert not wrong, "\n".join(wrong)


def test_settings_need_no_pytorch():
    """Help and usage errors appear at once, because no file that settings need imports PyTorch."""
    needed, queue = set(), [module for module in files() if part_of(module) == "settings"]
    while queue:
        module = queue.pop()
        if module not in needed:
            needed.add(module)
            queue += imports()[module]
    assert not [module for module in needed if _imports_torch(files()[module])]


def _imports_torch(tree: ast.Module) -> bool:
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] == "torch" for name in names)


def test_a_class_has_a_name_of_its_own():
    names = Counter(node.name for tree in files().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert not {name for name, count in names.items() if count > 1}
