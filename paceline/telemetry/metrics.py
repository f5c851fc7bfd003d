"""Metrics on disk: one JSON object per report in metrics.jsonl, the same numbers in TensorBoard and, if asked, W&B."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import MissingExtra


class MetricsWriter:
    """Writes the reports of one run; only the first rank has one."""

    def __init__(
        self, folder: Path, *, wandb_project: str | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._file = open(folder / "metrics.jsonl", "a", buffering=1)  # noqa: SIM115 - kept open for the whole run
        self._tensorboard = SummaryWriter(str(folder / "tensorboard"))
        self._wandb = _start_wandb(folder, wandb_project, config) if wandb_project else None

    def write(self, report: Mapping[str, Any]) -> None:
        """One report; it needs a `step`. Numbers that are not finite are written as null: JSON has no others."""
        self._file.write(json.dumps({key: _plain(value) for key, value in report.items()}) + "\n")
        step = report["step"]
        for key, value in report.items():
            if isinstance(value, int | float) and key != "step" and math.isfinite(value):
                self._tensorboard.add_scalar(key, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(report), step=step)

    def close(self) -> None:
        self._file.close()
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _start_wandb(folder: Path, project: str, config: Mapping[str, Any] | None) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise MissingExtra("--wandb-project", "wandb", error) from error
    return wandb.init(project=project, dir=str(folder), name=folder.name, config=dict(config or {}))
