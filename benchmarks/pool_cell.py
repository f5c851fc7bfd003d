"""One measurement of `benchmarks.pool` in its own process: `python -m benchmarks.pool_cell SYSTEM ENV N SECONDS`.

Prints one JSON object: steps_per_second, start_seconds, megabytes_per_env. Every system steps the same environments
with the same random actions. All are in lock-step, except `process x2`, which is double-buffered.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil

from paceline.envs.factory import Factory
from paceline.envs.registry import resolve
from paceline.pool.config import Kind, PoolConfig, available_core_ids
from paceline.pool.random_actions import RandomActions, sample_turns

Turn = Callable[[], int]
"""Steps the environments; returns the number of environment steps."""


def paceline_turn(kind: Kind, env: str, num_envs: int, **options: Any) -> tuple[Turn, Callable[[], None]]:
    from paceline.pool import make_pool

    pool = make_pool(env, PoolConfig(kind=kind, num_envs=num_envs, **options))
    actions = RandomActions(pool.spec)
    groups = range(pool.spec.num_groups)

    def turn() -> int:
        count = 0
        for group in groups:
            slots = pool.recv(min_slots=None, group=group).slots
            pool.send(actions.next(slots), slots)
            count += len(slots)
        return count

    return turn, pool.close


def gymnasium_turn(kind: str, env: str, num_envs: int) -> tuple[Turn, Callable[[], None]]:
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    factory = resolve(env)
    vector = (AsyncVectorEnv if kind == "async" else SyncVectorEnv)(
        [partial(factory.make, index) for index in range(num_envs)]
    )
    vector.reset(seed=0)
    actions = itertools.cycle(sample_turns(vector.single_action_space, num_envs))

    def turn() -> int:
        vector.step(next(actions))
        return num_envs

    return turn, vector.close


def sb3_turn(env: str, num_envs: int) -> tuple[Turn, Callable[[], None]]:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    factory = resolve(env)
    vector = SubprocVecEnv([partial(factory.make, index) for index in range(num_envs)])
    vector.seed(0)
    vector.reset()
    actions = itertools.cycle(sample_turns(vector.action_space, num_envs))

    def turn() -> int:
        vector.step(next(actions))
        return num_envs

    return turn, vector.close


def plain_loop(factory_bytes: bytes, indices: list[int], seconds: float, start: Any, results: Any) -> None:
    """The upper bound: environments are stepped in a plain loop, and nothing is sent anywhere."""
    import pickle

    factory: Factory = pickle.loads(factory_bytes)
    envs = [factory.make(index) for index in indices]
    for env in envs:
        env.reset(seed=0)
    turns = itertools.cycle([list(actions) for actions in sample_turns(envs[0].action_space, len(envs))])
    start.wait()
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for env, action in zip(envs, next(turns), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += len(envs)
    results.put(steps / (time.perf_counter() - begin))
    for env in envs:
        env.close()


def bound(env: str, num_envs: int, seconds: float) -> float:
    """Total steps per second of one plain loop per core."""
    import cloudpickle

    processes = min(len(available_core_ids()), num_envs)
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(processes), context.Queue()
    factory = cloudpickle.dumps(resolve(env))
    loops = [
        context.Process(target=plain_loop, args=(factory, list(range(p, num_envs, processes)), seconds, start, results))
        for p in range(processes)
    ]
    for loop in loops:
        loop.start()
    rates = [results.get(timeout=300) for _ in loops]
    for loop in loops:
        loop.join()
    return sum(rates)


SYSTEMS: dict[str, Callable[[str, int], tuple[Turn, Callable[[], None]]]] = {
    "serial": lambda env, n: paceline_turn("serial", env, n),
    "process": lambda env, n: paceline_turn("process", env, n, workers=min(n, len(available_core_ids()))),
    "process x2": lambda env, n: paceline_turn(
        "process", env, n, workers=min(n // 2, len(available_core_ids())), groups=2
    ),
    "auto": lambda env, n: paceline_turn("auto", env, n),
    "gym Sync": lambda env, n: gymnasium_turn("sync", env, n),
    "gym Async": lambda env, n: gymnasium_turn("async", env, n),
    "sb3 Subproc": sb3_turn,
}


def pss_megabytes(root: psutil.Process | None = None) -> float:
    """Proportional set size of a process (by default this one) and its descendants. Shared pages count once."""
    root = root or psutil.Process()
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 2**20


def measure(system: str, env: str, num_envs: int, seconds: float) -> dict[str, float]:
    if system == "bound":
        return {"steps_per_second": bound(env, num_envs, seconds)}
    before, begin = pss_megabytes(), time.perf_counter()
    turn, close = SYSTEMS[system](env, num_envs)
    turn()
    started = time.perf_counter() - begin
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        steps += turn()
    rate = steps / (time.perf_counter() - begin)
    memory = (pss_megabytes() - before) / num_envs
    close()
    return {"steps_per_second": rate, "start_seconds": started, "megabytes_per_env": memory}


def main() -> None:
    system, env, num_envs, seconds = sys.argv[1:]
    result = measure(system, env, int(num_envs), float(seconds))
    print("RESULT " + json.dumps(result), flush=True)
    os._exit(0)  # threads that a peer leaves running must not delay the next measurement


if __name__ == "__main__":
    main()
