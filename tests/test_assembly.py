"""Nothing is recorded on a GPU where a thread would draw random numbers on the device while another thread records."""

from __future__ import annotations

import pytest

from paceline.assembly import recorded_parts
from paceline.config import Config
from paceline.learner.config import AuxiliaryConfig, PPOConfig
from paceline.nets.config import HeadConfig, PolicyConfig
from paceline.schedule.config import VERConfig


@pytest.mark.parametrize(
    ("changes", "concurrent", "acting", "updates"),
    [
        ({"system": "appo"}, True, True, True),
        ({"system": "appo", "policy": PolicyConfig(head=HeadConfig(squash=True))}, True, False, False),
        ({"system": "appo", "ppo": PPOConfig(auxiliary=AuxiliaryConfig(kind="cpca"))}, True, False, False),
        ({"system": "ver", "ver": VERConfig(overlap=True)}, True, True, False),
        ({"system": "ddppo", "policy": PolicyConfig(head=HeadConfig(squash=True))}, False, True, True),
    ],
)
def test_what_is_recorded(changes, concurrent, acting, updates):
    computes = recorded_parts(Config(env="gym:Pendulum-v1", **changes), concurrent)
    assert [compute.cuda_graphs for compute in computes] == [acting, updates]
