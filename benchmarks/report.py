"""What every benchmark prints around its figures: machine, versions, command, tables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

_PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "envpool",
    "ale-py",
    "vizdoom",
    "mujoco",
    "stable-baselines3",
    "faster-fifo",
)


def context(program: str = "paceline") -> dict[str, Any]:
    """Where, with what and by which command a benchmark ran; `program` is what the arguments were given to."""
    import paceline
    from paceline.pool.config import available_core_ids

    versions = {"paceline": paceline.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "machine": f"{_cpu_model()}, {len(available_core_ids())} cores, {platform.system()} {platform.machine()}",
        "load_before": os.getloadavg()[0],
        "versions": versions,
        "command": f"{program} {shlex.join(sys.argv[1:])}",
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        # ARM kernels give numbers there; lscpu has the names for them.
        found = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=10).stdout
        for line in found.splitlines():
            if line.startswith("Model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


def print_context(facts: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f"machine   {facts['machine']} (load before: {facts['load_before']:.1f})")
    console.print("versions  " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    console.print(f"command   {facts['command']}\n")


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table that is also valid Markdown, so that docs show exactly what was printed."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    print(f"\n{title}\n")
    for index, line in enumerate(lines):
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("| " + " | ".join(cells) + " |")
        if index == 0:
            print("|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|")
    sys.stdout.flush()


def progress(text: str) -> None:
    """One overwritten line on a terminal; silent elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
