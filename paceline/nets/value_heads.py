"""Value heads of D4PG's critic: a categorical distribution, a mixture of Gaussians, or one number (D4PG, appendix A).

Legend: B rows, K atoms, G Gaussians, P outputs of the critic per row.

`loss` is the critic's loss against the target distribution reward + discount * Z, with Z from the target critic.
`surprise` is the priority in the replay, never negative: the loss of a categorical distribution, and otherwise the
absolute error of the mean, because a mixture's loss is a log-density and may be negative.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.nets.config import ValueConfig
from paceline.nets.registry import VALUE_HEAD, build
from paceline.ops.categorical import atoms, cross_entropy, mean, project


class ValueHead(Protocol):
    num_outputs: int

    def mean(self, outputs: Tensor) -> Tensor:
        """[B]: the expected return of the critic's `outputs` [B, P]."""
        ...

    def loss(self, outputs: Tensor, reward: Tensor, discount: Tensor, target: Tensor) -> Tensor:
        """[B]: the loss. `target` is the target critic's output for the next observation, without gradient."""
        ...

    def surprise(self, outputs: Tensor, reward: Tensor, discount: Tensor, target: Tensor, loss: Tensor) -> Tensor:
        """[B]: the priority, given the `loss` of the same arguments."""
        ...


class Categorical(nn.Module):
    """Logits of K atoms; the loss is the cross-entropy against the projected target (equation 10)."""

    support: Tensor

    def __init__(self, config: ValueConfig) -> None:
        super().__init__()
        self.num_outputs = config.atoms
        self.register_buffer("support", atoms(config.low, config.high, config.atoms), persistent=False)

    def mean(self, outputs: Tensor) -> Tensor:
        return mean(outputs, self.support)

    def loss(self, outputs: Tensor, reward: Tensor, discount: Tensor, target: Tensor) -> Tensor:
        returns = reward[:, None] + discount[:, None] * self.support
        return cross_entropy(outputs, project(returns, target.softmax(-1), self.support))

    def surprise(self, outputs: Tensor, reward: Tensor, discount: Tensor, target: Tensor, loss: Tensor) -> Tensor:
        return loss


class Mixture(nn.Module):
    """Weights, means and scales of G Gaussians; the loss is -log-likelihood of target samples (equation 12)."""

    LEAST_SCALE = 1e-3

    def __init__(self, config: ValueConfig) -> None:
        super().__init__()
        self.num_outputs, self._samples = 3 * config.components, config.samples

    def mean(self, outputs: Tensor) -> Tensor:
        logits, centre, _ = self._params(outputs)
        return (logits.softmax(-1) * centre).sum(-1)

    def loss(self, outputs: Tensor, reward: Tensor, discount: Tensor, target: Tensor) -> Tensor:
        returns = reward[:, None] + discount[:, None] * self._draw(target)
        logits, centre, scale = self._params(outputs)
        distance = (returns[:, :, None] - centre[:, None]) / scale[:, None]
        density = -0.5 * distance.square() - scale.log()[:, None] - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(logits.log_softmax(-1)[:, None] + density, -1).mean(-1)

    def surprise(self, outputs: Tensor, reward: Tensor, discount: Tensor, target: Tensor, loss: Tensor) -> Tensor:
        return (reward + discount * self.mean(target) - self.mean(outputs)).abs()

    def _params(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, centre, scale = outputs.chunk(3, -1)
        return logits, centre, functional.softplus(scale) + self.LEAST_SCALE

    def _draw(self, outputs: Tensor) -> Tensor:
        """[B, samples]."""
        logits, centre, scale = self._params(outputs)
        chosen = torch.multinomial(logits.softmax(-1), self._samples, replacement=True)
        noise = torch.randn(chosen.shape, device=outputs.device)
        return centre.gather(1, chosen) + scale.gather(1, chosen) * noise


class Scalar(nn.Module):
    """One number; the loss is half the squared error."""

    num_outputs = 1

    def __init__(self, config: ValueConfig) -> None:
        super().__init__()

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def loss(self, outputs: Tensor, reward: Tensor, discount: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (reward + discount * target.squeeze(-1) - outputs.squeeze(-1)).square()

    def surprise(self, outputs: Tensor, reward: Tensor, discount: Tensor, target: Tensor, loss: Tensor) -> Tensor:
        return (2.0 * loss).sqrt()


def make_value_head(config: ValueConfig) -> Categorical | Mixture | Scalar:
    """The value head that `config.kind` names; one of the user's own has the methods of `ValueHead`."""
    known = {"categorical": Categorical, "mixture": Mixture, "scalar": Scalar}
    return build(VALUE_HEAD, "control.value.kind", config.kind, known, config)
