"""Running means and variances of observations and returns, the same on every rank.

Legend: B rows, N slots, D features of a leaf (its elements, or the channels of an image).

Each rank computes sums over its rows (a count, sums, sums of squares). The sums of all ranks are added, and every rank
absorbs the same total: the statistics of all rows. Sums of several batches may be added before they are absorbed.
Statistics are buffers: saved, restored and published with the weights. Nothing here waits for a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.nets.layers import as_float

CLIP = 10.0
VECTOR_MIN_STD = 1e-4
IMAGE_MIN_STD = 0.1
"""DD-PPO's floor: the noise of images that hardly vary (a dark room, the first rollout) is not amplified."""


class RunningMoments(nn.Module):
    """Count, mean and (population) variance of everything absorbed, in float64.

    In float32 a batch's contribution to the mean would vanish after 10^8 rows.
    """

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("var", torch.ones(tuple(shape), dtype=torch.float64))

    @torch.no_grad()
    def update_from_sums(self, count: Tensor, total: Tensor, total_of_squares: Tensor) -> None:
        """Merge rows given by their sums; a count of 0 changes nothing (Chan et al., 1979, equation 2.1)."""
        batch_mean = total / count.clamp(min=1)
        batch_m2 = (total_of_squares - batch_mean * total).clamp(min=0)  # rounding may end just below 0
        merged = self.count + count
        share = count / merged.clamp(min=1)
        delta = batch_mean - self.mean
        m2 = self.var * self.count + batch_m2 + delta.square() * self.count * share
        self.var.copy_(torch.where(merged > 0, m2 / merged.clamp(min=1), self.var))
        self.mean.add_(delta * share)
        self.count.copy_(merged)

    def inverse_std(self, min_std: float) -> Tensor:
        """1 / max(std, min_std); 1 before any data."""
        return torch.where(self.count > 0, 1 / self.var.sqrt().clamp(min=min_std), torch.ones_like(self.var))


class ObservationNormalizer(nn.Module):
    """One leaf to zero mean and unit variance, clipped at +-`CLIP`; the identity before any data.

    Images (leaves [C, H, W]) are normalised channel by channel, other leaves, and boards, element by element. uint8 is
    scaled to [0, 1] first: the result is floating point, which encoders do not scale again.
    """

    shift: Tensor
    scale: Tensor
    limit: Tensor

    def __init__(self, leaf_shape: Sequence[int], *, is_board: bool = False) -> None:
        """A board has three dimensions like an image, but any of them may count its planes."""
        super().__init__()
        self.is_frozen = False
        """Whether the statistics stay as they are."""
        self._image = len(leaf_shape) == 3 and not is_board
        self._min_std = IMAGE_MIN_STD if self._image else VECTOR_MIN_STD
        shape = (leaf_shape[0], 1, 1) if self._image else tuple(leaf_shape)
        self.moments = RunningMoments(shape)
        # `forward` reads these. They are derived when the moments change, not in every forward pass. They are buffers,
        # so that copies of the weights have them.
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("limit", torch.full((), math.inf))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Older checkpoints have boards by their first dimension."""
        for name in ("shift", "scale", "moments.mean", "moments.var"):
            saved = state_dict.get(prefix + name)
            if saved is not None and len(self.shift.shape) == 3 and saved.shape == (len(self.shift), 1, 1):
                state_dict[prefix + name] = saved.expand(self.shift.shape)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    @torch.no_grad()
    def sums(self, obs: Tensor) -> Tensor:
        """[1 + 2 D] float64: count, sums and sums of squares of the values in rows [B, *leaf_shape]."""
        values = obs if obs.is_floating_point() else obs.float()
        unit = 1 / 255 if obs.dtype == torch.uint8 else 1.0  # applied to the sums: saves a pass over the rows
        if self._image:
            pixels = values.flatten(2)  # [B, C, H * W]: float32 within an image, float64 across images
            size = pixels.shape[2]
            means = pixels.mean(2, keepdim=True)
            # Squares about each image's mean: float32 squares of large pixels would round the variance away.
            spread = torch.linalg.vector_norm(pixels - means, dim=2).double().square()
            means = means.squeeze(2).double()
            per_row = torch.stack([size * means, spread + size * means.square()])
            count = len(pixels) * size
        else:
            rows = values.double().reshape(len(values), self.shift.numel())
            per_row = torch.stack([rows, rows.square()])
            count = len(rows)
        total, total_of_squares = per_row.sum(1)
        return torch.cat([total.new_full((1,), count), total * unit, total_of_squares * unit**2])

    @torch.no_grad()
    def absorb(self, sums: Tensor) -> None:
        """Add the sums of all ranks to the statistics."""
        total, total_of_squares = sums[1:].view(2, *self.shift.shape)
        self.moments.update_from_sums(sums[0], total, total_of_squares)
        started = self.moments.count > 0
        self.shift.copy_(self.moments.mean)
        self.scale.copy_(self.moments.inverse_std(self._min_std))
        self.limit.copy_(torch.where(started, CLIP, math.inf))

    def forward(self, obs: Tensor) -> Tensor:
        """[B, *leaf_shape], floating point."""
        return ((as_float(obs) - self.shift) * self.scale).clamp(-self.limit, self.limit)


class ReturnNormalizer(nn.Module):
    """Divides rewards by the standard deviation of the discounted returns so far, clipped at +-`CLIP`.

    Every slot has a running return R <- gamma R + r, which is reset to zero when an episode terminates or is truncated.
    Rewards are not centred: that would change the optimal policy. Before any data they pass unchanged.

    `running` belongs to this rank's slots: saved with a checkpoint, never reduced or broadcast.
    """

    running: Tensor
    scale: Tensor
    limit: Tensor

    def __init__(self, num_slots: int, *, gamma: float) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise UsageError(f"gamma must be within [0, 1], got {gamma}")
        self.gamma = gamma
        self.moments = RunningMoments()
        self.register_buffer("running", torch.zeros(num_slots, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("limit", torch.full((), math.inf))

    @torch.no_grad()
    def observe(
        self, slots: Tensor, reward: Tensor, terminated: Tensor, truncated: Tensor, real: Tensor | None = None
    ) -> Tensor:
        """Advance the running returns of B slots by one step each; [3] float64 sums of those returns.

        `real` [B] bool is False where no decision led to the row: a slot's first batch, a replaced simulator, an
        inactive agent. The row's reward is ignored, and the slot's return starts at zero.
        """
        returns = self.running[slots] * self.gamma + reward
        if real is None:
            count = returns.new_full((), len(returns))
        else:
            returns = torch.where(real, returns, 0.0)
            count = real.sum(dtype=returns.dtype)
        self.running.index_copy_(0, slots, torch.where(terminated | truncated, 0.0, returns))
        return torch.stack([count, returns.sum(), returns.square().sum()])

    @torch.no_grad()
    def absorb(self, sums: Tensor) -> None:
        """Add the sums of all ranks to the statistics."""
        self.moments.update_from_sums(*sums.unbind())
        self.scale.copy_(self.moments.inverse_std(VECTOR_MIN_STD))
        self.limit.copy_(torch.where(self.moments.count > 0, CLIP, math.inf))

    def forward(self, reward: Tensor) -> Tensor:
        """Rewards of any shape, scaled."""
        return (reward * self.scale).clamp(-self.limit, self.limit)
