"""`geodesic.query` as one Triton kernel. It tests the sight lines of a stream in registers and never writes arrays of
streams x nodes x obstacles.

Legend: as in `geodesic`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.sims.navigation.scenes.bank import SceneBank


def query(bank: SceneBank, scenes: Tensor, goals_at: Tensor, positions: Tensor, goals: Tensor) -> Tensor:
    """[N]: distances from `positions` [N, 2] to `goals` [N, 2], the goals number `goals_at` [N] of `scenes` [N]."""
    num, max_nodes = len(scenes), bank.nodes.shape[1]
    result = torch.empty(num, device=scenes.device)
    _query[(num,)](
        bank.nodes,
        bank.node_distances,
        bank.sight,
        bank.counts,
        scenes,
        goals_at,
        positions.contiguous(),
        goals.contiguous(),
        result,
        max_nodes,
        bank.node_distances.shape[1],
        bank.sight.shape[1],
        BLOCK=triton.next_power_of_2(max_nodes + 1),
        num_warps=4,
    )
    return result


@triton.jit
def _query(
    nodes,
    node_distances,
    sight,
    counts,
    scenes,
    goals_at,
    positions,
    goals,
    result,
    max_nodes,
    num_goals,
    max_obstacles,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(0).to(tl.int64)
    scene = tl.load(scenes + stream)
    num_obstacles = tl.load(counts + 4 * scene + 2).to(tl.int32)
    num_nodes = tl.load(counts + 4 * scene + 3).to(tl.int32)
    x, y = tl.load(positions + 2 * stream), tl.load(positions + 2 * stream + 1)
    goal_x, goal_y = tl.load(goals + 2 * stream), tl.load(goals + 2 * stream + 1)
    # The goal follows the last node, with distance 0 to itself.
    target = tl.arange(0, BLOCK)
    is_node, is_goal = target < num_nodes, target == num_nodes
    node = nodes + (scene * max_nodes + target) * 2
    target_x = tl.load(node, mask=is_node, other=0.0) + tl.where(is_goal, goal_x, 0.0)
    target_y = tl.load(node + 1, mask=is_node, other=0.0) + tl.where(is_goal, goal_y, 0.0)
    distances = node_distances + (scene * num_goals + tl.load(goals_at + stream)) * max_nodes
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
