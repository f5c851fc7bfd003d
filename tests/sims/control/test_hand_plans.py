"""Stored plans solve `pick_up_and_orient` and `rotate_in_hand`: the tasks are possible.

`paceline bench hand-planner` made the plans. These five also succeed from starts that differ by 0.01 mm, so another
processor's rounding does not matter.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")

from benchmarks.hand_planning import action_towards
from paceline.sims.control.hand.env import HandEnv

with np.load(Path(__file__).with_name("hand_plans.npz")) as stored:
    PLANS = dict(stored)
"""By task and seed: the actuators' targets [steps, 13]."""


@pytest.mark.parametrize("shift", [0.0, 1e-5])
@pytest.mark.parametrize("name", PLANS)
def test_a_stored_plan_solves_the_task(name, shift):
    task, seed = name.split("/")
    env = HandEnv(task)
    env.reset(seed=int(seed))
    env.data.qpos[22:25] += shift
    rewards = []
    for target in PLANS[name]:
        _, reward, terminated, _, _ = env.step(action_towards(env.task.hand, env.data.ctrl, target))
        assert not terminated
        rewards.append(reward)
    assert rewards[0] < 0.2 and np.mean(rewards[-25:]) > 0.6
