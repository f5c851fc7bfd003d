"""The process of a Doom match, seen from the environment: started, asked with a time limit, and ended."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import IO, Any, NoReturn

from paceline.envs.doom_engine import end_engines, engines_of
from paceline.envs.doom_players import MatchPlan
from paceline.envs.udp_ports import ReservedPort
from paceline.signals import signals_blocked

log = logging.getLogger(__name__)

STARTS = 3
"""Attempts to start a match, each at another port."""
LOOK_SECONDS = 0.05
"""How often a starting match is searched for new engines."""
CLOSE_SECONDS = 3.0
_PROGRESS = re.compile(r"(Contacting host|Waiting for [a-z ]*players): *[-/|\\.]*( *\[ *\d+/ *\d+\])?|[\r\n]")
_SUCCESS = (
    "Done waiting|Exchanging game|Total players|Console player|Found player|Received|Sending|Got connect|Go$"
    "|Network game synchronization timeout: "
)
"""What engines print while they connect to each other, without line breaks in between."""


class MatchFailed(RuntimeError):
    """An engine of the match has died, hangs, or reports an error. All processes of the match are ended."""


class MatchProcess:
    """The running engines of one match. After a `MatchFailed`, and after `close`, no process or port is left."""

    def __init__(self, plan: MatchPlan, timeout_seconds: float) -> None:
        """Every wait for the engines ends after `timeout_seconds` with a `MatchFailed`."""
        self._timeout = timeout_seconds
        self._port = ReservedPort()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the match
        self._engines: dict[int, str] = {}
        with tempfile.TemporaryDirectory(prefix="paceline-doom-") as folder:
            os.mkdir(os.path.join(folder, "_vizdoom"))  # engines that create it at the same moment fail
            self._process, self._connection = _launch(folder, self._log)
            # Also ends a match that nobody closes.
            self._end = weakref.finalize(self, _end, self._process, self._connection, self._port, self._engines)
            self._send(replace(plan, port=self._port.number))
            self.ask("start")

    def ask(self, command: str, arguments: list[Any] | None = None) -> list[Any]:
        """The results of a command of `doom_players.MatchPlayer`, one per player."""
        self._send((command, arguments))
        deadline = time.monotonic() + self._timeout
        starting = command == "start"
        try:
            while not self._connection.poll(min(LOOK_SECONDS, self._timeout) if starting else self._timeout):
                self._engines |= engines_of(self._process.pid)
                if time.monotonic() > deadline:
                    self._fail(f"the engines did not finish {command!r} within {self._timeout:g} s")
            kind, content = self._connection.recv()
        except MatchFailed:
            raise
        except (EOFError, OSError) as error:
            self._fail(f"the process of the engines has ended during {command!r} ({error!r})")
        except BaseException:  # such as Ctrl-C: the reply that is still to come would answer the next command
            self._end()
            raise
        if kind == "failed":
            self._fail(content)
        if starting:
            self._engines |= engines_of(self._process.pid)
        return content

    def close(self) -> None:
        """End the match. Engines that do not end by themselves are killed."""
        if self._end.alive:
            with contextlib.suppress(MatchFailed):
                self._timeout = CLOSE_SECONDS
                self.ask("close")
            self._end()
            self._log.close()

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            self._fail(f"the process of the engines has ended ({error!r})")

    def _fail(self, cause: str) -> NoReturn:
        self._end()
        said = _last_words(self._log)
        self._log.close()
        raise MatchFailed(f"the Doom match has failed: {cause}" + (f"; the engines said: {said}" if said else ""))

    def __getstate__(self) -> NoReturn:
        raise TypeError("a running Doom match cannot be saved")


def start_match(plan: MatchPlan, timeout_seconds: float) -> MatchProcess:
    """Start the engines of a match. Engines that die are started again at another port, up to `STARTS` times."""
    started = time.monotonic()
    for attempt in range(1, STARTS + 1):
        try:
            return MatchProcess(plan, timeout_seconds)
        except MatchFailed as error:
            if attempt == STARTS or time.monotonic() - started > timeout_seconds:
                raise
            log.warning("%s; starting it again (%d of %d)", error, attempt + 1, STARTS)
    raise AssertionError


def _launch(folder: str, output: IO[bytes]) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    path = [os.path.abspath(entry) for entry in sys.path if entry]
    # It and its engines start with these signals blocked: a run that saves a checkpoint on them still needs the match.
    with theirs, signals_blocked():
        process = subprocess.Popen(
            [sys.executable, "-c", f"from paceline.envs.doom_players import main; main({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    return process, Connection(ours.detach())


def _end(process: subprocess.Popen[bytes], connection: Connection, port: ReservedPort, engines: dict[int, str]) -> None:
    """Kill the engines and their process, and free what they used."""
    end_engines(engines | engines_of(process.pid))
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(CLOSE_SECONDS)
    connection.close()
    port.release()


def _last_words(output: IO[bytes]) -> str:
    """The last lines of the engines' output, without their progress."""
    output.seek(0)
    lines = _PROGRESS.sub("\n", output.read().decode(errors="replace")).splitlines()
    words = [line.strip() for line in lines if line.strip() and not re.match(_SUCCESS, line.strip())]
    return " | ".join(words[-4:])[-400:]
