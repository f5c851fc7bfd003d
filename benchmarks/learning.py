"""Shared by the benchmarks of learning: starting runs, reading their curves, and plotting them."""

from __future__ import annotations

import json
import math
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from scipy import stats

from paceline.distributed.launch import end_with_parent
from paceline.pool.config import available_core_ids

from .cells import end_group

Job = tuple[str | int, ...]
"""The parts of a run's name."""
CORES_EACH = 2

POINTS = 100


class Curve(NamedTuple):
    steps: np.ndarray
    seconds: np.ndarray
    returns: np.ndarray


Curves = dict[tuple[str, str], list[Curve]]
"""By task and system: one curve for each seed."""


def train_all(
    jobs: dict[Job, list[str]],
    key: str = "episode_return",
    device: str = "cpu",
    at_once: int | None = None,
    keep: Path | None = None,
) -> dict[Job, Curve]:
    """The curve of `key` for every job, which is a run of `paceline train` with these arguments.

    By default every run has two cores of its own, and as many run concurrently as there are pairs of cores. With
    `at_once` that many run concurrently and share all cores. All runs end when this process ends.

    The folder `keep` stores the reports of completed runs. Runs that are there already are read and not repeated,
    even if another version of the library made them.
    """
    cores = available_core_ids()
    shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    count = max(1, len(cores) // CORES_EACH) if at_once is None else at_once
    for number in range(count):
        shares.put(cores[number * CORES_EACH : (number + 1) * CORES_EACH] if at_once is None else cores)
    commands = {job: [*arguments, "--device", device] for job, arguments in jobs.items()}
    files = {} if keep is None else {job: Kept(keep / f"{slug(job)}.jsonl", commands[job]) for job in jobs}
    there = {
        job: file.reports() for job, file in files.items()
    }  # first of all: a file may be of another run, which is an error
    curves: dict[Job, Curve] = {}
    runs = Runs()

    def run(job: Job) -> Job:
        if (reports := there.get(job)) is not None:
            curve = read(reports, key, job)
        else:
            share = shares.get()
            try:
                reports = train(commands[job], share, runs)
            finally:
                shares.put(share)
            curve = read(reports, key, job)
            if job in files:
                files[job].save(reports)
        curves[job] = curve
        return job

    with ThreadPoolExecutor(count) as threads:
        under_way = [threads.submit(run, job) for job in jobs]
        try:
            for number, done in enumerate(as_completed(under_way), 1):
                job = done.result()
                steps, seconds, returns = (column[-1] for column in curves[job])
                last = f"{returns:.2f} after {steps:,} steps and {seconds:.0f} s"
                print(f"  {number}/{len(jobs)}: {', '.join(map(str, job))}: {last}", flush=True)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            runs.end()
            raise
    return {job: curves[job] for job in jobs}


class Runs:
    """The processes of the runs."""

    def __init__(self) -> None:
        self._lock, self._is_over = threading.Lock(), False
        self._processes: list[subprocess.Popen] = []

    def start(self, command: list[str], output: IO[str]) -> subprocess.Popen:
        with self._lock:
            if self._is_over:
                raise RuntimeError("a run has failed; no other run starts")
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, preexec_fn=end_with_parent
            )
            self._processes.append(process)
            return process

    def end(self) -> None:
        """End all runs. No other run starts afterwards."""
        with self._lock:
            self._is_over = True
            for process in self._processes:
                if process.poll() is None:
                    end_group(process)


def train(arguments: list[str], cores: list[int], runs: Runs) -> str:
    """Run one training on these cores; its reports."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-m", "paceline", "train", *arguments, "--run-dir", folder]
        command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
        if runs.start(command, output).wait() != 0:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{output.read()}")
        return (Path(folder) / "metrics.jsonl").read_text()


def read(reports: str, key: str, job: Job) -> Curve:
    found = [json.loads(line) for line in reports.splitlines()]
    said = [(r["step"], r["seconds"], r[key]) for r in found if r.get(key) is not None]
    if not said:
        raise RuntimeError(f"no report of {', '.join(map(str, job))} has {key!r}: it was too short")
    return Curve(*map(np.array, zip(*said, strict=True)))


def slug(job: Job) -> str:
    """The job's name as the name of a file."""
    return re.sub("[^a-z0-9_]+", "-", "-".join(map(str, job)).lower())


class Kept:
    """The file with the reports of a completed run. Its first line has the arguments of the run."""

    def __init__(self, path: Path, arguments: list[str]) -> None:
        self._path, self._head = path, json.dumps({"arguments": arguments}) + "\n"

    def reports(self) -> str | None:
        """None if the file does not exist."""
        if not self._path.exists():
            return None
        with self._path.open() as file:
            if (head := file.readline()) != self._head:
                raise RuntimeError(
                    f"{self._path} is of a run with other arguments: {head.strip()} instead of {self._head.strip()}; "
                    "move the file away, or use another folder"
                )
            return file.read()

    def save(self, reports: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._path.with_suffix(".part")
        whole.write_text(self._head + reports)
        whole.replace(self._path)


def final(curve: Curve) -> float:
    """The mean over the last tenth of a run."""
    return float(curve.returns[curve.steps >= 0.9 * curve.steps[-1]].mean())


def over_steps(curve: Curve, end: int, begin: int = 0) -> float:
    """The mean return from the first report, or from `begin` if that is later, to `end`, with equal weight for every
    step. NaN if there is nothing between them."""
    begin = max(begin, curve.steps[0])
    if begin >= end:
        return math.nan
    at = np.linspace(begin, end, POINTS)
    return float(np.interp(at, curve.steps, curve.returns).mean())


def steps_to(curve: Curve, value: float, begin: int = 0) -> float:
    """Steps until the return first reaches `value` after `begin`; infinite if it never does.

    It is interpolated between reports: otherwise a system that reports more often would seem faster."""
    there = np.flatnonzero((curve.returns >= value) & (curve.steps >= begin))
    if len(there) == 0:
        return math.inf
    at = int(there[0])
    if at == 0 or curve.steps[at - 1] < begin:
        return float(curve.steps[at])
    # The report before this one is below `value`.
    return float(np.interp(value, curve.returns[at - 1 : at + 1], curve.steps[at - 1 : at + 1]))


def student(seeds: int) -> float:
    """The 97.5 % quantile of Student's t for the mean of this many seeds."""
    return float(stats.t.ppf(0.975, seeds - 1))


def interval(values: list[float], form: str = ".2f") -> str:
    """The mean, with its 95 % interval if there are several seeds."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    half = student(len(values)) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):{form}} ± {half:{form}}"


def plot(curves: Curves, tasks: list[str], labels: list[str], path: Path) -> None:
    """Plot returns over steps and over time, with one column per task, or side by side for a single task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter, MaxNLocator

    rows, columns = (1, 2) if len(tasks) == 1 else (2, len(tasks))
    size = (3.7 * columns, 3.2 * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for task, over_steps, over_time in zip(tasks, *axes.reshape(2, len(tasks)), strict=True):
        for axis, along in ((over_steps, "steps"), (over_time, "seconds")):
            for label in labels:
                draw(axis, label, [(getattr(curve, along), curve.returns) for curve in curves[task, label]])
            axis.set(title=task, xlabel=f"agent {along}" if along == "steps" else along)
            axis.xaxis.set_major_locator(MaxNLocator(5))
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 150k instead of 150000, which would overlap
            axis.grid(alpha=0.3)
    for row in axes:
        row[0].set_ylabel("return")
    # Below the plots: there is no room among the curves.
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize="small")
    figure.savefig(path, dpi=120)


def draw(axis: Any, label: str, seeds: list[tuple[np.ndarray, np.ndarray]], color: str | None = None) -> None:
    """Draw the mean over seeds where all have reports, with its 95 % interval if there are several."""
    at = np.linspace(max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds), POINTS)
    values = np.stack([np.interp(at, x, returns) for x, returns in seeds])
    mean = values.mean(0)
    (line,) = axis.plot(at, mean, label=label, color=color)
    if len(seeds) == 1:
        return
    half = student(len(seeds)) * values.std(0, ddof=1) / math.sqrt(len(seeds))
    axis.fill_between(at, mean - half, mean + half, color=line.get_color(), alpha=0.2, linewidth=0)
