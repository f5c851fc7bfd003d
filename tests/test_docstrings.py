"""Docstrings of attributes stand directly below them, so that tools and readers find them."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "paceline"


def strays(source: str) -> list[int]:
    """The lines of strings that describe nothing, in the bodies of modules and classes."""
    bodies = [ast.parse(source).body]
    found = []
    for body in bodies:  # grows meanwhile
        bodies += [one.body for one in body if isinstance(one, ast.ClassDef)]
        for before, one in itertools.pairwise(body):
            is_string = isinstance(one, ast.Expr) and isinstance(getattr(one.value, "value", None), str)
            if is_string and not isinstance(before, ast.Assign | ast.AnnAssign):
                found.append(one.lineno)
    return found


def test_every_docstring_of_an_attribute_is_below_one():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    assert {str(file): lines for file in files if (lines := strays(file.read_text()))} == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Module."""\nA = 1\n"""A."""\n', []),
        ('A = 1\n"""A."""\n"""B."""\n', [3]),
        ('import os\n"""Nothing."""\n', [2]),
        ('class C:\n    """C."""\n    a: int\n    """A."""\n    b: int\n', []),
        ('class C:\n    a: int\n    b: int\n    """B."""\n    """A."""\n', [5]),
        ("class C:\n    def f(self): ...\n", []),
    ],
)
def test_strays_are_found(source, lines):
    assert strays(source) == lines
