"""What the runs of a population tell each other, through a folder that all of them can reach.

`exchange/NAME/` belongs to one member, which alone writes to it:

- `result.json`: its latest result,
- `checkpoints/step_N/`: the weights and training state that the result is about.

Every file gets its name only when it is complete. A checkpoint stays until the result after the next is published, so
that a member which has just read a result can still load it. The folder keeps the results of members that have ended.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.checkpoint import Checkpoint, CheckpointFolder
from paceline.files import replace_text
from paceline.run_folder import EXCHANGE

log = logging.getLogger(__name__)

RESULT = "result.json"
KEEP = 2


@dataclass(frozen=True, kw_only=True)
class MemberResult:
    """The latest result of one member."""

    name: str
    step: int
    """The step of its run."""
    objective: float | None
    """Mean over its latest episodes; None before the first one has ended."""
    hyperparameters: dict[str, float]
    """All that can change, by path."""
    checkpoint: str
    """Name of the checkpoint in its folder."""
    network: str
    """Fingerprint of its network and environment. Members exchange weights only if it is the same."""

    @classmethod
    def parse(cls, text: str) -> MemberResult:
        """Read a result that may come from another machine. Raises `ValueError` if it is not one."""
        try:
            result = cls(**json.loads(text))
            numbers = [result.step, *result.hyperparameters.values()]
            numbers += [] if result.objective is None else [result.objective]
            texts = (result.name, result.checkpoint, result.network)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"it is no result: {error}") from error
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise ValueError("one of its numbers is not finite")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("one of its names is no text")
        return result


class ExchangeFolder:
    """The exchange of one population. `population` is the folder of the population."""

    def __init__(self, population: Path) -> None:
        self._folder = population / EXCHANGE

    def of(self, name: str) -> Path:
        """The folder of a member."""
        return self._folder / name

    def publish(self, result: MemberResult, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Replace the member's result. `result.checkpoint` must be the name of its step."""
        folder = self.of(result.name)
        self._checkpoints(result.name).save(result.step, weights, state, {}, best=False)
        replace_text(folder / RESULT, json.dumps(dataclasses.asdict(result), allow_nan=False) + "\n")

    def results(self) -> dict[str, MemberResult]:
        """The latest results of all members, by name. Files that are no results are left out, with a warning."""
        found = {}
        for path in sorted(self._folder.glob(f"*/{RESULT}")):
            try:
                result = MemberResult.parse(path.read_text())
            except (OSError, ValueError) as error:
                log.warning("%s is left out: %s", path, error)
                continue
            if result.name == path.parent.name:
                found[result.name] = result
        return found

    def forget(self, name: str) -> None:
        """Remove what a member has published."""
        (self.of(name) / RESULT).unlink(missing_ok=True)  # first: it names a checkpoint
        shutil.rmtree(self.of(name) / "checkpoints", ignore_errors=True)

    def load(self, result: MemberResult) -> Checkpoint:
        """The weights and the training state of a result. Raises `CheckpointError` if they are gone."""
        return self._checkpoints(result.name).load(result.checkpoint)

    def _checkpoints(self, name: str) -> CheckpointFolder:
        return CheckpointFolder(self.of(name) / "checkpoints", KEEP)


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """The shape of every weight, by name."""
    return {name: list(tensor.shape) for name, tensor in sorted(weights.items())}
