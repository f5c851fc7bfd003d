"""V-trace (Espeholt et al., 2018): value targets for another policy than the one that acted.

T steps, N columns. A column is consecutive rows of one slot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.ops.ratio import ratio_of


class VTrace(NamedTuple):
    targets: Tensor
    """[T, N]: v_t, the target of V_t."""
    advantage: Tensor
    """[T, N]: r_t + discount * (V_{t+1} + trace_decay * (v_{t+1} - V_{t+1})) - V_t, without an importance weight: the
    probability ratio in the policy loss is that of row t already."""
    rho: Tensor
    """[T, N]: the truncated importance weights."""


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    continues: Tensor,
    *,
    discount: float | Tensor,
    trace_decay: float | Tensor = 1.0,
    max_rho: float | Tensor = 1.0,
    max_c: float | Tensor = 1.0,
) -> VTrace:
    """Targets for a policy pi of rows decided by a policy mu; `log_ratio` [T, N] is log pi - log mu.

    v_t = V_t + rho_t * (r_t + discount * V_{t+1} - V_t) + discount * c_t * (v_{t+1} - V_{t+1}), with rho_t =
    min(max_rho, pi / mu) and c_t = trace_decay * min(max_c, pi / mu). `next_value` and `continues` are those of `gae`.
    Where pi = mu, the advantages are those of `gae`.
    """
    ratio = ratio_of(log_ratio)
    rho = ratio.clamp(max=max_rho)
    td = reward + discount * next_value - value
    delta = rho * td
    weight = continues.to(td.dtype) * (discount * trace_decay)
    trace = weight * ratio.clamp(max=max_c)
    correction = torch.empty_like(td)  # v_t - V_t
    following = torch.zeros_like(td[0])
    for t in range(len(td) - 1, -1, -1):
        following = torch.addcmul(delta[t], trace[t], following)
        correction[t] = following
    after = torch.cat([correction[1:], torch.zeros_like(correction[:1])])
    return VTrace(value + correction, torch.addcmul(td, weight, after), rho)
