"""docs/metrics.md has exactly the metrics that runs write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline import run as run_module
from paceline.config import leaves
from paceline.population import population

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
TINY: dict[str, Any] = {
    "steps": 128,
    "rollout_steps": 32,
    "device": "cpu",
    "threads": 1,
    "pool": {"kind": "serial", "num_envs": 2},
    "policy": {"hidden": [8]},
}
PPO = ("ddppo", "ver", "appo")


def documented(section: str) -> set[str]:
    """The metrics in the first column of a section's table."""
    text = re.split(r"^## ", PAGE.partition(f"\n## {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


@pytest.fixture(autouse=True)
def reports_after_every_iteration(monkeypatch):
    """Usually reports and ratings are seconds apart."""
    monkeypatch.setattr(run_module, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(population, "ELO_SECONDS", 0.0)


EVERY_RUN, OPTIONAL, SEVERAL = documented("Every run"), documented("With an option"), documented("Several policies")


def written(folder: Path, *start: str, **settings: Any) -> set[str]:
    """The metrics of a small run."""
    run = pl.train(*start, folder=folder, **settings)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return {name for line in lines for name in json.loads(line)}


@pytest.mark.parametrize("system", PPO)
def test_ppo(tmp_path, system):
    found = written(tmp_path / "run", env="gym:CartPole-v1", system=system, **TINY)
    assert found == EVERY_RUN | documented("PPO") | (documented("appo") if system == "appo" else set())


def test_d4pg(tmp_path):
    """Of four environments one may act without noise."""
    networks = {"actor_hidden": [8], "critic_hidden": [8], "value": {"kind": "scalar"}}
    found = written(
        tmp_path / "run",
        env="gym:Pendulum-v1?max_episode_steps=8",
        system="d4pg",
        steps=256,
        device="cpu",
        threads=1,
        pool={"kind": "serial", "num_envs": 4},
        control=networks,
        limiter={"minimum": 32, "samples_per_insert": 8.0},
        d4pg={"batch": 16, "evaluation_envs": 1},
    )
    assert found == EVERY_RUN | documented("d4pg") | {"evaluation_return"}


def test_options_that_add_metrics(tmp_path):
    """With a memory for CPC|A, and an environment that has the measure `success`."""
    settings = TINY | {"policy": {"hidden": [8], "core": {"kind": "gru", "hidden": 8}}}
    found = written(
        tmp_path / "run",
        env="pointnav:small?sensors=blind&scenes=4&max_episode_steps=8",
        on_nonfinite="skip",
        ppo={"entropy_target": 0.1, "auxiliary": {"kind": "cpca"}, "term": change},
        **settings | {"pool": {"kind": "tensor", "num_envs": 4}},
    )
    measures = {name for name in found if name.startswith("episode_")} - EVERY_RUN
    assert "episode_success" in measures
    others = {"resumed_from", "evaluation_return", "episode_NAME", "auxiliary_loss", "auxiliary_NAME"}
    assert found - measures == EVERY_RUN | documented("PPO") | OPTIONAL - others


class Features(nn.Module):
    """An auxiliary loss that returns a number besides."""

    def __init__(self, num_features, num_belief, num_actions, config):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, rows):
        return {"loss": (self.scale * rows.features).square().mean(), "scale": self.scale}


def test_auxiliary_loss_of_ones_own(tmp_path):
    found = written(
        tmp_path / "run", env="gym:CartPole-v1", ppo={"auxiliary": {"kind": Features}}, **TINY | {"system": "ddppo"}
    )
    assert found == EVERY_RUN | documented("PPO") | {"auxiliary_loss", "auxiliary_scale"}
    assert {"auxiliary_loss", "auxiliary_NAME"} <= OPTIONAL


def change(rows):
    """A term of the loss."""
    return (rows.log_prob - rows.old_log_prob).square()


def test_several_policies(tmp_path):
    """Short matches, so that there are enough of them for ratings and rounds."""
    found = written(
        tmp_path / "run",
        env="tensor:pong?points=1&max_episode_steps=32",
        population={"policies": 2},
        pbt={"every": 512, "replaced_share": 0.5},
        league={"past_share": 0.3, "every": 256},
        ppo={"epochs": 1, "minibatches": 1},
        **TINY | {"steps": 4096, "pool": {"kind": "tensor", "num_envs": 8}},
    )
    alone = {re.sub(r"^policy_\d+/", "", name) for name in found if name.startswith("policy_") and "/" in name}
    known = EVERY_RUN | documented("PPO") | SEVERAL | leaves(pl.Config()).keys()
    measures = {name for name in found if re.fullmatch(r"episode_\w+", name)}
    assert alone - measures <= known
    whole = {name for name in found if not re.match(r"policy_\d+/", name)} - measures
    stand_ins = {"policy_N/NAME", "policy_N/SETTING", "policy_N/elo"} | {"copy_steps"}  # of several ranks
    assert whole | measures >= EVERY_RUN and whole - EVERY_RUN == documented("PPO") | SEVERAL - stand_ins
    assert {"policy_1/elo", "policy_1/entropy", "policy_0/optimizer.learning_rate"} <= found


def test_tensorboard_has_the_numbers_of_the_page(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = written(tmp_path / "run", env="gym:CartPole-v1", **TINY)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == found - {"step"}
