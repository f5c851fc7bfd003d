"""What a run folder remembers of commands: how the run was started, and what `paceline eval` has measured.

`starts.jsonl` has one line for each start and resume: command, date, commit and versions. `evaluations.jsonl` has one
line for each `paceline eval` of the run: its result and date. A line that cannot be written ends nothing.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline import __version__

log = logging.getLogger(__name__)

STARTS, EVALUATIONS = "starts.jsonl", "evaluations.jsonl"
GIT_SECONDS = 5.0
"""A commit that git does not tell within this time is not recorded."""


def record_start(folder: Path, scenes_label: str | None = None) -> None:
    """Note the command of this process, the commit of the current folder, Paceline's version and commit, and the label
    of the user's own scenes."""
    own = commit_of(Path(__file__).parent)
    version = f"{__version__}, {own}" if own else __version__
    line = {"command": this_command(), "commit": commit_of(Path.cwd()), "paceline": version}
    _append(folder / STARTS, line if scenes_label is None else {**line, "scenes_label": scenes_label})


def record_evaluation(folder: Path, result: Mapping[str, Any]) -> None:
    """Note what `paceline eval` prints."""
    _append(folder / EVALUATIONS, {"result": dict(result)})


def starts_of(folder: Path) -> list[dict[str, Any]]:
    """The starts of a run, oldest first. Empty for a run of an older version."""
    return _read(folder / STARTS)


def scenes_label_of(folder: Path) -> str | None:
    """The label of the user's own scenes at the latest start of a run. None if it had none, or has not recorded it."""
    starts = starts_of(folder)
    return starts[-1].get("scenes_label") if starts else None


def evaluations_of(folder: Path) -> list[dict[str, Any]]:
    """The results of evaluations, oldest first."""
    return [line["result"] for line in _read(folder / EVALUATIONS) if isinstance(line.get("result"), dict)]


def this_command() -> str:
    """The command of this process, as a user types it."""
    program = Path(sys.argv[0])
    is_own = program.name == "paceline" or program.parts[-2:] == ("paceline", "__main__.py")
    return shlex.join(["paceline", *sys.argv[1:]] if is_own else ["python", *sys.argv])


def commit_of(folder: Path) -> str | None:
    """The commit that a folder of a git repository is at, with -dirty if files have changed. None elsewhere."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _append(path: Path, line: dict[str, Any]) -> None:
    date = time.strftime("%Y-%m-%d %H:%M:%S")
    try:
        with path.open("a") as file:
            file.write(json.dumps({"date": date, **line}) + "\n")
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
