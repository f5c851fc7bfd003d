"""Generalized advantage estimation (Schulman et al., 2016).

T steps, N columns. A column is consecutive rows of one slot.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, continues: Tensor, *, discount: float, trace_decay: float
) -> Tensor:
    """Advantages [T, N]: A_t = delta_t + discount * trace_decay * A_{t+1}, with delta_t = r_t + discount * V_{t+1} -
    V_t.

    `next_value` [T, N] is V_{t+1}: the value of row t+1 where the episode continues, 0 where it terminated, V(final
    observation) where it was truncated, V(next observation) where the column ends. `continues` [T, N] is set where row
    t+1 exists and belongs to the same episode. Elsewhere the sum ends.
    """
    delta = reward + discount * next_value - value
    weight = continues.to(delta.dtype) * (discount * trace_decay)
    advantage = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        following = torch.addcmul(delta[t], weight[t], following)
        advantage[t] = following
    return advantage
