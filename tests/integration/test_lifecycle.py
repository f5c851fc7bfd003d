"""After every end, no process and no shared memory is left: looked for, not assumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from tests.pool.faulty import counting, faulty

ROOT = Path(__file__).parents[2]
GRACE_SECONDS = 15.0


def shared_segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def await_end(pids: list[int]) -> list[int]:
    """The processes that are still there after the grace period; zombies are not."""
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        alive = [pid for pid in pids if psutil.pid_exists(pid) and not is_zombie(pid)]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


@pytest.mark.parametrize(
    ("ending", "number", "code"),
    [
        ("close", None, 0),
        ("return", None, 0),
        ("exception", None, 1),
        ("loop", signal.SIGINT, -signal.SIGINT),
        ("loop", signal.SIGTERM, -signal.SIGTERM),
        ("loop", signal.SIGKILL, -signal.SIGKILL),
        ("hang", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_nothing_is_left_behind(ending, number, code):
    before = shared_segments()
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.pool_program", ending],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    started = json.loads(program.stdout.readline())
    pids = [*started["workers"], *started["children"], started["guardian"]]
    assert len(started["workers"]) == 2 and all(psutil.pid_exists(pid) for pid in pids)
    if number is not None:
        program.send_signal(number)
    try:
        # The program's pipes close only when nobody holds them any more, simulators' own processes included.
        _, errors = program.communicate(timeout=GRACE_SECONDS + 10)
    finally:
        program.kill()
    assert await_end(pids) == []
    assert shared_segments() - before == set()
    assert program.returncode in (code, 1 if number == signal.SIGINT else code)
    if ending == "exception":
        assert errors.rstrip().endswith("RuntimeError: an error of the program's own"), "nothing hides the first error"


def test_a_killed_worker_takes_its_simulators_processes_along():
    with ProcessPool(faulty("child", only=1), PoolConfig(num_envs=2, workers=2), seed=0) as pool:
        pool.recv(min_slots=None)
        worker = pool.worker_pids()[1]
        children = [child.pid for child in psutil.Process(worker).children(recursive=True)]
        assert len(children) == 1
        os.kill(worker, signal.SIGKILL)
        pool.send(np.zeros(2, np.int64), np.arange(2))
        assert pool.recv(min_slots=None).lost.tolist() == [False, True]
        assert await_end(children) == []


def test_pools_leave_no_descriptors_and_no_processes():
    """A hundred pools would otherwise end a long program."""
    me = psutil.Process()
    with ProcessPool(counting(), PoolConfig(num_envs=2, workers=2), seed=0):
        pass
    before = me.num_fds()
    for _ in range(3):
        with ProcessPool(counting(), PoolConfig(num_envs=2, workers=2), seed=0) as pool:
            pool.recv(min_slots=None)
        del pool
    assert me.num_fds() <= before
    assert [child for child in me.children() if child.status() != psutil.STATUS_ZOMBIE] == []


def test_workers_do_not_import_torch():
    with ProcessPool(counting(), PoolConfig(num_envs=1, workers=1), seed=0) as pool:
        pool.recv(min_slots=None)
        maps = Path(f"/proc/{pool.worker_pids()[0]}/maps")
        if not maps.exists():
            pytest.skip("needs /proc")
        assert "libtorch" not in maps.read_text()


def test_workers_do_not_run_the_main_module_again(tmp_path):
    """A script without an `if __name__ == "__main__"` guard, and with its environment class in it, just works."""
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium as gym, numpy as np\n"
        "print('main runs')\n"
        "class Mine(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return np.zeros(2, np.float32), {}\n"
        "    def step(self, action):\n"
        "        return np.full(2, 0.5, np.float32), 1.0, False, False, {}\n"
        "from paceline.pool import PoolConfig, make_pool\n"
        "with make_pool(Mine, PoolConfig(kind='process', num_envs=2, workers=2)) as pool:\n"
        "    pool.send(np.zeros(2, np.int64), pool.recv(min_slots=None).slots)\n"
        "    print(pool.recv(min_slots=None).reward.sum())\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    output = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True, env=environment
    ).stdout
    assert output.splitlines() == ["main runs", "2.0"]
