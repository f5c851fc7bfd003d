"""The folder of a population of whole runs. It has one folder for each member, and no run of its own."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.errors import UsageError
from paceline.population.history import FILE
from paceline.run_folder import EXCHANGE, MEMBERS_FILE


def is_population(folder: Path) -> bool:
    return any((folder / name).exists() for name in (EXCHANGE, MEMBERS_FILE)) and not (folder / "checkpoints").exists()


def require_run(folder: Path) -> None:
    """Refuse the folder of a population where the folder of a run is needed."""
    if is_population(folder):
        members = ", ".join(str(member) for member in _in_order(folder)) or "the folder of a run"
        raise UsageError(f"{folder} is the folder of a population, whose members are the runs; allowed: {members}")


def member_folders(folder: Path) -> list[Path]:
    """The members that have had a round; empty if `folder` is something else."""
    if (folder / "metrics.jsonl").exists() or not folder.is_dir():
        return []
    return [member for member in _in_order(folder) if (member / FILE).is_file()]


def _in_order(folder: Path) -> list[Path]:
    """The run folders in a folder, by name, with numbers as numbers."""
    found = [path for path in folder.iterdir() if (path / "config.json").is_file()]
    return sorted(found, key=lambda path: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", path.name)])
