"""After every end, no process and no shared memory is left: looked for, not assumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest

from paceline.pool import make_pool
from paceline.pool.channel import Command
from paceline.pool.config import PoolConfig
from paceline.pool.launch import WorkerProcesses
from paceline.pool.process import ProcessPool
from tests.pool.faulty import Counting, Factory, counting, faulty

ROOT = Path(__file__).parents[2]
GRACE_SECONDS = 15.0


def shared_segments(prefix: str) -> list[str]:
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith(prefix))


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
        ("unguarded", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_nothing_is_left_behind(ending, number, code):
    """Neither processes nor shared memory, and not where the guardian was killed before its pool either."""
    prefix = f"paceline-test-{uuid.uuid4().hex}"
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.pool_program", ending, prefix],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    started = json.loads(program.stdout.readline())
    pids = [*started["workers"], *started["children"], started["guardian"]]
    assert len(started["workers"]) == 2 and all(psutil.pid_exists(pid) for pid in pids)
    assert len(shared_segments(prefix)) == 4
    if number is not None:
        program.send_signal(number)
    try:
        # The program's pipes close only when nobody holds them any more, simulators' own processes included.
        _, errors = program.communicate(timeout=GRACE_SECONDS + 10)
    finally:
        program.kill()
    assert await_end(pids) == []
    assert shared_segments(prefix) == []
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


def await_segments(prefix: str, count: int) -> list[str]:
    deadline = time.monotonic() + GRACE_SECONDS
    while len(found := shared_segments(prefix)) != count and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_the_shared_memory_of_a_killed_worker_goes_and_that_of_others_stays():
    prefix = f"paceline-test-{uuid.uuid4().hex}"
    with ProcessPool(faulty("child", only=1, segment=prefix), PoolConfig(num_envs=2, workers=2), seed=0) as pool:
        pool.recv(min_slots=None)
        kept, lost = shared_segments(prefix)
        os.kill(pool.worker_pids()[1], signal.SIGKILL)
        pool.send(np.zeros(2, np.int64), np.arange(2))
        assert pool.recv(min_slots=None).lost.tolist() == [False, True]
        left = await_segments(prefix, 2)
        assert kept in left and lost not in left
    assert shared_segments(prefix) == []


def test_the_shared_memory_of_a_hung_worker_goes_when_the_pool_is_closed():
    prefix = f"paceline-test-{uuid.uuid4().hex}"
    with ProcessPool(faulty("hang", at=1, segment=prefix), PoolConfig(num_envs=1, workers=1), seed=0) as pool:
        pool.send(np.zeros(1, np.int64), pool.recv(min_slots=None).slots)
        assert len(shared_segments(prefix)) == 1
    assert shared_segments(prefix) == []


def test_workers_leave_sigterm_to_their_pool():
    """Schedulers send it to all processes of a job."""
    with ProcessPool(counting(), PoolConfig(num_envs=12, workers=12, nice=0), seed=0) as pool:
        batch = pool.recv(min_slots=None)
        for pid in pool.worker_pids():
            os.kill(pid, signal.SIGTERM)
        for _ in range(3):
            pool.send(np.zeros(12, np.int64), batch.slots)
            batch = pool.recv(min_slots=None)
            assert not batch.lost.any()
        assert pool.restarts == 0 and not len(pool.restore(pool.state()))


def test_a_worker_that_has_just_been_started_ignores_sigterm_too():
    """Python is not even initialised."""
    crew = WorkerProcesses()
    try:
        worker = crew.start(0)
        os.kill(worker.pid, signal.SIGTERM)
        worker.command(Command.CLOSE)
        worker.wait(GRACE_SECONDS)
        assert worker.kill() == "exited by itself with code 0"
    finally:
        crew.close()


def test_simulators_can_still_end_their_own_processes_by_sigterm():
    """What a worker ignores is not inherited."""
    pool = ProcessPool(Factory(make=WithServer), PoolConfig(num_envs=1, workers=1), seed=0)
    pool.send(np.zeros(1, np.int64), pool.recv(min_slots=None).slots)
    assert pool.recv(min_slots=None).reward.tolist() == [-signal.SIGTERM]
    pool.close()


class WithServer(Counting):
    """Its reward is how its server process ended."""

    def step(self, action):
        server = subprocess.Popen(["sleep", "60"])
        server.terminate()
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(server.wait()), terminated, truncated, info


def test_doom_survives_a_sigterm_to_the_whole_job_and_leaves_no_shared_memory():
    pytest.importorskip("vizdoom")
    before = set(shared_segments("ViZDoom"))
    with make_pool("doom:basic", PoolConfig(kind="process", num_envs=1, workers=1)) as pool:
        batch = pool.recv(min_slots=None)
        (worker,) = pool.worker_pids()
        family = [worker, *(child.pid for child in psutil.Process(worker).children(recursive=True))]
        assert len(family) == 2
        for pid in family:
            os.kill(pid, signal.SIGTERM)
        for _ in range(3):
            pool.send(np.zeros(1, np.int64), batch.slots)
            batch = pool.recv(min_slots=None)
        assert pool.restarts == 0
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        pool.send(np.zeros(1, np.int64), batch.slots)
        assert pool.recv(min_slots=None).lost.all()
    assert set(shared_segments("ViZDoom")) <= before


def test_pools_leave_no_descriptors_and_no_processes():
    """A hundred pools would otherwise end a long program."""
    me = psutil.Process()
    children = set(me.children())  # of other tests
    with ProcessPool(counting(), PoolConfig(num_envs=2, workers=2), seed=0):
        pass
    before = me.num_fds()
    for _ in range(3):
        with ProcessPool(counting(), PoolConfig(num_envs=2, workers=2), seed=0) as pool:
            pool.recv(min_slots=None)
        del pool
    assert me.num_fds() <= before
    assert not [child for child in set(me.children()) - children if child.status() != psutil.STATUS_ZOMBIE]


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
        [sys.executable, script], capture_output=True, text=True, timeout=300, check=True, env=environment
    ).stdout
    assert output.splitlines() == ["main runs", "2.0"]
