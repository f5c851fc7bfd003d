"""Every update of a whole run, against the same update by the plainest learner: packed sequences, nothing recorded."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from paceline.learner.ppo import PPOLearner
from paceline.policy.compute import ComputeConfig
from paceline.pool.config import PoolConfig
from paceline.run import train
from tests.integration.test_training import tiny

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


def flat(learner: PPOLearner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learner._policy.parameters()]).double()


@pytest.fixture
def likenesses(monkeypatch):
    """Of each update, the cosine between what it did to the weights and what the plain one would have done."""
    plain_update, found, shadows = PPOLearner.update, [], set()

    def update(self, rollout, progress):
        if id(self) in shadows:
            return plain_update(self, rollout, progress)
        config = dataclasses.replace(self.config, sequences="packed")
        compute = ComputeConfig(cuda_graphs=False)
        shadow = PPOLearner(copy.deepcopy(self._policy), self._group, config, self._optimizer_config, None, compute)
        shadow.load_state_dict(copy.deepcopy(self.state_dict()))
        shadows.add(id(shadow))
        before = flat(self)
        expected = shadow.update(rollout, progress)
        report = plain_update(self, rollout, progress)
        found.append(torch.cosine_similarity(flat(shadow) - before, flat(self) - before, dim=0).item())
        assert report == pytest.approx(expected, rel=1e-2, abs=1e-4)
        shadows.remove(id(shadow))
        return report

    monkeypatch.setattr(PPOLearner, "update", update)
    return found


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("system", ["ddppo", "appo"])
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_columns_move_the_weights_as_packed_sequences_do(tmp_path, likenesses, device, system, core):
    """With one mini-batch of everything, so that both have the same rows in it. Episodes end inside rollouts, rows lag, and on a GPU
    all but the first updates are replays of a recording that was made of the first one's rollout."""
    base = tiny(core, system=system, deterministic=False, device=device, steps=4096 if device == "cuda" else 1024)
    ppo = dataclasses.replace(base.ppo, sequences="columns", minibatches=1, epochs=3)
    train(dataclasses.replace(base, ppo=ppo, pool=PoolConfig(num_envs=4, kind="serial")), tmp_path)
    assert len(likenesses) == base.steps // 64
    assert min(likenesses) > 0.99
