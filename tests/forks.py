"""Python programs in processes that are forked from one that has imported PyTorch. A new interpreter takes seconds.

A test starts a new interpreter where the process itself is tested: its imports, its signals or its end.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

PRELOADED = ["pytest", "gymnasium", "tyro", "paceline.api", "paceline.session", "tests.integration.test_training"]
PRELOADED += ["paceline.cli.train", "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer"]


@cache
def forks() -> Any:
    """The context of processes that are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def take_environment(variables: dict[str, str]) -> None:
    """In a forked process. The environment variables are those of the test, and not of the process that forks."""
    os.environ.clear()
    os.environ.update(variables)


def serial_pools() -> None:
    """In a forked process. A pool of no particular kind is serial: to measure which is fastest takes seconds."""
    from paceline.pool import auto, serial

    measured = auto.choose

    def choose(factory: Any, config: Any, seed: int, phases: Any = None) -> Any:
        pool = serial.SerialPool if config.kind == "auto" else measured
        return pool(factory, config, seed, phases)

    auto.choose = choose


def _run(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    outputs: list[str],
    prepare: Callable[[], None] | None,
) -> None:
    take_environment(environment)
    if prepare is not None:
        prepare()
    os.chdir(folder)
    for number, output in enumerate(outputs, start=1):
        os.dup2(os.open(output, os.O_WRONLY), number)
    if arguments[0] == "-m":
        sys.path.insert(0, folder)
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def run_python(
    *arguments: object,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    timeout: float = 120,
    prepare: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """`python *arguments`, a module after -m or a file, with its output. The process calls `prepare` first."""
    words = [str(argument) for argument in arguments]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        job = (words, str(cwd or Path.cwd()), dict(env or os.environ), [out.name, err.name], prepare)
        process = forks().Process(target=_run, args=job)
        process.start()
        try:
            process.join(timeout)
            code = process.exitcode
        finally:
            process.kill()
            process.join()
        if code is None:
            raise subprocess.TimeoutExpired(words, timeout, out.read(), err.read())
        return subprocess.CompletedProcess(words, code, out.read().decode(), err.read().decode())


def run_paceline(*arguments: object, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`paceline *arguments`, with its output."""
    return run_python("-m", "paceline", *arguments, cwd=cwd, timeout=timeout)
