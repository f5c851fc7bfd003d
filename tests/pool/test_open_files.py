"""Too many workers for the limit of open files are refused before any is started."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from paceline.errors import UsageError
from paceline.pool.worker_process import require_open_files


@pytest.fixture
def limits(monkeypatch):
    """(soft, hard), as this process seems to have them."""
    current = [(0, 0)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: current[0])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: current.__setitem__(0, pair))
    return current


def test_a_soft_limit_is_raised_as_far_as_needed(limits):
    limits[0] = (256, 20_000)
    require_open_files(1000)
    soft, hard = limits[0]
    assert 3000 < soft < 20_000 and hard == 20_000


def test_what_the_hard_limit_forbids_is_said_in_one_line(limits):
    limits[0] = (256, 400)
    with pytest.raises(
        UsageError, match=r"^1000 workers need 3\d\d\d open files, and this process may have 400 "
    ) as caught:
        require_open_files(1000)
    assert "\n" not in str(caught.value) and "pool.workers" in str(caught.value) and limits[0] == (256, 400)


def test_no_limit_is_enough_for_all(limits):
    limits[0] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    require_open_files(10**6)
    limits[0] = (256, resource.RLIM_INFINITY)
    require_open_files(1000)
    assert limits[0][0] > 3000


def test_a_pool_under_ulimit_n_starts_no_worker():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))\n"
        "from paceline.pool import PoolConfig, make_pool\n"
        "make_pool('gym:CartPole-v1', PoolConfig(kind='process', num_envs=64, workers=64))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert "UsageError: 64 workers need " in ended.stderr.splitlines()[-1] and "may have 90" in ended.stderr
