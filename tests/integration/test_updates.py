"""Every update of a whole run, against the same update by the plainest learner: packed sequences, nothing recorded."""

from __future__ import annotations

import copy
import dataclasses
import statistics
from typing import NamedTuple

import pytest
import torch

from paceline.accel.config import ComputeConfig
from paceline.learner.ppo import PPOLearner
from paceline.pool.config import PoolConfig
from paceline.session import train
from tests.integration.test_training import tiny

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


def flat(learner: PPOLearner) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learner.policy.parameters()]).double()


class Watched(NamedTuple):
    """One update of a run."""

    likeness: float
    """The cosine between what it did to the weights and what the plain one would have done."""
    report: dict[str, float]
    expected: dict[str, float]
    is_recorded: bool


@pytest.fixture
def updates(monkeypatch):
    """Every update of a run, and beside it the plain one, from the same weights and moments."""
    update, seen = PPOLearner.update, []

    def watch(self, rollout, progress):
        config = dataclasses.replace(self.config, sequences="packed")
        compute = ComputeConfig(cuda_graphs=False)
        plain = PPOLearner(copy.deepcopy(self.policy), self._group, config, self.optimizer_config, None, compute)
        plain.load_state_dict(copy.deepcopy(self.state_dict()))
        before = flat(self)
        expected = update(plain, rollout, progress)
        report = update(self, rollout, progress)
        likeness = torch.cosine_similarity(flat(plain) - before, flat(self) - before, dim=0).item()
        seen.append(Watched(likeness, report, expected, bool(self._graphs)))
        return report

    monkeypatch.setattr(PPOLearner, "update", watch)
    return seen


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("system", ["ddppo", "appo"])
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_columns_move_the_weights_as_packed_sequences_do(tmp_path, updates, device, system, core):
    """With one mini-batch of everything, so that both have the same rows in it. Episodes end inside rollouts, rows of
    `appo` lag, and on a GPU updates are replays of a recording that was made with an earlier rollout."""
    base = tiny(core, system=system, deterministic=False, device=device, steps=4096 if device == "cuda" else 512)
    ppo = dataclasses.replace(base.ppo, sequences="columns", minibatches=1, epochs=3, clip_around="update")
    appo = dataclasses.replace(base.appo, concurrent=True if system == "appo" else None)
    train(dataclasses.replace(base, ppo=ppo, appo=appo, pool=PoolConfig(num_envs=4, kind="serial")), tmp_path)
    assert len(updates) == base.steps // 64
    assert all(one.is_recorded == (device == "cuda") for one in updates)
    assert any(one.report["policy_lag_max"] > 0 for one in updates) == (system == "appo")
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm"):
        expected = [one.expected[name] for one in updates]
        assert [one.report[name] for one in updates] == pytest.approx(expected, rel=1e-2, abs=1e-3), name
    # Adam takes the sign even of gradients that are next to nothing: single updates may differ by a few of these.
    assert min(one.likeness for one in updates) > 0.9
    assert statistics.median(one.likeness for one in updates) > 0.999
