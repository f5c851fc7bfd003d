"""The learned weight of the entropy bonus (VER, section 4): a constraint on the policy's entropy instead of a constant."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class EntropyCoefficient(nn.Module):
    """alpha, learned so that the policy's entropy H does not stay below a target lambda, in nats.

    It is the multiplier of that constraint: it grows while H < lambda, falls while H > lambda, and is brought back
    into its bounds after every step. The paper prints its loss as alpha (lambda - sg(H)) - sg(alpha) H, the first term
    of which, minimised, moves alpha the other way; the sign here is that of Haarnoja et al. (2018), from
    whom it is taken. The logarithm is what is learned: a step changes alpha by a share of itself, at 1e-4 as at 1.
    """

    def __init__(self, initial: float, target: float, bounds: tuple[float, float]) -> None:
        super().__init__()
        self._target = target
        self._log_bounds = math.log(bounds[0]), math.log(bounds[1])
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """[]: alpha."""
        return self.log_alpha.exp()

    def loss(self, entropy: Tensor) -> Tensor:
        """[M], of rows with these entropies: sg(alpha) teaches the policy, sg(H) teaches alpha."""
        alpha = self()
        return alpha * (entropy.detach() - self._target) - alpha.detach() * entropy

    @torch.no_grad()
    def bound(self) -> None:
        """Bring alpha back into its bounds, in place."""
        self.log_alpha.clamp_(*self._log_bounds)
