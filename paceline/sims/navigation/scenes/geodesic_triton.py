"""`geodesic.query` as one Triton kernel. It tests the sight lines of a stream in registers and never writes arrays of
streams x nodes x obstacles.

Legend: as in `geodesic`; K scenes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.sims.navigation.scenes.tensor_bank import TensorBank


def query(bank: TensorBank[Any], scenes: Tensor, table: Tensor, at: Tensor, positions: Tensor, goals: Tensor) -> Tensor:
    """[N]: distances from `positions` [N, 2] in `scenes` [N] to the nearest of `goals` [N, M, 2].

    The distances of the nodes to them are in row `at` [N] of the scene's part of `table` [K, G, V].
    """
    num, max_nodes, goals_each = len(scenes), bank.nodes.shape[1], goals.shape[1]
    result = torch.empty(num, device=scenes.device)
    _query[(num,)](
        bank.nodes,
        table,
        bank.sight,
        bank.counts,
        scenes,
        at,
        positions.contiguous(),
        goals.contiguous(),
        result,
        max_nodes,
        table.shape[1],
        goals_each,
        bank.sight.shape[1],
        BLOCK=triton.next_power_of_2(max_nodes + goals_each),
        num_warps=4,
    )
    return result


@triton.jit
def _query(
    nodes,
    table,
    sight,
    counts,
    scenes,
    at,
    positions,
    goals,
    result,
    max_nodes,
    num_goals,
    goals_each,
    max_obstacles,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(0).to(tl.int64)
    scene = tl.load(scenes + stream)
    num_obstacles = tl.load(counts + 4 * scene + 2).to(tl.int32)
    num_nodes = tl.load(counts + 4 * scene + 3).to(tl.int32)
    x, y = tl.load(positions + 2 * stream), tl.load(positions + 2 * stream + 1)
    # The goals follow the last node, with distance 0 to themselves.
    target = tl.arange(0, BLOCK)
    is_node, is_goal = target < num_nodes, (target >= num_nodes) & (target < num_nodes + goals_each)
    node = nodes + (scene * max_nodes + target) * 2
    goal = goals + (stream * goals_each + target - num_nodes) * 2
    target_x = tl.load(node, mask=is_node, other=0.0) + tl.load(goal, mask=is_goal, other=0.0)
    target_y = tl.load(node + 1, mask=is_node, other=0.0) + tl.load(goal + 1, mask=is_goal, other=0.0)
    distances = table + (scene * num_goals + tl.load(at + stream)) * max_nodes
    beyond = tl.load(distances + target, mask=is_node, other=0.0)
    dx, dy = target_x - x, target_y - y
    length = tl.where(is_node | is_goal, tl.sqrt(dx * dx + dy * dy) + beyond, 1e9)

    half_x, half_y = 0.5 * dx, 0.5 * dy
    middle_x, middle_y = target_x - half_x, target_y - half_y
    size_x, size_y = tl.abs(half_x), tl.abs(half_y)
    blocked = tl.zeros([BLOCK], tl.int1)
    for index in range(num_obstacles):
        rect = sight + (scene * max_obstacles + index) * 4
        extent_x, extent_y = tl.load(rect + 2), tl.load(rect + 3)
        from_x, from_y = middle_x - tl.load(rect), middle_y - tl.load(rect + 1)
        across = tl.abs(half_x * from_y - half_y * from_x)
        meets = across < extent_y * size_x + extent_x * size_y
        meets = meets & (tl.abs(from_x) < extent_x + size_x) & (tl.abs(from_y) < extent_y + size_y)
        blocked = blocked | meets
    tl.store(result + stream, tl.min(tl.where(blocked, 1e9, length), axis=0))
