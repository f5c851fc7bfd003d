"""The learned weight of the entropy bonus (VER, section 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.learner.config import PPOConfig
from paceline.nets.ppo_policy import PPOPolicy


class EntropyCoefficient(nn.Module):
    """alpha, learned so that the policy's entropy H does not stay below a target lambda, in nats.

    alpha is the multiplier of that constraint: it grows while H < lambda and falls while H > lambda, within bounds. The
    paper prints the loss as alpha (lambda - sg(H)) - sg(alpha) H. Minimising its first term would move alpha the wrong
    way. The sign here is that of Haarnoja et al. (2018), the paper's source. The parameter is log alpha: a step changes
    alpha by a share of itself.
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
        """[M]: alpha (sg(H) - lambda) - sg(alpha) H, row by row."""
        alpha = self()
        return alpha * (entropy.detach() - self._target) - alpha.detach() * entropy

    @torch.no_grad()
    def bound(self) -> None:
        """Clamp alpha to its bounds, in place."""
        self.log_alpha.clamp_(*self._log_bounds)


def make_entropy_coefficient(policy: PPOPolicy, config: PPOConfig, device: torch.device) -> EntropyCoefficient | None:
    """None where the weight is constant."""
    if config.entropy_target is None:
        return None
    most = policy.head.max_entropy
    if config.entropy_target >= most:
        raise UsageError(
            f"ppo.entropy_target is {config.entropy_target} nats, but these actions have at most {most:.4g}; "
            "allowed: a lower target"
        )
    return EntropyCoefficient(config.entropy_coef, config.entropy_target, config.entropy_bounds).to(device)
