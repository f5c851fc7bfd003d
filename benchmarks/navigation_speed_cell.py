"""One agent of `benchmarks.navigation_speed`: `python -m benchmarks.navigation_speed_cell OPTIONS FOLDER`."""

from __future__ import annotations

import dataclasses
import json
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
        self._begin: tuple[float, int] | None = None
        self.steps_per_second = 0.0

    def on_update(self, session: Session) -> bool:
        self._rounds += 1
        if self._rounds < self._warm_up:
            return False
        if self._begin is None:
            (self._folder / "ready").touch()
            while not (self._folder / "go").exists():
                time.sleep(POLL_SECONDS)
            self._begin = time.perf_counter(), session.step
            return False
        elapsed = time.perf_counter() - self._begin[0]
        self.steps_per_second = (session.step - self._begin[1]) / elapsed
        return elapsed >= self._seconds


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


def main() -> None:
    options, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    turn = Turn(folder, options["warm_up"], options["seconds"])
    with Session(config_of(options), folder / "run", callbacks=[turn]) as session:
        session.run()
    print("RESULT " + json.dumps({"steps_per_second": turn.steps_per_second, "gib": reserved_gib()}), flush=True)


if __name__ == "__main__":
    main()
