"""Numbers that are not finite end a run, or are skipped; they never reach a checkpoint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import recipes
from paceline.checkpoint import CheckpointFolder
from paceline.config import Config
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.experience.config import LimiterConfig
from paceline.learner.config import D4PGConfig, PPOConfig
from paceline.learner.finite import FiniteSteps, NonFiniteError, require_finite
from paceline.learner.optimizer import make_adam
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import train
from tests.integration.ranks import on_ranks

SYSTEMS = ["ddppo", "ver", "appo", "d4pg"]


def exploding(system: str, reward: str = "1e30", passes: int = 1, **changes) -> Config:
    """Returns beyond what float32 can square: the value loss overflows in the first update.

    PPO makes `passes` passes over a rollout, with as many mini-batches each.
    """
    base = recipes.find("pendulum") if system == "d4pg" else Config()
    env = f"tests.integration.test_nonfinite:huge?reward={reward}&continuous={'true' if system == 'd4pg' else 'false'}"
    if system == "d4pg":
        value = dataclasses.replace(base.control.value, kind="scalar")
        own: dict[str, Any] = {
            "control": dataclasses.replace(base.control, value=value, actor_hidden=(8,), critic_hidden=(8,)),
            "limiter": LimiterConfig(minimum=16, samples_per_insert=2.0),
            "d4pg": D4PGConfig(batch=8, evaluation_envs=0),
        }
    else:
        own = {
            "rollout_steps": 16,
            "policy": PolicyConfig(hidden=(8,)),
            "ppo": PPOConfig(epochs=passes, minibatches=passes),
        }
    plain = dataclasses.replace(
        base,
        env=env,
        system=system,
        steps=600,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=4, kind="serial"),
        **own,
    )
    return dataclasses.replace(plain, **changes)


def huge(reward: float, continuous: bool):
    """Rewards of that size after step 40 of an environment, and of 1 before it."""
    from tests.integration.slow import Slow

    class Huge(Slow):
        def step(self, action):
            obs, _, terminated, truncated, info = super().step(action)
            return obs, float(reward) if self._taken > 40 else 1.0, terminated, truncated, info

    return Huge(0.0, 10**9, continuous)


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    return CheckpointFolder(folder / "checkpoints").load().weights


@pytest.mark.parametrize("system", SYSTEMS)
def test_nonfinite_losses_end_a_run_with_the_last_good_checkpoint(tmp_path, system):
    config = exploding(system)
    checkpoint = dataclasses.replace(config.checkpoint, seconds=1e-9)  # after every report
    with pytest.raises(
        NonFiniteError, match=r"update \d+.*(not finite|is inf|is nan).*the last good checkpoint is"
    ) as caught:
        train(dataclasses.replace(config, checkpoint=checkpoint), tmp_path)
    assert caught.value.exit_code == 1
    name = str(caught.value).split("checkpoints/")[1].split(".")[0]
    assert (tmp_path / "checkpoints" / name).is_dir()
    for path in (tmp_path / "checkpoints").glob("step_*"):
        weights = CheckpointFolder(tmp_path / "checkpoints").load(path.name).weights
        assert all(values.isfinite().all() for key, values in weights.items() if not key.endswith("limit"))


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_learning_rate_of_a_million_never_writes_a_nonfinite_checkpoint(tmp_path, system):
    config = exploding(system, reward="1.0")
    if system == "d4pg":
        config = dataclasses.replace(config, d4pg=dataclasses.replace(config.d4pg, actor_rate=1e6, critic_rate=1e6))
    else:
        config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=1e6))
    try:
        train(config, tmp_path)
    except NonFiniteError:
        assert not (tmp_path / "checkpoints").exists()
    else:
        assert all(
            values.isfinite().all() for key, values in saved_weights(tmp_path).items() if not key.endswith("limit")
        )


@pytest.mark.parametrize("system", SYSTEMS)
def test_on_nonfinite_skip_leaves_single_steps_out_and_counts_them(tmp_path, monkeypatch, system):
    """Every third gradient is not finite."""
    plain, calls = FiniteSteps.take, []

    def take(steps, optimizer, norm):
        calls.append(norm)
        plain(steps, optimizer, norm * torch.nan if len(calls) % 3 == 0 else norm)

    monkeypatch.setattr(FiniteSteps, "take", take)
    train(exploding(system, reward="1.0", on_nonfinite="skip"), tmp_path)
    report = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < report["skipped_steps"] <= len(calls) // 3
    assert all(values.isfinite().all() for key, values in saved_weights(tmp_path).items() if not key.endswith("limit"))


@pytest.mark.parametrize("system", SYSTEMS)
def test_on_nonfinite_skip_ends_after_ten_in_a_row(tmp_path, system):
    with pytest.raises(NonFiniteError, match=r"update \d+: \d\d gradients in a row were not finite"):
        train(exploding(system, on_nonfinite="skip", passes=4), tmp_path)


def test_nonfinite_losses_of_one_rank_end_all_ranks(tmp_path):
    config, folder = exploding("ddppo"), str(tmp_path)

    def work():
        import os

        mine = (
            config if os.environ["RANK"] == "0" else dataclasses.replace(config, env=config.env.replace("1e30", "1.0"))
        )
        try:
            train(mine, Path(folder))
        except NonFiniteError as error:
            return str(error)
        return ""

    for message in on_ranks(2, work):
        assert "not finite" in message


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_nonfinite_losses_end_a_run_on_a_gpu(tmp_path, system, on_nonfinite):
    """Updates are recorded there."""
    config = exploding(system, device="cuda", on_nonfinite=on_nonfinite, passes=4)
    with pytest.raises(NonFiniteError, match="not finite"):
        train(dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, seconds=1e-9)), tmp_path)
    assert all(values.isfinite().all() for key, values in saved_weights(tmp_path).items() if not key.endswith("limit"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_skipped_step_changes_neither_weights_nor_moments(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    weight = torch.nn.Parameter(torch.ones(3, device=device))
    optimizer = make_adam([weight], 1e-3)
    steps = FiniteSteps(torch.device(device), "skip")
    weight.grad = torch.ones(3, device=device)
    steps.take(optimizer, weight.grad.norm())
    before, moments = weight.detach().clone(), {k: v.clone() for k, v in optimizer.state[weight].items()}
    weight.grad = torch.full((3,), torch.nan, device=device)
    steps.take(optimizer, weight.grad.norm())
    assert torch.equal(weight, before)
    assert all(torch.equal(value, moments[name]) for name, value in optimizer.state[weight].items())
    assert steps.check({}, 1) == {"skipped_steps": 1.0}


def test_weights_that_are_not_finite_are_named():
    layer = torch.nn.Linear(2, 2)
    require_finite(layer)
    with torch.no_grad():
        layer.bias[0] = torch.inf
    with pytest.raises(NonFiniteError, match="weights bias"):
        require_finite(layer)


def test_learner_says_which_loss_was_not_finite():
    group = Group(RankInfo(), torch.device("cpu"), None)
    steps = FiniteSteps(group.device)
    with pytest.raises(NonFiniteError, match=r"update 7: value_loss is inf"):
        steps.check({"policy_loss": 0.5, "value_loss": float("inf")}, 7)
