"""Training runs in folders that stay: each continues where it ended, is evaluated at its end, and may fail alone."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .cells import end_group
from .learning import Curve, Job, Runs, interval, read, slug

SETTINGS = ("OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "MUJOCO_GL=off")
"""The environment of a run: many runs share the cores, and none renders."""
START_SECONDS = 300.0
"""A run that takes this much longer than its time of training is killed."""
USUAL = ("--steps", "1000000000", "--threads", "1", "--checkpoint.keep", "1", "--checkpoint.seconds", "240")
"""Time ends a run, not its steps. Checkpoints have the replay, so few are kept."""


class Work(NamedTuple):
    """One run: the arguments of `paceline train`, without its folder and its time."""

    arguments: list[str]
    key: str
    """The metric of the learning curve."""
    evaluation: tuple[str, ...] = ()
    """Further arguments of `paceline eval`."""
    measure: str = "mean_return"
    """The result of an evaluation that is shown as soon as the run is done."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run that has trained and was evaluated."""

    arguments: list[str]
    seconds: float
    """The longest time that was asked for."""
    trained_seconds: float
    """Of the last report."""
    returns: dict[str, Any]
    """What `paceline eval` printed."""
    steps: int
    gradient_steps: int


class Ended(NamedTuple):
    result: Finished
    curve: Curve | None
    """None if no report has a return."""


class RunFailed(Exception):
    """A run gave no result. The text is one line."""


def train_kept(
    works: dict[Job, Work], folder: Path, seconds: float, at_once: int, episodes: int
) -> dict[Job, Ended | None]:
    """Train every job for `seconds` in total, then play `episodes` without noise. None for a run that failed.

    A run that `folder` has for so long already, or for longer, is only read. One that it has for a shorter time
    continues.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for job, work in works.items():
        _require_same(folder / f"{slug(job)}.json", work)
    found: dict[Job, Ended | None] = {}
    runs = Runs()
    with ThreadPoolExecutor(at_once) as threads:
        under_way = {
            threads.submit(_finish, folder / slug(job), work, seconds, episodes, runs): job
            for job, work in works.items()
        }
        try:
            for number, done in enumerate(as_completed(under_way), 1):
                job = under_way[done]
                found[job], said = _outcome(done.result, works[job].measure)
                print(f"  {number}/{len(works)}: {', '.join(map(str, job))}: {said}", flush=True)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            runs.end()
            raise
    return {job: found[job] for job in works}


def _outcome(result: Callable[[], Ended], measure: str) -> tuple[Ended | None, str]:
    """What a run gave, and one line about it."""
    try:
        ended = result()
    except RunFailed as error:
        return None, f"failed: {error}"
    one = ended.result
    length = f"{one.trained_seconds:.0f} s, {one.steps:,} steps and {one.gradient_steps:,} updates"
    return ended, f"{measure} {one.returns[measure]:.3g} after {length}"


def _require_same(file: Path, work: Work) -> None:
    """Note the arguments of a run. An error if the folder has a run with others."""
    if file.exists() and json.loads(file.read_text())["arguments"] != work.arguments:
        raise RuntimeError(f"{file.with_suffix('')} is a run with other arguments; move it away, or use another folder")
    if not file.exists():
        file.write_text(json.dumps({"arguments": work.arguments}) + "\n")


def _finish(run: Path, work: Work, seconds: float, episodes: int, runs: Runs) -> Ended:
    """Train and evaluate one run, as far as that has not been done. Unreadable files fail this run alone."""
    try:
        return _finished(run, work, seconds, episodes, runs)
    except (OSError, ValueError, LookupError) as error:
        raise RunFailed(f"{type(error).__name__}: {error}") from error


def _finished(run: Path, work: Work, seconds: float, episodes: int, runs: Runs) -> Ended:
    file = run.with_suffix(".json")
    stored = json.loads(file.read_text())
    before = stored.get("seconds", 0.0)
    if before < seconds or stored["returns"]["episodes"] != episodes:
        _train(run, work, seconds, runs)
        returns = _evaluate(run, work, episodes, runs)
        done = Finished(arguments=work.arguments, seconds=max(before, seconds), returns=returns, **_lengths(run))
        file.write_text(json.dumps(asdict(done)) + "\n")
    else:
        done = Finished(**stored)
    try:
        curve = read(_valid_lines(run), work.key, (run.name,))
    except RuntimeError:
        curve = None
    return Ended(done, curve)


def _train(run: Path, work: Work, seconds: float, runs: Runs) -> None:
    # Reports do not say whether a run has finished: it may have been killed after the last one and before its last
    # checkpoint. A run that has finished refuses to continue, which is no failure.
    has_begun = (run / "checkpoints" / "latest").exists()
    if not has_begun:
        shutil.rmtree(run, ignore_errors=True)  # an earlier run that ended before its first checkpoint
    begin = ["--resume"] if has_begun else [*work.arguments, *USUAL]
    _call(["train", *begin, "--run-dir", str(run), "--seconds", str(seconds)], run, seconds, runs)


def _evaluate(run: Path, work: Work, episodes: int, runs: Runs) -> dict[str, Any]:
    counts = ["--episodes", str(episodes), "--num-envs", str(episodes)]
    printed = _call(["eval", str(run), "--json", *counts, *work.evaluation], run, 0.0, runs)
    # Libraries may print warnings to the same file.
    results = [line for line in printed.splitlines() if line.startswith('{"run"')]
    if not results:
        raise RunFailed(f"the evaluation printed no result: {_reason(printed)}")
    return json.loads(results[-1])


def _call(arguments: list[str], run: Path, seconds: float, runs: Runs) -> str:
    """What a command of Paceline prints, which is also stored beside the run."""
    command = ["env", *SETTINGS, sys.executable, "-m", "paceline", *arguments]
    with run.with_suffix(f".{arguments[0]}.log").open("w+") as output:
        process = runs.start(command, output)
        try:
            status = process.wait(seconds + START_SECONDS)
        except subprocess.TimeoutExpired:
            end_group(process)
            raise RunFailed(f"not finished after {seconds + START_SECONDS:.0f} s") from None
        output.seek(0)
        printed = output.read()
    if status != 0:
        raise RunFailed(f"status {status}: {_reason(printed)}")
    return printed


def _reason(printed: str) -> str:
    """The last line with words."""
    lines = [line.strip() for line in printed.splitlines() if any(map(str.isalpha, line))]
    return lines[-1] if lines else "no output"


def _reports(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _valid_lines(run).splitlines()]


def _valid_lines(run: Path) -> str:
    """The reports of a run by rising step, empty if it has none.

    A killed run may leave a last line without its end. A run that continued from an earlier checkpoint repeats steps:
    their old reports do not count.
    """
    file = run / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    kept: list[tuple[int, str]] = []
    for line in lines:
        step = json.loads(line)["step"]
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, line))
    return "\n".join(line for _, line in kept)


def _lengths(run: Path) -> dict[str, Any]:
    """How long a run has trained. PPO takes the same number of gradient steps after every rollout."""
    reports = _reports(run)
    if not reports:
        raise RunFailed("metrics.jsonl has no report")
    last = reports[-1]
    if "updates" in last:
        updates = int(last["updates"])
    else:
        config = json.loads((run / "config.json").read_text())
        rows = config["rollout_steps"] * config["pool"]["num_envs"]
        updates = last["step"] // rows * config["ppo"]["epochs"] * config["ppo"]["minibatches"]
    return {"trained_seconds": last["seconds"], "steps": last["step"], "gradient_steps": updates}


def shown_seconds(runs: dict[Job, Ended | None]) -> str:
    """How long the runs have trained, for a title. Runs of an earlier call may have trained for longer than others."""
    times = [one.result.trained_seconds for one in runs.values() if one is not None] or [0.0]
    low, high = f"{min(times):.0f}", f"{max(times):.0f}"
    return f"{low} s" if low == high else f"{low} to {high} s"


def shown_returns(runs: list[Ended | None]) -> str:
    """The mean return over seeds, empty if no run has one."""
    means = [run.result.returns["mean_return"] for run in runs if run is not None]
    return interval(means, ".0f") if means else ""


def shown_mean(values: list[int]) -> str:
    return f"{statistics.mean(values):,.0f}" if values else ""


def curves_of(runs: list[Ended | None]) -> list[Curve]:
    """The learning curves of the seeds that have one."""
    return [run.curve for run in runs if run is not None and run.curve is not None]


def measurements(runs: dict[Job, Ended | None]) -> dict[str, Any]:
    """Evaluations and learning curves, for a result."""
    found: dict[str, Any] = {}
    for job, one in runs.items():
        curve = None if one is None or one.curve is None else [column.tolist() for column in one.curve]
        evaluation = None if one is None else one.result.returns
        found[", ".join(map(str, job))] = {"evaluation": evaluation, "steps, seconds, returns": curve}
    return found
