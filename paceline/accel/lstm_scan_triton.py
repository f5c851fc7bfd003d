"""The pointwise steps of `lstm_scan` as one Triton kernel each.

Legend: B columns, H hidden units. All tensors are contiguous.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


def forward_step(*tensors: Tensor) -> None:
    """See `Pointwise.forward_step`."""
    _launch(_forward, tensors)


def backward_step(*tensors: Tensor) -> None:
    """See `Pointwise.backward_step`."""
    _launch(_backward, tensors)


def _launch(kernel: Any, tensors: tuple[Tensor, ...]) -> None:
    """One program for each column and block of units. Of both steps the third tensor is [B, H]."""
    columns, units = tensors[2].shape
    kernel[(columns, triton.cdiv(units, BLOCK))](*tensors, units, BLOCK=BLOCK)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gate(row, number, unit, units):
    """The place of a unit's gate in a row of 4H."""
    return (row * 4 + number) * units + unit


@triton.jit
def _forward(gates_in, product, cell_before, keep, keep_next, gates, cell, out, seen_next, units, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < units
    at = row * units + unit
    i_at, f_at = _gate(row, 0, unit, units), _gate(row, 1, unit, units)
    g_at, o_at = _gate(row, 2, unit, units), _gate(row, 3, unit, units)
    i = tl.load(gates_in + i_at, inside, 0.0).to(tl.float32) + tl.load(product + i_at, inside, 0.0).to(tl.float32)
    f = tl.load(gates_in + f_at, inside, 0.0).to(tl.float32) + tl.load(product + f_at, inside, 0.0).to(tl.float32)
    g = tl.load(gates_in + g_at, inside, 0.0).to(tl.float32) + tl.load(product + g_at, inside, 0.0).to(tl.float32)
    o = tl.load(gates_in + o_at, inside, 0.0).to(tl.float32) + tl.load(product + o_at, inside, 0.0).to(tl.float32)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    tl.store(gates + i_at, i, inside)
    tl.store(gates + f_at, f, inside)
    tl.store(gates + g_at, g, inside)
    tl.store(gates + o_at, o, inside)
    new = f * tl.load(cell_before + at, inside, 0.0) * tl.load(keep + row) + i * g
    hidden = o * _tanh(new)
    tl.store(cell + at, new, inside)
    tl.store(out + at, hidden, inside)
    tl.store(seen_next + at, hidden * tl.load(keep_next + row), inside)


@triton.jit
def _backward(
    grad_out, grad_hidden, grad_cell, gates, cell_before, cell, keep, keep_next, grad_gates, units, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < units
    at = row * units + unit
    i_at, f_at = _gate(row, 0, unit, units), _gate(row, 1, unit, units)
    g_at, o_at = _gate(row, 2, unit, units), _gate(row, 3, unit, units)
    i = tl.load(gates + i_at, inside, 0.0).to(tl.float32)
    f = tl.load(gates + f_at, inside, 0.0).to(tl.float32)
    g = tl.load(gates + g_at, inside, 0.0).to(tl.float32)
    o = tl.load(gates + o_at, inside, 0.0).to(tl.float32)
    kept = tl.load(keep + row)
    after = tl.load(grad_hidden + at, inside, 0.0).to(tl.float32) * tl.load(keep_next + row)
    hidden = tl.load(grad_out + at, inside, 0.0).to(tl.float32) + after
    bent = _tanh(tl.load(cell + at, inside, 0.0))
    cells = tl.load(grad_cell + at, inside, 0.0) + hidden * o * (1 - bent * bent)
    before = tl.load(cell_before + at, inside, 0.0) * kept
    tl.store(grad_gates + i_at, cells * g * i * (1 - i), inside)
    tl.store(grad_gates + f_at, cells * before * f * (1 - f), inside)
    tl.store(grad_gates + g_at, cells * i * (1 - g * g), inside)
    tl.store(grad_gates + o_at, hidden * bent * o * (1 - o), inside)
    tl.store(grad_cell + at, cells * f * kept, inside)
