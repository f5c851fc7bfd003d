"""`paceline play`: watch a policy that is part of the package."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.errors import UsageError
from paceline.evaluation.evaluators import SEED
from paceline.pretrained import POLICIES, find_policy
from paceline.telemetry.console import status


@dataclass(frozen=True)
class Play:
    """Play episodes with a small trained policy that is part of the package. Writes a GIF and an HTML page, and prints
    the result in one line. Without a name: list the policies."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """The policy."""
    output: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("play")
    """The folder for NAME.gif and NAME.html."""
    episodes: int | None = None
    """Episodes, or matches of a game for two. None: as many as take a few seconds."""
    seed: int = SEED
    """Seed of the environments. Another one shows another episode."""

    def run(self) -> None:
        if self.name is None:
            width = max(map(len, POLICIES))
            for name, policy in POLICIES.items():
                print(f"{name:<{width}}  {policy.about}")
            return
        find_policy(self.name)  # before PyTorch, whose import takes seconds
        if self.episodes is not None and self.episodes < 1:
            raise UsageError(f"--episodes must be at least 1, got {self.episodes}")
        with contextlib.redirect_stdout(sys.stderr), status("loading PyTorch"):
            from paceline.pretrained.play import play
        with contextlib.redirect_stdout(sys.stderr):
            shown = play(self.name, self.output, episodes=self.episodes, seed=self.seed)
        print(shown.summary)
        print(f"{shown.gif}  {shown.page}")
        print(f"trained by: {shown.command}")
