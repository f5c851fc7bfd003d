"""The rollout that several kinds of agents fill together."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces

from paceline.collect.kind_slots import all_kinds
from paceline.pool.batches import inactive
from paceline.pool.kinds import find_kinds, joint_spaces
from paceline.pool.protocol import PoolSpec
from paceline.schedule.kind_rollouts import KindRollouts

PAIR = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)
OTHER = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
STEPS = 4


def make(*, turn_based: bool) -> tuple[KindRollouts, PoolSpec]:
    """Two environments of a wolf and two sheep."""
    agents = ("wolf", "sheep_0", "sheep_1")
    kinds = find_kinds(agents, [PAIR, OTHER, OTHER])
    observation_space, action_space = joint_spaces(kinds)
    spec = PoolSpec(
        observation_space=observation_space,
        action_space=action_space,
        num_envs=2,
        agents_per_env=3,
        agents=agents,
        kinds=kinds,
        turn_based=turn_based,
    )
    return KindRollouts(STEPS, spec, torch.device("cpu"), kept=0, weighted=False), spec


def act(rollout: KindRollouts, kind: int, slots: list[int]) -> None:
    """Begin and complete one row of each of a kind's slots."""
    batch, layout = inactive(np.array(slots)), rollout.buffers[kind].layout
    layout.begin(batch)
    layout.complete(batch)


def test_where_agents_take_turns_one_kind_can_fill_the_rollout():
    rollout, _ = make(turn_based=True)
    for done in range(0, rollout.goal, 2):
        assert rollout.completed == done and not rollout.is_full
        act(rollout, 0, [0, 1])
    assert rollout.goal == STEPS * 6 == rollout.completed and rollout.is_full
    assert rollout.collected.tolist() == [12, 0, 0, 12, 0, 0]
    rollout.start()
    assert rollout.completed == 0


def test_a_kind_lacks_rows_in_proportion_to_what_it_has_given():
    """Ten of 24 rows were collected: six of ten by the wolves."""
    rollout, _ = make(turn_based=True)
    for _ in range(3):
        act(rollout, 0, [0, 1])
    act(rollout, 1, [0, 1, 2, 3])
    rollout.end()
    assert [buffer.layout.goal for buffer in rollout.buffers] == [14, 10]
    rollout.start()
    for _ in range(6):
        act(rollout, 0, [0, 1])
        act(rollout, 1, [0, 2])
    rollout.end()
    assert rollout.is_full
    assert [buffer.layout.goal for buffer in rollout.buffers] == [12, 12], "nothing is missing"


def test_where_all_act_at_once_every_kind_has_its_share():
    rollout, spec = make(turn_based=False)
    for _ in range(STEPS):
        assert not rollout.is_full
        act(rollout, 0, [0, 1])
        act(rollout, 1, [0, 1, 2, 3])
    assert rollout.is_full
    for kind, buffer in zip(all_kinds(spec), rollout.buffers, strict=True):
        assert buffer.layout.capacity == KindRollouts.rows_needed(STEPS, kind, 0) == (STEPS + 2) * len(kind.slots)
