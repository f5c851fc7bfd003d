"""One measurement of Paceline for `benchmarks.control_speed`: a run of `paceline train`, of which the reports are read.

`python -m benchmarks.control_speed_cell '{"arguments": ["dmc_cheetah_run"], "seconds": 10, "patience": 60}'`
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from paceline.distributed.launch import end_with_parent

from .cells import end_group, last_line
from .peers.control_loop import WARM_UP


def rates(reports: list[dict[str, Any]], seconds: float) -> dict[str, float] | None:
    """Steps and updates per second after the warm-up. None if the reports do not cover `seconds`."""
    learning = [report for report in reports if report.get("updates", 0) > WARM_UP]
    if len(learning) < 2 or (elapsed := learning[-1]["seconds"] - learning[0]["seconds"]) < seconds:
        return None
    return {
        "updates_per_second": (learning[-1]["updates"] - learning[0]["updates"]) / elapsed,
        "steps_per_second": (learning[-1]["step"] - learning[0]["step"]) / elapsed,
    }


def main() -> None:
    options = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-m", "paceline", "train", *options["arguments"], "--run-dir", f"{folder}/run"]
        # The training has no end of its own, and this process may be killed.
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, preexec_fn=end_with_parent
        )
        try:
            found = wait(process, Path(folder) / "run" / "metrics.jsonl", options["seconds"], options["patience"])
        finally:
            end_group(process)
        if found is None:
            output.seek(0)
            sys.exit(last_line(output.read()) or "the run reported too few updates")
    print("RESULT " + json.dumps(found), flush=True)


def wait(process: subprocess.Popen, metrics: Path, seconds: float, patience: float) -> dict[str, float] | None:
    """The rates, as soon as the reports cover `seconds`. None if the run ends before, or after `patience` seconds."""
    end = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
        if metrics.exists():
            # The last line may be incomplete.
            lines = metrics.read_text().split("\n")[:-1]
            if (found := rates([json.loads(line) for line in lines], seconds)) is not None:
                return found
    return None


if __name__ == "__main__":
    main()
