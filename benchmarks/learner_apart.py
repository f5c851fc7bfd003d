"""APPO's learner thread, and an upper bound for a learner process.

For the bound, the learner is forked with its first batch and learns from that batch once for every batch collected.
Neither experience nor weights are sent, as a real learner process would require. So the difference is an upper bound
on the cost of sharing one interpreter. Collection and learning have one PyTorch thread each. On CPUs only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from paceline.experience.training_batch import TrainingBatch
from paceline.learner.ppo import PPOLearner
from paceline.session import train

from .cells import CellError, last_line, run_cell
from .marks import note_reports
from .ppo_cell import config_of
from .report import Result, context, make_result, print_context, print_table, progress
from .throughput import WORKLOADS

LABELS = ("CartPole", "HalfCheetah", "Breakout, LSTM 512")
WAYS = ("thread", "apart")
START_SECONDS = 240.0
DIES_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def run(quick: bool) -> Result:
    return measure(context(), labels=["CartPole"], rounds=1, seconds=4.0) if quick else measure(context())


def measure(
    facts: dict[str, Any], *, labels: list[str] | None = None, rounds: int = 2, seconds: float = 12.0
) -> Result:
    print_context(facts)
    rates: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for label in labels or LABELS:
            for way in WAYS:
                progress(f"round {number + 1}/{rounds}: {label}, {way}")
                command = [sys.executable, "-m", f"{__package__}.learner_apart", "--cell", label, way, str(seconds)]
                try:
                    found = run_cell(command, START_SECONDS + seconds)
                    rates.setdefault((label, way), []).append(found["steps_per_second"])
                except CellError as error:
                    print(f"no figure of {label}, {way}: {last_line(str(error))}", flush=True)
    progress("")
    middle = {key: statistics.median(found) for key, found in rates.items()}
    table = print_table(
        f"Steps per second of appo, median of {rounds}",
        ["workload", "learner thread", "learner process, at most", "ratio"],
        [
            [
                label,
                *(f"{middle[label, way]:,.0f}" for way in WAYS),
                f"{middle[label, 'apart'] / middle[label, 'thread']:.2f}",
            ]
            for label in labels or LABELS
            if all((label, way) in middle for way in WAYS)
        ],
        name="learner",
    )
    measurements = [{"workload": k[0], "way": k[1], "rates": v} for k, v in rates.items()]
    return make_result("learner_apart", facts, [table], measurements=measurements)


class Apart:
    """Replaces `PPOLearner.update`: the first update runs here, all others run in a forked process."""

    def __init__(self) -> None:
        self._plain = PPOLearner.update
        self._losses: dict[str, float] | None = None
        self._ask, self._hear = -1, -1

    def update(self, learner: PPOLearner, rollout: TrainingBatch, progress: float) -> dict[str, float]:
        if self._losses is None:
            self._losses = self._plain(learner, rollout, progress)
            self._fork(learner, rollout, progress)
        else:
            os.write(self._ask, b"?")
            os.read(self._hear, 1)
        return dict(self._losses)

    def _fork(self, learner: PPOLearner, rollout: TrainingBatch, progress: float) -> None:
        asked, self._ask = os.pipe()
        self._hear, answer = os.pipe()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
            while os.read(asked, 1):
                self._plain(learner, rollout, progress)
                os.write(answer, b"!")
            os._exit(0)


def cell(label: str, way: str, seconds: float) -> None:
    workload = WORKLOADS[label]
    options = workload.options | {"env": None, "task": workload.task, "num_envs": workload.envs[0], "threads": 1}
    marks = note_reports()
    if way == "apart":
        apart = Apart()
        PPOLearner.update = lambda *arguments: apart.update(*arguments)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        train(config_of(options | {"system": "appo", "seconds": seconds}), Path(folder))
    (begin, first), (end, last) = marks[len(marks) // 4], marks[-1]
    print("RESULT " + json.dumps({"steps_per_second": (last - first) / (end - begin)}), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--cell", nargs=3, metavar=("LABEL", "WAY", "SECONDS"), help="one measurement, in this process")
    options = parser.parse_args()
    if options.cell:
        cell(options.cell[0], options.cell[1], float(options.cell[2]))
    measure(
        context(f"python -m {__package__}.learner_apart"),
        labels=options.labels,
        rounds=options.rounds,
        seconds=options.seconds,
    )


if __name__ == "__main__":
    main()
