"""One agent of `benchmarks.navigation_speed`: `python -m benchmarks.navigation_speed_cell OPTIONS FOLDER`."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from paceline import recipes
from paceline.callbacks import Callback
from paceline.config import Config
from paceline.session import Session

from .pointnav_cell import reserved_gib

POLL_SECONDS = 0.05
ENOUGH_STEPS = 10**12
NEVER = 1e9
"""Seconds between checkpoints. After the wait one would be due in the time that is measured."""


class Turn(Callback):
    """Trains some rounds, waits until it is this agent's turn, and measures."""

    def __init__(self, folder: Path, warm_up: int, seconds: float) -> None:
        self._folder, self._warm_up, self._seconds = folder, warm_up, seconds
        self._rounds = 0
        self._marks: list[tuple[float, int]] = []

    def on_update(self, session: Session) -> bool:
        self._rounds += 1
        if self._rounds < self._warm_up:
            return False
        if not self._marks:
            (self._folder / "ready").touch()
            # A signal only asks the session to stop, which does so after this call.
            while not ((self._folder / "go").exists() or session.state.stop.is_requested):
                time.sleep(POLL_SECONDS)
        self._marks.append((time.perf_counter(), session.step))
        return self._marks[-1][0] - self._marks[0][0] >= self._seconds

    def result(self) -> dict[str, Any]:
        """The speed of the median round. Every round is there too: one that compiles is much slower."""
        rounds = [
            (steps - before) / (end - begin)
            for (begin, before), (end, steps) in zip(self._marks, self._marks[1:], strict=False)
        ]
        return {"steps_per_second": statistics.median(rounds), "rounds": rounds, "gib": reserved_gib()}


def config_of(options: dict[str, Any]) -> Config:
    base = recipes.find(options["recipe"])
    policy = base.policy if options["encoder"] is None else dataclasses.replace(base.policy, encoder=options["encoder"])
    return dataclasses.replace(
        base,
        env=options["env"],
        steps=ENOUGH_STEPS,
        seconds=None,
        checkpoint=dataclasses.replace(base.checkpoint, seconds=NEVER),
        policy=policy,
        pool=dataclasses.replace(base.pool, num_envs=options["streams"]),
    )


def time_shares(metrics: Path) -> dict[str, float]:
    """Shares of simulation, inference, learning and so on in the last report."""
    last = json.loads(metrics.read_text().splitlines()[-1])
    return {name.removeprefix("time/"): share for name, share in last.items() if name.startswith("time/")}


def main() -> None:
    options, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    turn = Turn(folder, options["warm_up"], options["seconds"])
    with Session(config_of(options), folder / "run", callbacks=[turn]) as session:
        session.run()
    shares = time_shares(folder / "run" / "metrics.jsonl")
    print("RESULT " + json.dumps({**turn.result(), "time_shares": shares}), flush=True)


if __name__ == "__main__":
    main()
