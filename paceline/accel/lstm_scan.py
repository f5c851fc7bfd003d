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
from torch.autograd.function import once_differentiable

through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
"""A gradient, and what the function gave, to the gradient before it."""


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
        # On a CPU in the precision that they are computed in: then they need not be converted.
        gates = torch.empty_like(gates_in, dtype=None if gates_in.is_cuda else torch.float32)
        cells = torch.empty((turns + 1, columns, units), dtype=torch.float32, device=gates_in.device)
        seen = gates_in.new_empty((turns + 1, columns, units))  # the hidden state that a turn's product is made of
        out = gates_in.new_empty((turns, columns, units))
        cells[0] = cell
        seen[0] = hidden * keep[0][:, None]
        step, transposed = _kernels(gates_in).forward_step, weight.t()
        rows = _rows(gates_in, cells, keep, keep[1:], gates, cells[1:], out, seen[1:])
        for before, row in zip(seen.unbind(), rows, strict=False):
            step(row[0], before @ transposed, *row[1:])
        ctx.save_for_backward(gates, cells, seen, keep, weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        gates, cells, seen, keep, weight = ctx.saved_tensors
        _, columns, units = grad_out.shape
        grad_out = grad_out.contiguous()
        grad_gates = torch.empty_like(gates, dtype=weight.dtype)
        grad_cell = torch.zeros((columns, units), dtype=torch.float32, device=gates.device)
        grad_hidden = weight.new_zeros((columns, units))
        step = _kernels(gates).backward_step
        rows = _rows(grad_out, gates, cells, cells[1:], keep, keep[1:], grad_gates)
        for row in reversed(rows):
            step(row[0], grad_hidden, grad_cell, *row[1:])
            grad_hidden = row[-1] @ weight
        grad_weight = grad_gates.flatten(0, 1).t() @ seen[:-1].flatten(0, 1)
        return grad_gates, None, None, None, grad_weight.float()


def _rows(*tables: Tensor) -> list[tuple[Tensor, ...]]:
    """Turn by turn, as many turns as the shortest has. (At once: every index takes as long as a small operation.)"""
    return list(zip(*(table.unbind() for table in tables), strict=False))


def _kernels(tensor: Tensor) -> Any:
    """The pointwise steps: fused on a GPU."""
    if tensor.is_cuda:
        from paceline.accel import lstm_scan_triton

        return lstm_scan_triton
    return Pointwise


class Pointwise:
    """The steps in PyTorch's own operations, few of them: the reference for the kernels. Results are written to the last arguments."""

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
        units = cell.shape[1]
        # `gates` are float32 on a CPU; beside kernels that are tested they need not be.
        found = gates.copy_(gates_in) if gates.dtype == torch.float32 else gates_in.to(torch.float32, copy=True)
        found += product
        found[:, : 2 * units].sigmoid_()
        i, f, g, o = found.chunk(4, 1)
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, cell_before, out=cell)
        cell.mul_(keep.unsqueeze(1)).addcmul_(i, g)
        hidden = cell.tanh().mul_(o)
        out.copy_(hidden)
        torch.mul(hidden, keep_next.unsqueeze(1), out=seen_next)
        if found is not gates:
            gates.copy_(found)

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
        to_i, to_f, to_g, to_o = grad_gates.chunk(4, 1)
        keep, keep_next = keep.unsqueeze(1), keep_next.unsqueeze(1)
        hidden = (grad_hidden * keep_next).add_(grad_out)
        bent = cell.tanh()
        grad_cell += through_tanh(hidden * o, bent)
        through_sigmoid(grad_cell * g, i, grad_input=to_i)
        through_sigmoid((grad_cell * cell_before).mul_(keep), f, grad_input=to_f)
        through_tanh(grad_cell * i, g, grad_input=to_g)
        through_sigmoid(hidden * bent, o, grad_input=to_o)
        grad_cell.mul_(f).mul_(keep)
