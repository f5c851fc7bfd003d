"""Starting the ranks of this machine, and ending them: whoever is interrupted, terminated or killed, none is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

import psutil

from paceline.signals import handled_by

LAUNCHED = "PACELINE_LAUNCHED"
"""Set for ranks that were started here: who interrupts them waits for them, and tells of it."""
PR_SET_PDEATHSIG = 1
INTERRUPTED = 130
_LIBC = ctypes.CDLL(None)


def launch_ranks(count: int, arguments: list[str]) -> int:
    """Run the command line `arguments` of paceline in `count` ranks by torchrun, and wait for them; the exit code.

    The first Ctrl-C or SIGTERM goes to the ranks, which save a checkpoint and end. It is not for torchrun, which would end the
    ranks in its own way, and say so at length; the second is. The third kills them all.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command += ["-m", "paceline.cli", *arguments]
    environment = os.environ | {LAUNCHED: "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    interrupts: list[int] = []
    with (
        subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=end_with_parent) as launched,
        _passed_on(launched.pid, interrupts),
    ):
        code = launched.wait()
    return INTERRUPTED if interrupts else code


def exit_code(interrupted: bool) -> int:
    """Of a command. torchrun takes anything but 0 of a rank for a failure, and an interrupt is none."""
    return INTERRUPTED if interrupted and LAUNCHED not in os.environ else 0


def end_with_parent() -> None:
    """Be terminated when whoever started this process dies, however that comes. Only Linux can do that."""
    with contextlib.suppress(AttributeError):
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _passed_on(torchrun: int, interrupts: list[int]) -> contextlib.AbstractContextManager[None]:
    """Signals go to those that are running, and are noted."""

    def pass_on(number: int, frame: object) -> None:
        interrupts.append(number)
        with contextlib.suppress(psutil.Error):
            launcher = psutil.Process(torchrun)
            ranks = launcher.children()
            if len(interrupts) > 2:
                _signal([*launcher.children(recursive=True), launcher], signal.SIGKILL)
            elif len(interrupts) == 2 or not ranks:
                _signal([launcher], signal.SIGTERM)
            else:
                _signal(ranks, signal.SIGINT)

    return handled_by(pass_on)


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
