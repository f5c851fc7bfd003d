"""One LSTM layer over the columns of a rollout, with states reset where episodes start.

Legend: T turns, B columns, H hidden units. Gates are in PyTorch's order: input, forget, cell, output.

cuDNN cannot reset a state on the way, and a loop over `torch.lstm_cell` multiplies by both weight matrices at every turn,
forwards and backwards, which on a GPU takes its time in launches. Here what needs no state is done for all turns at once:
the product with the inputs before, the gradients of all weights after. What is left of a turn is one product and one
pointwise step, which on a GPU is one kernel (`lstm_scan_triton`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lstm_scan(gates_in: Tensor, starts: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> Tensor:
    """Outputs [T, B, H] of a layer.

    `gates_in` [T, B, 4H] is what inputs and biases give to the gates, `starts` [T, B] bool where an episode begins,
    `hidden` and `cell` [B, H] the state before the first turn, through which no gradient flows, `weight` [4H, H].
    """
    return _Scan.apply(gates_in, starts, hidden, cell, weight)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates_in: Tensor, starts: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> Tensor:
        turns, columns, units = len(gates_in), gates_in.shape[1], weight.shape[1]
        weight = weight.to(gates_in.dtype)
        gates_in = gates_in.contiguous()
        # One turn more than there are: the last has nothing before it to keep from, and takes no gradient.
        keep = torch.cat([(~starts).float(), starts.new_zeros((1, columns), dtype=torch.float32)])
        gates = torch.empty_like(gates_in)
        cells = torch.empty((turns + 1, columns, units), dtype=torch.float32, device=gates_in.device)
        seen = gates_in.new_empty((turns + 1, columns, units))  # the hidden state that a turn's product is made of
        out = gates_in.new_empty((turns, columns, units))
        cells[0] = cell
        seen[0] = hidden * keep[0][:, None]
        step = _kernels(gates_in).forward_step
        for t in range(turns):
            product = seen[t] @ weight.t()
            step(gates_in[t], product, cells[t], keep[t], keep[t + 1], gates[t], cells[t + 1], out[t], seen[t + 1])
        ctx.save_for_backward(gates, cells, seen, keep, weight)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        gates, cells, seen, keep, weight = ctx.saved_tensors
        turns, columns, units = grad_out.shape
        grad_out = grad_out.contiguous()
        grad_gates = torch.empty_like(gates)
        grad_cell = torch.zeros((columns, units), dtype=torch.float32, device=gates.device)
        grad_hidden = gates.new_zeros((columns, units))
        step = _kernels(gates).backward_step
        for t in reversed(range(turns)):
            step(
                grad_out[t],
                grad_hidden,
                grad_cell,
                gates[t],
                cells[t],
                cells[t + 1],
                keep[t],
                keep[t + 1],
                grad_gates[t],
            )
            grad_hidden = grad_gates[t] @ weight
        grad_weight = grad_gates.flatten(0, 1).t() @ seen[:-1].flatten(0, 1)
        return grad_gates, None, None, None, grad_weight.float()


def _kernels(tensor: Tensor) -> Any:
    """The pointwise steps: fused on a GPU."""
    if tensor.is_cuda:
        from paceline.policy import lstm_scan_triton

        return lstm_scan_triton
    return Pointwise


class Pointwise:
    """The steps in PyTorch's own operations: the reference for the kernels. Results are written to the last arguments."""

    @staticmethod
    def forward_step(
        gates_in: Tensor,
        product: Tensor,
        cell_before: Tensor,
        keep: Tensor,
        keep_next: Tensor,
        gates: Tensor,
        cell: Tensor,
        out: Tensor,
        seen_next: Tensor,
    ) -> None:
        i, f, g, o = (gates_in.float() + product.float()).chunk(4, 1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        gates.copy_(torch.cat([i, f, g, o], 1))
        cell.copy_(f * cell_before * keep[:, None] + i * g)
        hidden = o * cell.tanh()
        out.copy_(hidden)
        seen_next.copy_(hidden * keep_next[:, None])

    @staticmethod
    def backward_step(
        grad_out: Tensor,
        grad_hidden: Tensor,
        grad_cell: Tensor,
        gates: Tensor,
        cell_before: Tensor,
        cell: Tensor,
        keep: Tensor,
        keep_next: Tensor,
        grad_gates: Tensor,
    ) -> None:
        """`grad_cell` is read and left as that of the turn before."""
        i, f, g, o = gates.float().chunk(4, 1)
        hidden = grad_out.float() + grad_hidden.float() * keep_next[:, None]
        bent = cell.tanh()
        cells = grad_cell + hidden * o * (1 - bent * bent)
        before = cell_before * keep[:, None]
        parts = [
            cells * g * i * (1 - i),
            cells * before * f * (1 - f),
            cells * i * (1 - g * g),
            hidden * bent * o * (1 - o),
        ]
        grad_gates.copy_(torch.cat(parts, 1))
        grad_cell.copy_(cells * f * keep[:, None])
