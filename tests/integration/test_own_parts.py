"""Runs with parts of the user's own: every PPO system trains them, and they are found again by import path."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import paceline as pl
from paceline import own_code, recipes
from paceline.api.training import configured
from paceline.cli import main as cli
from paceline.export import export
from paceline.learner.config import AuxiliaryConfig, OptimizerConfig, PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.protocol import PoolSpec
from paceline.session import require_images, train
from tests.forks import run_python
from tests.integration.test_training import assert_equal, tiny, weights
from tests.learner import own_losses
from tests.nets import own_policies
from tests.nets.own_parts import Core, Encoder

ROOT = Path(__file__).parents[2]
LOSSES, POLICIES = "tests.learner.own_losses", "tests.nets.own_policies"


def own(policy: str = "Plain", **changes) -> pl.Config:
    """A run of four updates in which everything is the user's own."""
    return tiny(
        env="gym:CartPole-v1",
        steps=256,
        policy=PolicyConfig(kind=f"{POLICIES}:{policy}"),
        ppo=PPOConfig(term=f"{LOSSES}:small_values", auxiliary=AuxiliaryConfig(kind=f"{LOSSES}:ValueAgain")),
        optimizer=OptimizerConfig(schedule=f"{LOSSES}:WarmUp"),
        **changes,
    )


@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
@pytest.mark.parametrize(("policy", "policies"), [("Plain", 1), ("Leaky", 2)])
def test_every_system_trains_resumes_and_evaluates_them(tmp_path, system, policy, policies):
    config = own(policy, system=system, deterministic=system != "appo")
    config = dataclasses.replace(config, population=dataclasses.replace(config.population, policies=policies))
    train(config, tmp_path)
    before = weights(tmp_path)
    train(dataclasses.replace(config, steps=512), tmp_path, resume="latest")
    after = weights(tmp_path)
    assert before.keys() == after.keys() and not torch.equal(before["own.critic.weight"], after["own.critic.weight"])
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert all(np.isfinite(last[name]) for name in last if name.endswith(("term_loss", "auxiliary_loss")))
    assert any(name.endswith("term_loss") for name in last) and last["learning_rate"] > 0
    assert len(pl.evaluate(tmp_path, episodes=2).episodes) == 2


def test_runs_resume_to_the_same_bits(tmp_path):
    config = own("Leaky")
    train(dataclasses.replace(config, steps=128), tmp_path / "parts")
    train(config, tmp_path / "parts", resume="latest")
    with pl.Session(config, tmp_path / "whole") as session:
        session.run(until=128)
        session.run()
    assert_equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_classes_from_python_are_saved_by_import_path(tmp_path):
    run = pl.train(
        "cartpole",
        folder=tmp_path,
        steps=256,
        rollout_steps=16,
        device="cpu",
        pool={"num_envs": 4, "kind": "serial"},
        policy=PolicyConfig(kind=own_policies.Plain),
        ppo={"term": own_losses.small_values, "minibatches": 1, "auxiliary": {"kind": own_losses.ValueAgain}},
        optimizer={"schedule": own_losses.WarmUp},
    )
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["policy"]["kind"] == f"{POLICIES}:Plain" and saved["ppo"]["term"] == f"{LOSSES}:small_values"
    assert saved["ppo"]["auxiliary"]["kind"] == f"{LOSSES}:ValueAgain"
    assert saved["optimizer"]["schedule"] == f"{LOSSES}:WarmUp"
    assert isinstance(pl.load(tmp_path).network.own, own_policies.Plain)
    named = {"policy.kind", "ppo.term", "ppo.auxiliary.kind", "optimizer.schedule"}
    assert run.config.named_code().keys() == named, "what another user has to trust"
    assert export(tmp_path, "torchscript").verified_with == "PyTorch"


def test_a_class_that_cannot_be_imported_is_given_again(tmp_path, monkeypatch):
    class Local(own_policies.Plain):
        pass

    small = {"rollout_steps": 16, "device": "cpu", "pool": {"num_envs": 4, "kind": "serial"}, "ppo": {"minibatches": 1}}
    run = pl.train("cartpole", folder=tmp_path, steps=64, policy={"kind": Local}, **small)
    assert run.config.policy.kind.startswith("python:") and not run.config.named_code()
    assert isinstance(pl.load(tmp_path).network.own, Local), "this program knows it"
    monkeypatch.setattr(own_code, "_given", {})
    for again in (lambda: pl.load(tmp_path), lambda: pl.train(folder=tmp_path, resume=True, steps=128)):
        with pytest.raises(pl.UsageError, match=r"policy.kind python:.*Local.* give the object again, .*parts=\[...\]"):
            again()
    assert isinstance(pl.load(tmp_path, parts=[Local]).network.own, Local)
    monkeypatch.setattr(own_code, "_given", {})
    assert pl.train(folder=tmp_path, resume=True, steps=128, policy={"kind": Local}).step >= 128


def test_a_class_may_move_to_a_module(tmp_path, monkeypatch):
    Plain = type("Plain", (own_policies.Plain,), {"__qualname__": "notebook.<locals>.Plain"})
    small = {"rollout_steps": 16, "device": "cpu", "pool": {"num_envs": 4, "kind": "serial"}, "ppo": {"minibatches": 1}}
    pl.train("cartpole", folder=tmp_path, steps=64, policy={"kind": Plain}, **small)
    monkeypatch.setattr(own_code, "_given", {})
    monkeypatch.setattr(own_code, "_given_by_name", {})
    moved = own_policies.Plain
    assert isinstance(pl.load(tmp_path, parts=[moved]).network.own, moved)
    assert pl.train(folder=tmp_path, resume=True, steps=128, policy={"kind": moved}).step >= 128
    with pytest.raises(pl.UsageError, match="the network"):
        pl.train(folder=tmp_path, resume=True, steps=192, policy={"kind": own_policies.Leaky})


def test_two_local_objects_of_one_name_are_refused(monkeypatch):
    monkeypatch.setattr(own_code, "_given", {})

    def make():
        def term(rows):
            return rows.value

        return term

    first = make()
    assert own_code.path_of(first) == own_code.path_of(first)
    with pytest.raises(pl.UsageError, match="two objects are named .*make.<locals>.term"):
        own_code.path_of(make())


def test_a_whole_policy_of_ones_own_needs_no_recipe(tmp_path):
    run = pl.train(
        env="gym:CartPole-v1",
        folder=tmp_path,
        steps=64,
        rollout_steps=16,
        device="cpu",
        pool={"num_envs": 4, "kind": "serial"},
        ppo={"minibatches": 1},
        policy={"kind": own_policies.Plain},
    )
    assert isinstance(run.policy.network.own, own_policies.Plain)


def test_d4pg_has_no_policy_of_ones_own():
    with pytest.raises(pl.UsageError, match=r"policy.kind"):
        pl.train("pendulum", steps=8, policy={"kind": own_policies.Plain})


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (lambda progress: 1.0, "a lambda has no name, by which a run could remember it"),
        (nn.Linear(1, 1), "is no part of a run; allowed: a class, a function, or its import path"),
    ],
)
def test_what_has_no_name_is_refused(thing, said):
    with pytest.raises(pl.UsageError, match=said):
        OptimizerConfig(schedule=thing)


MINE = """
from torch import nn
from paceline.nets.heads import make_head

class Policy(nn.Module):
    state_size = 0
    def __init__(self, spec, config):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = make_head(spec.actions, 8, config.head)
        self.critic = nn.Linear(8, 1)
    def forward(self, obs, state):
        features = self.body(obs["obs"]).relu()
        return self.head(features), self.critic(features)[:, 0], state

class Encoder(nn.Module):
    pass

def term(rows):
    return rows.entropy**2

def main():
    import paceline as pl
    pl.train("cartpole", folder="run", steps=64, rollout_steps=16, policy={"kind": Policy},
             ppo={"term": term, "minibatches": 1}, pool={"num_envs": 4, "kind": "serial"}, device="cpu")

if __name__ == "__main__":
    main()
"""


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    return run_python(*arguments, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_files_and_scripts(tmp_path):
    """The command line names a file, a script gives its own classes, and both runs load in another folder."""
    (tmp_path / "mine.py").write_text(MINE)
    by_path = ["train", "cartpole", "--run-dir", "other", "--steps", 64, "--rollout-steps", 16, "--device", "cpu"]
    by_path += ["--pool.num-envs", 4, "--pool.kind", "serial", "--ppo.minibatches", 1]
    by_path += ["--policy.kind", "./mine.py:Policy", "--ppo.term", "./mine.py:term"]
    for arguments in (["mine.py"], ["-m", "paceline", *by_path]):
        done = command(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
    for run in ("run", "other"):
        saved = json.loads((tmp_path / run / "config.json").read_text())
        assert saved["policy"]["kind"] == f"{tmp_path.resolve()}/mine.py:Policy"
        assert saved["ppo"]["term"] == f"{tmp_path.resolve()}/mine.py:term"
        assert pl.evaluate(tmp_path / run, episodes=1).episodes
    assert pl.train(folder=tmp_path / "run", resume=True, steps=128).step >= 128
    shutil.move(tmp_path / "mine.py", tmp_path / "gone.py")
    with pytest.raises(pl.UsageError, match=r"the file '.*/mine.py' of 'policy.kind .*' does not exist") as raised:
        pl.load(tmp_path / "run")
    assert "\n" not in str(raised.value)


def test_a_class_that_has_changed_since_is_named(tmp_path, monkeypatch):
    (tmp_path / "changing.py").write_text(MINE)
    config = dataclasses.replace(own(), policy=PolicyConfig(kind=f"{tmp_path}/changing.py:Policy"), steps=64)
    train(config, tmp_path / "run")
    (tmp_path / "changing.py").write_text(MINE.replace("8", "16"))
    for name in [name for name in sys.modules if name.startswith("changing_")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        pl.UsageError, match=r"does not fit policy.kind .*:Policy, which may have changed since.*size"
    ) as raised:
        pl.load(tmp_path / "run")
    assert "\n" not in str(raised.value)
    with pytest.raises(
        pl.UsageError, match=r"cannot resume with policy.kind .*:Policy, which has changed: .* own.body"
    ):
        train(dataclasses.replace(config, steps=128), tmp_path / "run", resume="latest")


def test_a_wrong_part_ends_the_command_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "cartpole", "--device", "cpu", "--ppo.term", f"{LOSSES}:two_columns"]
    monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and "gives losses of shape [4, 64]" in said and "Traceback" not in said
    assert not list(tmp_path.glob("runs/*/checkpoints"))


def test_a_recipe_of_a_file_may_use_classes_of_that_file(tmp_path):
    (tmp_path / "recipes.py").write_text(
        "import paceline as pl\nfrom paceline.nets.config import PolicyConfig\n"
        f"{MINE}\ndef recipe():\n    return pl.Config(policy=PolicyConfig(kind=Policy, encoder=Encoder))\n"
    )
    config = recipes.find(f"{tmp_path}/recipes.py:recipe")
    assert config.policy.kind == f"{tmp_path}/recipes.py:Policy"


def test_initial_weights_of_an_own_policy(tmp_path):
    train(own("Plain"), tmp_path / "first")
    second = dataclasses.replace(own("Plain"), init_from=str(tmp_path / "first"), steps=64)
    with pl.Session(second, tmp_path / "second") as session:
        taken = session.learners[0].policy.state_dict()
        assert_equal({name: taken[name] for name in taken if name != "version"}, _without_version(tmp_path / "first"))


def _without_version(folder: Path) -> dict[str, torch.Tensor]:
    return {name: values for name, values in weights(folder).items() if name != "version"}


def mapping(env_index, agents, generator):
    return [1 for _ in agents]


def test_mappings_and_opponents_may_be_given_as_objects():
    settings = {"population": {"mapping": mapping}, "league": {"opponents": [Encoder], "opponent_share": 0.5}}
    config = configured(pl.Config(), settings)
    assert config.population.mapping == "tests.integration.test_own_parts:mapping"
    assert config.league.opponents == ("tests.nets.own_parts:Encoder",)
    assert config.named_code().keys() == {"population.mapping", "league.opponents[0]"}


def test_encoders_and_cores_may_be_given_as_classes():
    config = PolicyConfig(encoder=Encoder, core=CoreConfig(kind=Core))
    assert config.encoder == "tests.nets.own_parts:Encoder" and config.core.kind == "tests.nets.own_parts:Core"


NO_IMAGE = r"no observation of \S+ is an image; allowed:"


@pytest.mark.parametrize(
    ("recipe", "policy", "said"),
    [
        ("cartpole", {"encoder": "nomod:X"}, f"policy.encoder is nomod:X, but {NO_IMAGE} nature, or policy.kind for a"),
        ("cartpole", {"encoder": Encoder}, f"policy.encoder is {Encoder.__module__}:Encoder, but {NO_IMAGE} nature"),
        ("cartpole", {"encoder": "impala"}, f"policy.encoder is impala, but {NO_IMAGE} nature"),
        ("cartpole", {"encoder_size": 64}, f"policy.encoder_size is 64, but {NO_IMAGE} 512"),
        ("pendulum", {"encoder": "nomod:X"}, f"policy.encoder is nomod:X, but {NO_IMAGE} nature$"),
    ],
)
def test_an_encoder_without_images_is_refused(tmp_path, recipe, policy, said):
    with pytest.raises(pl.UsageError, match=said):
        pl.train(recipe, folder=tmp_path / "run", device="cpu", pool={"kind": "serial"}, policy=policy)
    assert not (tmp_path / "run").exists()


def test_an_encoder_without_images_ends_the_command_with_one_line(tmp_path):
    options = ["--policy.encoder", "nomod:X", "--pool.kind", "serial", "--device", "cpu"]
    done = command(tmp_path, "-m", "paceline", "train", "cartpole", *options)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert last.endswith("is an image; allowed: nature, or --policy.kind for a network of your own"), done.stderr


def test_a_recipe_with_another_environment_keeps_its_encoder():
    """Nobody has chosen it for this environment. A policy of the user's own may read the setting."""
    blind = recipes.find("pointnav-small").policy
    spec = PoolSpec(observation_space=spaces.Box(-1, 1, (3,)), action_space=spaces.Discrete(2), num_envs=1)
    require_images(dataclasses.replace(pl.Config(), recipe="pointnav-small", policy=blind), spec)
    require_images(pl.Config(policy=PolicyConfig(kind=own_policies.Plain, encoder=Encoder)), spec)
    require_images(recipes.find("pointnav-blind"), spec)
    with pytest.raises(pl.UsageError, match="policy.encoder is patches"):
        require_images(pl.Config(policy=blind), spec)
