"""One LSTM layer over the columns of a rollout, with states reset where episodes start.

Legend: T steps, B columns, H hidden units. Gates are in PyTorch's order: input, forget, cell, output.

cuDNN cannot reset a state inside a sequence. A loop over `torch.lstm_cell` multiplies by both weight matrices at every
step, forwards and backwards. Here everything that needs no state is one product over all steps: that with the inputs
before the loop, and the gradients of the weights after it. A step is one product and one pointwise kernel, on a GPU by
Triton (`lstm_scan_triton`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
"""Backward passes, from the gradient and the result of the function."""


def lstm_scan(gates_in: Tensor, starts: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> Tensor:
    """Outputs [T, B, H] of a layer.

    `gates_in` [T, B, 4H] are the gates' inputs from features and biases. `starts` [T, B] is True where an episode
    begins. `hidden` and `cell` [B, H] are the state before the first step, without gradient. `weight` is [4H, H].
    """
    return _Scan.apply(gates_in, starts, hidden, cell, weight)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates_in: Tensor, starts: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor) -> Tensor:
        steps, columns, units = len(gates_in), gates_in.shape[1], weight.shape[1]
        weight = weight.to(gates_in.dtype)
        gates_in = gates_in.contiguous()
        # One row more than steps: nothing is kept after the last step, and no gradient comes from there.
        keep = torch.cat([(~starts).float(), starts.new_zeros((1, columns), dtype=torch.float32)])
        # On a CPU in float32, in which they are computed: no conversion.
        gates = torch.empty_like(gates_in, dtype=None if gates_in.is_cuda else torch.float32)
        cells = torch.empty((steps + 1, columns, units), dtype=torch.float32, device=gates_in.device)
        seen = gates_in.new_empty((steps + 1, columns, units))  # the hidden state that enters each step's product
        out = gates_in.new_empty((steps, columns, units))
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
        if not ctx.needs_input_grad[4]:  # the layer is frozen
            return grad_gates, None, None, None, None
        grad_weight = grad_gates.flatten(0, 1).t() @ seen[:-1].flatten(0, 1)
        return grad_gates, None, None, None, grad_weight.float()


def _rows(*tables: Tensor) -> list[tuple[Tensor, ...]]:
    """The tables' rows, step by step, for as many steps as the shortest table has. Indexing each would be slower."""
    return list(zip(*(table.unbind() for table in tables), strict=False))


def _kernels(tensor: Tensor) -> Any:
    """The pointwise steps: fused kernels on a GPU."""
    if tensor.is_cuda:
        from paceline.accel import lstm_scan_triton

        return lstm_scan_triton
    return Pointwise


class Pointwise:
    """The pointwise steps in PyTorch's operations: the reference of the kernels. They write to their last arguments."""

    @staticmethod
    def forward_step(*tensors: Tensor) -> None:
        gates_in, product, cell_before, keep, keep_next, gates, cell, out, seen_next = tensors
        units = cell.shape[1]
        # `gates` are float32 on a CPU. In tests of the kernels they may not be.
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
    def backward_step(*tensors: Tensor) -> None:
        """Reads `grad_cell`, and replaces it by that of the step before."""
        grad_out, grad_hidden, grad_cell, gates, cell_before, cell, keep, keep_next, grad_gates = tensors
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
