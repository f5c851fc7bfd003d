"""Hooks for tests that learn. They have a parameter `learning_seed`.

A test that learns fails by chance now and then. One that fails an assertion is tried once more with another seed, and
fails only if both attempts fail. The warnings of the test run name every test that was tried again.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator

import pytest

FIRST_SEED, SECOND_SEED = 1, 2
FAILED_ASSERTION = pytest.StashKey[str]()


class TriedAgain(pytest.PytestWarning):
    """A test that learns failed with its first seed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--learning-seeds", type=int, default=1, help="repeat tests that learn with so many seeds, each tried once"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "learning_seed" in metafunc.fixturenames:
        count = metafunc.config.getoption("--learning-seeds")
        metafunc.parametrize("learning_seed", range(FIRST_SEED, FIRST_SEED + count))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when == "call" and call.excinfo is not None and call.excinfo.errisinstance(AssertionError):
        item.stash[FAILED_ASSERTION] = call.excinfo.exconly().splitlines()[0]
    return (yield)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    learns_once = item.config.getoption("--learning-seeds") == 1 and "learning_seed" in getattr(
        item, "fixturenames", ()
    )
    if not learns_once or not isinstance(item, pytest.Function):
        return None
    run = item.config.pluginmanager.get_plugin("runner").runtestprotocol
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = run(item, log=False, nextitem=nextitem)
    failed = item.stash.get(FAILED_ASSERTION, None)
    if failed is not None and not any(report.failed for report in reports if report.when != "call"):
        warnings.warn(
            TriedAgain(f"seed {FIRST_SEED} failed ({failed}); tried again with seed {SECOND_SEED}"), stacklevel=1
        )
        item.callspec.params["learning_seed"] = SECOND_SEED
        item._initrequest()
        reports = run(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
