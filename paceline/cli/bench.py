"""`paceline bench`: run a benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Bench:
    """Run a benchmark: it prints the machine, the versions, the command and a table."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """Which one; without a name they are listed."""
    quick: bool = False
    """A small part of it, within a minute: to see that it runs, not to quote."""
    json: Path | None = None
    """Also write everything measured to this file."""

    def run(self) -> None:
        from paceline.bench import available, run_benchmark

        if self.name is None:
            for name, about in available().items():
                print(f"{name:<16} {about}")
        else:
            run_benchmark(self.name, quick=self.quick, json_path=self.json)
