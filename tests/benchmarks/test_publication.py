"""The measurements of the publication benchmark."""

from __future__ import annotations

from gymnasium import spaces

from benchmarks.publication import NUMBERS, measure_one
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import PolicyConfig
from paceline.pool.protocol import PoolSpec


def test_every_publication_counts_but_the_first_three():
    spec = PoolSpec(observation_space=NUMBERS, action_space=spaces.Discrete(2), num_envs=1)
    spans = measure_one(ActorCritic(spec, PolicyConfig(hidden=(4,))), times=5, on_gpu=False)
    assert list(spans) == ["publish", "refresh", "nothing_new"]
    for span in spans.values():
        assert len(span.until_it_returns) == 5 and min(span.until_it_returns) > 0
        assert not span.until_it_is_done, "that is a GPU's"
        assert float(span.shown()) > 0
