"""Skips gradient steps that are not finite, so that NaN and infinity never reach the weights.

A skipped step is counted. The learner then ends the run, or continues (`on_nonfinite skip`) unless too many steps in a
row were skipped.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from paceline.errors import PacelineError
from paceline.learner.config import OnNonFinite

TOO_MANY_IN_A_ROW = 10
"""A run ends after this many consecutive skipped gradient steps."""


class NonFiniteError(PacelineError):
    """A loss, gradient or weight is NaN or infinite."""


class NonFiniteOnRanks(NonFiniteError):
    """The same where all ranks raise it, and the message names those whose policies are concerned."""

    names_rank = True


@contextlib.contextmanager
def naming_policy(policy: int, policies: int) -> Iterator[None]:
    """A `NonFiniteError` inside the context names `policy`, if it is one of several."""
    try:
        yield
    except NonFiniteError as error:
        if policies == 1:
            raise
        raise NonFiniteError(f"policy {policy}: {error}") from error


class FiniteSteps:
    """Takes an optimiser's steps if they are finite. The counts stay on the device: only `check` waits for it."""

    def __init__(self, device: torch.device, on_nonfinite: OnNonFinite = "stop") -> None:
        self._skips, self._on_cpu = on_nonfinite == "skip", device.type == "cpu"
        self._skipped_last = False
        self.counts = torch.zeros(4, device=device)
        """Skipped steps: whether the last one, how many in a row now, the most in a row, and all."""

    def take(self, optimizer: torch.optim.Optimizer, norm: Tensor) -> None:
        """One step, unless the `norm` of its gradient is not finite, or is 0, as in an update without valid rows, where
        Adam's momentum alone would move the weights."""
        length = norm.item() if self._on_cpu else math.nan
        if math.isfinite(length):
            if self._skipped_last:
                self._skipped_last = False
                self.counts[:2] = 0.0
            if length > 0:
                optimizer.step()
            return
        self._skipped_last = True
        count_(self.counts, norm)
        if not self._on_cpu:
            # Fused Adam changes nothing where this is 1. A gradient of 0 is not counted as skipped.
            optimizer.found_inf = torch.maximum(self.counts[0], (norm == 0).float())  # type: ignore[attr-defined]
            optimizer.step()

    def counted(self, sums: Tensor) -> Tensor:
        """Sums of metrics over the rows of the last step: 0 if it was skipped and the run continues."""
        return torch.where(self.counts[0] > 0, 0.0, sums) if self._skips else sums

    def check(self, losses: Mapping[str, float], update: int) -> dict[str, float]:
        """Raise `NonFiniteError` for skipped steps that `on_nonfinite` does not allow and for losses that are not
        finite. Otherwise return the number of skipped steps. Waits for the device."""
        _, _, most, skipped = self.counts.tolist()
        if self._skips:
            if most >= TOO_MANY_IN_A_ROW:
                raise NonFiniteError(
                    f"update {update}: {most:.0f} gradients in a row were not finite; "
                    f"on_nonfinite skip ends a run after {TOO_MANY_IN_A_ROW}"
                )
            return {"skipped_steps": skipped}
        wrong = [f"{skipped:.0f} gradients were not finite"] if skipped else []
        wrong += [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]
        if wrong:
            raise NonFiniteError(f"update {update}: {', '.join(wrong)}")
        return {}


def count_(counts: Tensor, norm: Tensor) -> Tensor:
    """Count a step in `FiniteSteps.counts`, in place. Returns [] bool: whether to take it. Can be recorded and
    compiled."""
    finite = norm.isfinite()
    skipped = (~finite).float()
    in_a_row = (counts[1] + 1.0) * skipped
    counts.copy_(torch.stack([skipped, in_a_row, torch.maximum(counts[2], in_a_row), counts[3] + skipped]))
    return finite


def require_finite(policy: nn.Module) -> None:
    """Raise `NonFiniteError` for a weight that is not finite: no checkpoint may have one. Waits for the device."""
    wrong = [name for name, values in policy.named_parameters() if not bool(values.isfinite().all())]
    wrong += [name for name, values in policy.named_buffers() if bool(values.isnan().any())]  # bounds may be infinite
    if wrong:
        raise NonFiniteError(f"the weights {', '.join(wrong[:3])} are not finite, and no checkpoint of them is written")
