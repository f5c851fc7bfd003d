"""For all tests: a test that changes how the process computes puts it back, or the next one computes otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.settings import arithmetic


@pytest.fixture(autouse=True)
def arithmetic_stays() -> Iterator[None]:
    before = arithmetic()
    yield
    after = arithmetic()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, f"the test left other settings behind than it found (before, after): {changed}"
