"""Families of independent action components, as arithmetic on flat tables of parameters.

Legend: B rows, K components, n choices of the widest component.

A family turns `num_outputs` outputs of a network into `num_params` parameters. From parameters alone it samples and
evaluates all its components at once, as [B, K] tables. Log-probabilities and entropies are sums over components.
`max_entropy` is an upper bound, in nats. Nothing here waits for a device. The tests compare with torch.distributions,
which costs about twice as much at the batch sizes of acting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOWEST = torch.finfo(torch.float32).min
"""The logit of a choice that does not exist: finite, so that 0 * log 0 is 0 and no gradient is NaN."""
FORBIDDEN = LOWEST / 2
"""The logit of a masked choice: higher, so that a row with nothing allowed is uniform over the choices that exist."""
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Categoricals(nn.Module):
    """K choices, the k-th among `sizes[k]`.

    Parameters are log-probabilities [B, K * n], normalised once for all uses. Where sizes differ, the narrower
    components are padded with choices of probability 0, so that one operation serves all components.
    """

    _source: Tensor
    """Where sizes differ: the output that each parameter comes from."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.num_components, self.widest = len(sizes), max(sizes)
        self.num_outputs = sum(sizes)
        self.num_params = self.num_components * self.widest
        self.max_entropy = sum(math.log(size) for size in sizes)
        self._ragged = self.num_outputs != self.num_params
        if self._ragged:
            source, start = [], 0
            for size in sizes:
                missing = self.widest - size
                source += [*range(start, start + size), *[self.num_outputs] * missing]  # the column after the last
                start += size
            self.register_buffer("_source", torch.tensor(source), persistent=False)

    def params(self, outputs: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Parameters from logits [B, sum of sizes]. Where `allowed` (bool, same shape) is False, the probability is 0.

        Where nothing is allowed the choice is uniform: to refuse such a mask, every decision would wait for the device.
        """
        if allowed is not None:
            outputs = outputs.masked_fill(~allowed, FORBIDDEN)
        if self._ragged:
            outputs = F.pad(outputs, (0, 1), value=LOWEST).index_select(1, self._source)
        return self._table(outputs).log_softmax(-1).flatten(1)

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        # An exponential race, cheaper than torch.multinomial: the choice with the smallest E / p wins, E ~ Exp(1) as
        # -log U. U starts above 0: p / log U is below zero for every possible choice, and zero for the others, which
        # therefore never win.
        p = self._table(params).exp()
        return p.div_(torch.empty_like(p).uniform_(1e-30, 1.0, generator=generator).log_()).argmin(-1)

    def mode(self, params: Tensor) -> Tensor:
        return self._table(params).argmax(-1)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return self._table(params).gather(-1, actions.long().unsqueeze(-1)).sum((1, 2))

    def entropy(self, params: Tensor) -> Tensor:
        return -(params.exp() * params).sum(1)

    def _table(self, columns: Tensor) -> Tensor:
        return columns.view(-1, self.num_components, self.widest)


class Binaries(nn.Module):
    """K yes-or-no choices; parameters are logits [B, K]."""

    def __init__(self, num_components: int) -> None:
        super().__init__()
        self.num_components = self.num_outputs = self.num_params = num_components
        self.max_entropy = num_components * math.log(2)

    def params(self, outputs: Tensor) -> Tensor:
        return outputs

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.empty_like(params).uniform_(generator=generator) < params.sigmoid()

    def mode(self, params: Tensor) -> Tensor:
        return params > 0

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return F.logsigmoid(params * (2 * actions.to(params.dtype) - 1)).sum(1)

    def entropy(self, params: Tensor) -> Tensor:
        return (F.softplus(params) - params * params.sigmoid()).sum(1)


class Gaussians(nn.Module):
    """K normal variables; parameters are means, then log standard deviations, [B, 2 * K].

    With `squash` the environment's action is low + (high - low) * (1 + tanh(u)) / 2 of a normal u, and densities are
    those of that action. The actions of this class are always u: near the bounds a rounded action does not determine u.
    """

    low: Tensor
    high: Tensor
    _log_half_range: Tensor

    def __init__(
        self,
        low: Tensor,
        high: Tensor,
        *,
        state_dependent: bool,
        initial_log_std: float,
        log_std_range: tuple[float, float],
        squash: bool,
    ) -> None:
        super().__init__()
        self.num_components = len(low)
        self.num_outputs = self.num_components * (2 if state_dependent else 1)
        self.num_params = 2 * self.num_components
        self.max_entropy = float((high - low).log().sum()) if squash else math.inf
        self._log_std_range, self.squash = log_std_range, squash
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        if squash:
            self.register_buffer("_log_half_range", ((high - low) / 2).log(), persistent=False)
        self.log_std = None if state_dependent else nn.Parameter(torch.full((self.num_components,), initial_log_std))

    def params(self, outputs: Tensor) -> Tensor:
        if self.log_std is not None:
            return torch.cat([outputs, self.log_std.expand(outputs.shape[0], -1)], dim=1)
        mean, log_std = outputs.chunk(2, dim=1)
        return torch.cat([mean, log_std.clamp(*self._log_std_range)], dim=1)

    @torch.no_grad()
    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._draw(params, generator)

    def mode(self, params: Tensor) -> Tensor:
        """The mean (under `squash` the median of the environment's action: its mode may lie at a bound)."""
        return params[:, : self.num_components]

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, dim=1)
        z = (actions - mean) * (-log_std).exp()
        log_density = -0.5 * z * z - log_std - HALF_LOG_TAU
        if self.squash:
            # log(1 - tanh(u)^2) = 2 (log 2 - u - log(1 + exp(-2 u))), which neither cancels nor overflows.
            log_slope = 2 * (math.log(2) - actions - F.softplus(-2 * actions))
            log_density = log_density - log_slope - self._log_half_range
        return log_density.sum(1)

    def entropy(self, params: Tensor) -> Tensor:
        """Exact without `squash`. With it there is no closed form: -log_prob of one fresh sample, an unbiased estimate
        with gradients."""
        if self.squash:
            return -self.log_prob(params, self._draw(params))
        return (params[:, self.num_components :] + (0.5 + HALF_LOG_TAU)).sum(1)

    def env_actions(self, actions: Tensor) -> Tensor:
        """Actions within the environment's bounds."""
        if self.squash:
            actions = self.low + (self.high - self.low) * (0.5 * (actions.tanh() + 1))
        # Also after squashing: rounding may end just outside.
        return actions.clamp(self.low, self.high)

    def _draw(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        mean, log_std = params.chunk(2, dim=1)
        return mean + log_std.exp() * torch.empty_like(mean).normal_(generator=generator)
