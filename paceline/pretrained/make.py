"""Trains the policies of this package again: `python -m paceline.pretrained.make pointnav`.

The run is in runs/pretrained-NAME. A run there that has ended is not trained again. The policy's folder is replaced.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

from safetensors.torch import save_file

from paceline import __version__
from paceline.envs.registry import resolve
from paceline.errors import PacelineError, UsageError
from paceline.evaluation.history import History
from paceline.evaluation.saved import SavedRun
from paceline.files import replace_text
from paceline.pretrained import POLICIES, find_policy
from paceline.saved_spaces import FILE as SPACES
from paceline.telemetry.console import print_line


def make(name: str, runs: Path = Path("runs")) -> Path:
    """Train the policy, and write its folder."""
    policy, target = find_policy(name)
    run = runs / f"pretrained-{name}"
    command = ["train", *policy.train]
    if not (run / "checkpoints" / "latest").exists():
        subprocess.run([sys.executable, "-m", "paceline", *command, "--run-dir", str(run)], check=True)
    write_policy(run, target, shlex.join(["paceline", *command]))
    return target


def write_policy(run: Path, target: Path, command: str) -> None:
    """Write the latest policy of a run to a folder that `SavedRun.load` reads."""
    saved, history = SavedRun.load(run), History.load(run)
    target.mkdir(exist_ok=True)
    save_file(saved.weights, target / "weights.safetensors")
    config = saved.config
    if resolve(config.env).steps_singly:  # the pool `auto` measures for seconds
        config = dataclasses.replace(config, pool=dataclasses.replace(config.pool, kind="serial"))
    replace_text(target / "config.json", json.dumps(config.settings(), indent=2) + "\n")
    replace_text(target / SPACES, (run / SPACES).read_text())
    about = {
        "command": command,
        "steps": int(history.last("step") or 0),
        "seconds": round(history.last("seconds") or 0.0),
        "date": time.strftime("%Y-%m-%d", time.localtime((run / "metrics.jsonl").stat().st_mtime)),
        "paceline": __version__,
    }
    replace_text(target / "about.json", json.dumps(about, indent=2) + "\n")


def main(names: list[str]) -> None:
    if not names:
        raise UsageError(f"nothing to make: give the names of policies; allowed: {', '.join(POLICIES)}")
    for name in names:
        print_line(f"{name}: {make(name)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except PacelineError as error:
        sys.exit(f"paceline: {error}")
