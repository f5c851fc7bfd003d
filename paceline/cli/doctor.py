"""`paceline doctor`: what this machine has, what is missing, and what would make runs slow."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline import __version__
from paceline.errors import EXTRAS, missing_of

GIB = 2**30
LEAST_SHARED = GIB // 4
LEAST_FILES = 4096


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and what to do about it."""

    what: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, what is missing, and what would make runs slow."""

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> None:
        findings = [finding for look in LOOKS for finding in look()]
        if self.json:
            print(json.dumps([vars(finding) for finding in findings]))
            return
        table = Table("", "found", "advice", box=None, header_style="bold", pad_edge=False)
        for finding in findings:
            style = "yellow" if finding.advice else ""
            table.add_row(finding.what, escape(finding.found), escape(finding.advice), style=style)
        Console().print(table)


def versions() -> list[Finding]:
    found = [Finding("Paceline", __version__), Finding("Python", platform.python_version())]
    for package in ("torch", "gymnasium", "numpy"):
        found.append(Finding(package, _version(package)))
    return found


def processor() -> list[Finding]:
    cores, all_cores, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, _quota()
    advice = ""
    if quota is not None and quota < cores:
        advice = f"the container may use {quota:g} cores: set --pool.workers and --threads to fit"
    findings = [Finding("processor", f"{cores} of {all_cores} cores, {platform.machine()}", advice)]
    policy = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    if policy.upper() != "PASSIVE":
        advice = "threads that wait actively take the cores from simulators: unset OMP_WAIT_POLICY"
        findings.append(Finding("OMP_WAIT_POLICY", policy, advice))
    compiler = os.environ.get("CXX", "g++")
    missing = shutil.which(compiler) is None
    advice = "only --compute.compile on a CPU needs it" if missing else ""
    return [*findings, Finding("C++ compiler", "none" if missing else compiler, advice)]


def memory() -> list[Finding]:
    import psutil

    total = psutil.virtual_memory()
    shared = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    advice = ""
    if shared is None or shared.free < LEAST_SHARED:
        advice = "too little for ViZDoom, for ranks on several GPUs (NCCL) and for Ray: docker run --shm-size 2g"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = "" if hard == resource.RLIM_INFINITY or hard >= LEAST_FILES else "many workers need more: ulimit -n 4096"
    return [
        Finding("memory", f"{total.available / GIB:.1f} of {total.total / GIB:.1f} GiB free"),
        Finding("shared memory", "none" if shared is None else f"{shared.free / GIB:.1f} GiB free in /dev/shm", advice),
        Finding("open files", f"{soft}, at most {hard}", files),
    ]


def gpus() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        has_driver = shutil.which("nvidia-smi") is not None
        built = torch.version.cuda is not None
        advice = ""
        if has_driver:
            advice = "PyTorch cannot use the driver" if built else "this PyTorch is built without CUDA"
        return [Finding("GPU", "none", advice)]
    found = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        free = torch.cuda.mem_get_info(number)[0]
        advice = "another program uses most of its memory" if free < properties.total_memory / 2 else ""
        text = f"{properties.name}, {free / GIB:.0f} of {properties.total_memory / GIB:.0f} GiB free"
        found.append(Finding(f"GPU {number}", text, advice))
    return [*found, Finding("CUDA", str(torch.version.cuda))]


def extras() -> list[Finding]:
    found = []
    for extra in EXTRAS:
        missing = missing_of(extra)
        state = "installed" if not missing else f"without {', '.join(missing)}"
        found.append(Finding(f"extra {extra}", state, f"pip install 'paceline[{extra}]'" if missing else ""))
    return found


LOOKS: tuple[Callable[[], list[Finding]], ...] = (versions, processor, memory, gpus, extras)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _quota(path: str = "/sys/fs/cgroup/cpu.max") -> float | None:
    """The cores that a container may use; None without a limit."""
    try:
        with open(path) as file:
            limit, period = file.read().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) / int(period)
