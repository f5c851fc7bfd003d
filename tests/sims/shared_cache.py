"""A cache of scenes that the processes of one run of pytest share, so that each bank is generated once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The cache folder is one of the tests' own."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "shared_cache"))
        yield
