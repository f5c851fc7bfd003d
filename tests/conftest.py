"""Fixtures of all tests. A test that changes process-wide arithmetic settings must restore them."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import run_records
from paceline.pool.config import available_core_ids
from tests.learning_seeds import (
    pytest_addoption,
    pytest_generate_tests,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
)
from tests.settings import arithmetic
from tests.worker_forks import forked_workers

__all__ = [
    "forked_workers",
    "pytest_addoption",
    "pytest_generate_tests",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
]


def pytest_configure() -> None:
    """Random cases of Hypothesis have no time limit.

    PyTorch's compiler believes what the processor says of itself: to try out each of its instruction sets takes ten
    seconds, and two more in every process. And it starts no helpers, which only large models are worth.
    """
    with contextlib.suppress(ImportError):  # tests that need a GPU run without Hypothesis, too
        import hypothesis

        hypothesis.settings.register_profile("unhurried", deadline=None)
        hypothesis.settings.load_profile("unhurried")
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Of `--numprocesses auto`. Many tests wait for other processes, so three of pytest keep two cores busy."""
    return math.ceil(1.5 * len(available_core_ids()))


LONG = [
    *("integration/test_remote", "integration/test_d4pg", "test_examples", "integration/test_train_command"),
    *("population/test_learning", "integration/test_appo", "test_moving", "integration/test_ver", "learner/test_d4pg"),
    *("integration/test_d4pg_images", "rearrangement/test_oracle", "population/test_kinds", "population/test_policies"),
    *("learner/test_hyperparameters", "integration/test_ranks", "integration/test_stopping", "population/test_members"),
]
"""Files that take half a minute and more, the longest first."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first: at the end the other cores would have nothing to do."""
    items.sort(key=lambda item: next((n for n, end in enumerate(LONG) if item.path.match(f"{end}.py")), len(LONG)))


@pytest.fixture(autouse=True)
def arithmetic_stays() -> Iterator[None]:
    before = arithmetic()
    yield
    after = arithmetic()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, f"the test left other settings behind than it found (before, after): {changed}"


@pytest.fixture(scope="session", autouse=True)
def secret_of_the_tests(tmp_path_factory) -> None:
    """Runs are signed with a secret of the tests' own, and the user's is not touched."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("xdg_config"))


@pytest.fixture(scope="session", autouse=True)
def one_look_at_git() -> Iterator[None]:
    """Every run records the commits of two folders. Here git is asked once for each folder, not once for each run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.run_records.commit_of", functools.cache(run_records.commit_of))
        yield


@pytest.fixture
def tiny_disk(tmp_path) -> Iterator[Path]:
    """A folder on a disk of 300 KB."""
    folder = tmp_path / "tiny_disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
