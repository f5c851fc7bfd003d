"""The memory that a process pool and its workers share: heartbeats first, the slot table after them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

from paceline.envs.registry import Factory
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.heartbeat import Heartbeat
from paceline.pool.protocol import PoolSpec
from paceline.pool.shares import Shares
from paceline.pool.table import SlotTable


def agreed_spec(
    reports: Mapping[int, Mapping[str, Any]], shares: Shares, config: PoolConfig, factory: Factory
) -> PoolSpec:
    """The pool's spec by what all workers report of their environments, which must be equal."""
    first = reports[0]
    for number, report in reports.items():
        if (report["spaces"], report["agents"]) != (first["spaces"], first["agents"]):
            raise UsageError(
                f"environments of one pool must have equal spaces: environment {shares.envs_of[0][0]} has "
                f"{first['spaces']}, environment {shares.envs_of[number][0]} has {report['spaces']}"
            )
    observation_space, action_space = first["spaces"]
    return PoolSpec(
        observation_space=observation_space,
        action_space=action_space,
        num_envs=config.num_envs,
        agents_per_env=first["agents"],
        frameskip=factory.frameskip,
        num_groups=config.groups,
        envs_per_worker=config.num_envs // len(shares.envs_of),
    )


def nbytes(spec: PoolSpec, num_workers: int) -> int:
    return Heartbeat.nbytes(num_workers) + SlotTable.nbytes(spec)


def lay_out(shared: mmap.mmap, spec: PoolSpec, num_workers: int) -> tuple[Heartbeat, SlotTable]:
    view = memoryview(shared)
    return Heartbeat(view, num_workers), SlotTable(spec, view[Heartbeat.nbytes(num_workers) :])
