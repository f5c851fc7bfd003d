"""Parts of one run in another: what is taken, what is refused, and what stays frozen."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from paceline.accel.config import ComputeConfig
from paceline.checkpoint import CheckpointFolder
from paceline.cli.train import main
from paceline.config import Config
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.evaluation.saved import SavedRun, run_config
from paceline.experience.config import LimiterConfig
from paceline.learner.config import D4PGConfig, OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import ControlConfig, CoreConfig, HeadConfig, PlannerConfig, PolicyConfig
from paceline.nets.deterministic import control_parts, make_networks
from paceline.nets.heads import ActionHead
from paceline.nets.parts import Parts, freeze, image_names, parts_of, saved_form
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec
from paceline.pretrained import folder_of
from paceline.session import Session, train
from paceline.transfer import InitialWeights
from tests.experience.rollouts import move, refill
from tests.integration.ranks import on_ranks
from tests.integration.test_resume import contents
from tests.learner.test_ppo import make_rollout

TINY = Config(
    env="gym:CartPole-v1",
    steps=128,
    rollout_steps=16,
    device="cpu",
    pool=PoolConfig(kind="serial", num_envs=4),
    policy=PolicyConfig(hidden=(16,), normalize_obs=True, core=CoreConfig(kind="lstm", hidden=8)),
    ppo=PPOConfig(epochs=1, minibatches=1),
)
PICTURES = "synthetic:constant?mean=0&obs=1,40,40&episode_length=9"
D4PG = Config(
    env="gym:Pendulum-v1",
    system="d4pg",
    steps=96,
    device="cpu",
    pool=PoolConfig(kind="serial", num_envs=2),
    control=ControlConfig(actor_hidden=(16, 16), critic_hidden=(16, 16)),
    d4pg=D4PGConfig(batch=16),
    limiter=LimiterConfig(minimum=32),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Iterator[Path]:
    """A finished run. No test changes it."""
    folder = tmp_path_factory.mktemp("source") / "run"
    train(TINY, folder)
    before = contents(folder)
    yield folder
    assert contents(folder) == before, "a run that others begin with stays as it is"


def weights_of(folder: Path) -> dict[str, Tensor]:
    return CheckpointFolder(folder / "checkpoints").load().weights


def same(one: dict[str, Tensor], other: dict[str, Tensor], *prefixes: str) -> bool:
    """Whether all tensors with these prefixes have the same bits."""
    names = [name for name in one if name.startswith(prefixes)]
    assert names
    return all(torch.equal(one[name], other[name]) for name in names)


# Random networks.

IMAGES = {"depth": (1, 16, 16), "rgb": (3, 16, 16), "near": (1, 16, 16)}
VECTORS = {"goal": 3, "compass": 3, "previous": 5}


def random_network(chance: random.Random) -> tuple[ActorCritic, Config]:
    """A small network with random observations, settings and weights."""
    leaves: dict[str, spaces.Space] = {}
    for name in chance.sample(list(IMAGES), chance.randint(0, 2)):
        leaves[name] = spaces.Box(0, 255, IMAGES[name], np.uint8)
    for name in chance.sample(list(VECTORS), chance.randint(0 if leaves else 1, 2)):
        leaves[name] = spaces.Box(-1, 1, (VECTORS[name],), np.float32)
    policy = PolicyConfig(
        encoder=chance.choice(["patches", "impala"]),
        encoder_size=chance.choice([4, 8]),
        embedding=chance.choice([0, 2]),
        hidden=chance.choice([(8,), ()]),
        activation=chance.choice(["tanh", "relu"]),
        normalize_obs=chance.random() < 0.7,
        core=CoreConfig(kind=chance.choice(["none", "gru"]), hidden=8),
    )
    spec = PoolSpec(
        observation_space=spaces.Dict(leaves), action_space=spaces.Discrete(chance.choice([2, 3])), num_envs=1
    )
    network = ActorCritic(spec, policy)
    for values in network.state_dict().values():
        values.copy_(torch.randn(values.shape) * 100)
    return network, dataclasses.replace(TINY, policy=policy)


def naively_taken(old: ActorCritic, new: ActorCritic, before: Config, now: Config, parts: list[str]) -> set[str]:
    """Copy by hand what fits, module by module. Returns the parts of which anything was copied."""
    taken = set()
    same_scale = before.policy.normalize_obs == now.policy.normalize_obs

    def copied(part: str, theirs: list[nn.Module], mine: list[nn.Module]) -> None:
        shapes = [
            [(name, values.shape) for m in ms for name, values in m.state_dict().items()] for ms in (theirs, mine)
        ]
        if part in parts and shapes[0] == shapes[1] != []:
            for one, other in zip(theirs, mine, strict=True):
                other.load_state_dict(one.state_dict())
            taken.add(part)

    def normalizer(network: ActorCritic, name: str) -> list[nn.Module]:
        return [network.normalizers[network.names.index(name)]] if network.normalizes else []

    old_images, new_images = (dict(zip(n.trunk.image_names, n.trunk.images, strict=True)) for n in (old, new))
    alone = len(old_images) == len(new_images) == 1
    for name, image in new_images.items():
        other = next(iter(old_images)) if alone else name
        if other in old_images and same_scale and before.policy.encoder == now.policy.encoder:
            copied("encoder", [old_images[other], *normalizer(old, other)], [image, *normalizer(new, name)])
    old_names, new_names = ([leaf.name for leaf in network.trunk.leaves] for network in (old, new))
    alike = same_scale and before.policy.activation == now.policy.activation and bool(old_images) == bool(new_images)
    alike &= before.policy.embedding == now.policy.embedding
    if new_names and alike and set(new_names) <= set(old_names):
        # An encoder that reads only the observations that the new network has.
        narrow, widths = (
            copy.deepcopy(old.trunk.vectors),
            [before.policy.embedding or VECTORS[name] for name in old_names],
        )
        if before.policy.embedding:
            narrow.embeddings = nn.ModuleList(narrow.embeddings[old_names.index(name)] for name in new_names)
        if before.policy.hidden:
            columns = dict(zip(old_names, narrow.layers[0].weight.split(widths, 1), strict=True))
            narrow.layers[0].weight = nn.Parameter(torch.cat([columns[name] for name in new_names], 1))
        theirs, mine = ([found for name in new_names for found in normalizer(network, name)] for network in (old, new))
        part = "policy" if new_images else "encoder"  # without images the perceptron is the encoder
        copied(part, [narrow, *theirs], [new.trunk.vectors, *mine])
    features = [columns_of(n, c.policy, alone) for n, c in ((old, before), (new, now))]
    memories = [[("memory", i) for i in range(8)] if c.policy.core.kind == "gru" else None for c in (before, now)]
    read = [memory or columns for memory, columns in zip(memories, features, strict=True)]
    if before.policy.core.kind == now.policy.core.kind:
        copied("policy", [narrowed(old.core, "rnn.weight_ih_l0", *features)], [new.core])
        copied("policy", [narrowed(old.head, "linear.weight", *read)], [new.head])
    copied("critic", [narrowed(old.critic, "weight", *read)], [new.critic])
    return taken


Column = tuple[str, int]


def columns_of(network: ActorCritic, policy: PolicyConfig, alone: bool) -> list[Column]:
    """What each feature is: a number of an image or of another observation, or of a mixture."""
    images = zip(network.trunk.image_names, network.trunk.images, strict=True)
    seen = [("image" if alone else name, i) for name, encoder in images for i in range(encoder.out_features)]
    if not network.trunk.leaves:
        return seen
    if policy.hidden:
        return seen + [("mixture", i) for i in range(policy.hidden[-1])]
    return seen + [(leaf.name, i) for leaf in network.trunk.leaves for i in range(policy.embedding or leaf.shape[0])]


def narrowed(module: nn.Module, name: str, theirs: list[Column], own: list[Column]) -> nn.Module:
    """A copy that reads only what the new network has; nothing if the two read other things."""
    mixtures = ("mixture", "memory")
    named = [[column for column in columns if column[0] not in mixtures] for columns in (theirs, own)]
    mixed = [[i for kind, i in columns if kind in mixtures] for columns in (theirs, own)]
    sizes = [Counter(kind for kind, _ in columns) for columns in named]
    fits = bool(named[0]) == bool(named[1]) and mixed[0] == mixed[1]
    if not fits or any(sizes[0][kind] != size for kind, size in sizes[1].items()):
        return nn.Module()
    module = copy.deepcopy(module)
    if name in dict(module.named_parameters()):
        weight = module.get_parameter(name)
        kept = [theirs.index(column) for column in named[1]]
        weight.data = torch.cat([weight.data[:, kept], weight.data[:, len(named[0]) :]], 1)
    return module


def test_random_networks_take_what_a_naive_copy_takes():
    results = []
    for seed in range(40):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        (old, before), (new, now) = random_network(chance), random_network(chance)
        if chance.random() < 0.8:  # mostly alike, so that much fits
            now = dataclasses.replace(now, policy=before.policy)
            new = ActorCritic(spec_of(chance.choice([old, new])), now.policy)
        parts = chance.sample(["encoder", "policy", "critic"], chance.randint(1, 3))
        now = dataclasses.replace(now, init_from="there", init="+".join(parts))
        expected = copy.deepcopy(new)
        taken = naively_taken(old, expected, before, now, parts)
        initial = InitialWeights(name="there", config=before, weights=old.state_dict(), parts=saved_form(parts_of(old)))
        untouched = copy.deepcopy(new.state_dict())
        if taken != set(parts):
            with pytest.raises(UsageError, match="of there does not fit: .*there"):
                initial.copy_to(new, parts_of(new), now)
            assert same(new.state_dict(), untouched, ""), "nothing changes if a part does not fit"
        else:
            initial.copy_to(new, parts_of(new), now)
            assert same(new.state_dict(), expected.state_dict(), "")
            told = {row.part for row in initial.reports[0] if row.tensors}
            assert told == taken
        results.append(taken == set(parts))
    assert 10 < sum(results) < 30, "both cases occur"


def spec_of(network: ActorCritic) -> PoolSpec:
    """The spaces of a network."""
    leaves = {name: spaces.Box(0, 255, IMAGES[name], np.uint8) for name in network.trunk.image_names}
    leaves |= {leaf.name: leaf.space for leaf in network.trunk.leaves}
    return PoolSpec(observation_space=spaces.Dict(leaves), action_space=network._actions[0].space, num_envs=1)


# Whole runs.


@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
def test_a_frozen_encoder_is_the_same_at_the_end(source, tmp_path, system):
    config = dataclasses.replace(
        TINY, system=system, seed=7, init_from=str(source), init="encoder+policy", freeze="encoder"
    )
    theirs = weights_of(source)
    with Session(config, tmp_path / "run") as session:
        own = copy.deepcopy(session.learners[0].policy.state_dict())
        session.run()
    after = weights_of(tmp_path / "run")
    assert same(theirs, own, "trunk.", "normalizers.", "core.", "head.") and not same(theirs, own, "critic.")
    assert same(own, after, "trunk.", "normalizers.")
    assert not same(own, after, "core.") and not same(own, after, "head.") and not same(own, after, "critic.")
    assert int(after["version"]) > 0, "the number of updates is the run's own"


def test_the_user_sees_what_was_taken(source, tmp_path, caplog):
    config = dataclasses.replace(TINY, init_from=str(source), init="encoder")
    with caplog.at_level(logging.INFO), Session(config, tmp_path / "run"):
        pass
    lines = next(record.message for record in caplog.records if "initial weights" in record.message).splitlines()
    assert lines[0] == f"initial weights from {source}/checkpoints/step_128"
    assert [line.split() for line in lines[1:]] == [
        *(["encoder", "perceptron", "taken,", "8", "tensors"],),
        *(["policy", "core", "new:", "not", "asked", "for"], ["policy", "head", "new:", "not", "asked", "for"]),
        *(["critic", "critic", "new:", "not", "asked", "for"],),
    ]
    written = json.loads((tmp_path / "run" / "initial_weights.json").read_text())
    assert written["from"] == f"{source}/checkpoints/step_128" and written["policies"][0][0]["tensors"] == 8


def test_a_resumed_run_does_not_need_the_other_one(source, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(source, other)
    folder = tmp_path / "run"
    config = dataclasses.replace(TINY, init_from=str(other / "checkpoints" / "latest"), freeze="encoder")
    train(config, folder)
    shutil.rmtree(other)
    before = weights_of(folder)
    assert main(["--resume", "--run-dir", str(folder), "--steps", "256"]) == 0
    after = weights_of(folder)
    assert Config.load(folder / "config.json").freeze == "encoder"
    assert same(before, after, "trunk.", "normalizers.") and not same(before, after, "head.")
    with pytest.raises(UsageError, match="freeze critic instead of encoder"):
        main(["--resume", "--run-dir", str(folder), "--steps", "512", "--freeze", "critic"])


OPTIONS = ["--steps", "128", "--pool.num-envs", "4", "--pool.kind", "serial", "--device", "cpu"]
FITTING = ["--init-from", "RUN", "--policy.normalize-obs", "--policy.hidden", "16", "--policy.critic", "shared"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--init-from", "RUN", "--init", "body"], ["init 'body'", "encoder, policy, planner, critic"]),
        (
            ["--init-from", "RUN", "--freeze", "encoder+head"],
            ["freeze 'encoder+head'", "encoder, policy, planner, critic"],
        ),
        (["--init", "encoder"], ["no effect without init_from"]),
        (["--freeze", "encoder+policy"], ["leaves no policy to train"]),
        (["--freeze", "planner"], ["freeze planner needs a planner", "--policy.planner.kind lstm"]),
        (["--freeze", "encoder"], ["freeze encoder would keep random weights", "--init-from RUN --init encoder"]),
        (
            [*FITTING, "--init", "policy", "--freeze", "encoder"],
            ["freeze encoder would keep random weights", "--init encoder+policy"],
        ),
        (
            ["--system", "d4pg", "--env", "gym:Pendulum-v1", "--freeze", "critic"],
            ["freeze critic", "under d4pg", "allowed: encoder, or policy"],
        ),
        (["--init-from", "nowhere"], ["nowhere is not the folder of a run"]),
        (["--init-from", "RUN/checkpoints/step_7"], ["no checkpoint 'step_7'", "step_128"]),
        (["--init-from", "RUN"], ["encoder", "normalize_obs is True there and False here"]),
        (
            [*FITTING, "--policy.hidden", "32"],
            ["the encoder of", "trunk.vectors.layers.0.weight is 16x4 there and 32x4 here"],
        ),
        (
            [*FITTING, "--policy.activation", "relu"],
            ["the encoder of", "policy.activation is tanh there and relu here"],
        ),
        (
            [*FITTING, "--policy.core.kind", "gru"],
            ["the policy of", "policy.core.kind is lstm there and gru here", "allowed: --init encoder"],
        ),
        (["--init-from", "RUN", "--system", "d4pg", "--env", "gym:Pendulum-v1"], ["a run of ddppo", "allowed", "d4pg"]),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(source, tmp_path, arguments, words):
    arguments = [argument.replace("RUN", str(source)) for argument in arguments]
    with pytest.raises(Exception) as caught:
        main(["cartpole", *OPTIONS, "--run-dir", str(tmp_path / "run"), *arguments])
    assert getattr(caught.value, "exit_code", None) == 2, caught.value
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message
    assert not (tmp_path / "run").exists()


def test_a_part_that_is_frozen_must_fit_as_a_whole():
    space = spaces.Dict(depth=spaces.Box(0, 255, (1, 16, 16), np.uint8), rgb=spaces.Box(0, 255, (3, 16, 16), np.uint8))
    config = dataclasses.replace(TINY, policy=PolicyConfig(encoder="patches", encoder_size=8))
    both, depth = (
        PoolSpec(observation_space=s, action_space=spaces.Discrete(2), num_envs=1)
        for s in (space, spaces.Dict(depth=space["depth"]))
    )
    old, new = ActorCritic(depth, config.policy), ActorCritic(both, config.policy)
    initial = InitialWeights(name="there", config=config, weights=old.state_dict(), parts=saved_form(parts_of(old)))
    config = dataclasses.replace(config, init_from="there", init="encoder")
    initial.copy_to(new, parts_of(new), config)
    assert [(row.unit, row.tensors > 0) for row in initial.reports[0][:2]] == [
        ("encoder of depth", True),
        ("encoder of rgb", False),
    ]
    with pytest.raises(UsageError, match="not fit as a whole: there is no encoder of rgb; it would stay random"):
        initial.copy_to(new, parts_of(new), dataclasses.replace(config, freeze="encoder"))


def taken_core(old: ActorCritic, new: ActorCritic, config: Config) -> str:
    """Take the policy of one network in another. Returns the note about its core."""
    initial = InitialWeights(name="there", config=config, weights=old.state_dict(), parts=saved_form(parts_of(old)))
    initial.copy_to(new, parts_of(new), dataclasses.replace(config, init_from="there", init="policy"))
    return next(row.note for row in initial.reports[0] if row.unit == "core")


def test_the_core_of_a_task_with_images_only_leaves_out_the_goal():
    policy = PolicyConfig(encoder="patches", encoder_size=4, hidden=(), core=CoreConfig(kind="lstm", hidden=8))
    depth, goal = spaces.Box(0, 255, (1, 16, 16), np.uint8), spaces.Box(-1, 1, (3,), np.float32)
    old, new, back = (
        ActorCritic(PoolSpec(observation_space=space, action_space=spaces.Discrete(2), num_envs=1), policy)
        for space in (spaces.Dict(depth=depth, goal=goal), spaces.Dict(depth=depth), spaces.Dict(depth=depth))
    )
    config = dataclasses.replace(TINY, policy=policy)
    assert taken_core(old, new, config) == "without goal"
    assert torch.equal(new.core.rnn.weight_ih_l0, old.core.rnn.weight_ih_l0[:, :4])
    assert taken_core(new, back, config) == ""
    assert same(new.state_dict(), back.state_dict(), "core.")
    assert taken_core(new, old, config) == "the observation goal is missing there and 3 values here"


@pytest.mark.parametrize("hidden", [(8,), ()])
def test_a_reduced_observation_is_taken_with_its_layers(hidden):
    """The other run also reads an observation that is left out."""
    policy = PolicyConfig(
        reduced=("terrain",), reduced_hidden=(6, 4), hidden=hidden, core=CoreConfig(kind="gru", hidden=8)
    )
    sizes = {"body": 2, "extra": 3, "terrain": 5}
    old, new = (
        ActorCritic(
            PoolSpec(
                observation_space=spaces.Dict({name: spaces.Box(-1, 1, (sizes[name],)) for name in names}),
                action_space=spaces.Discrete(2),
                num_envs=1,
            ),
            policy,
        )
        for names in (("body", "extra", "terrain"), ("body", "terrain"))
    )
    config = dataclasses.replace(TINY, policy=policy)
    initial = InitialWeights(name="there", config=config, weights=old.state_dict(), parts=saved_form(parts_of(old)))
    initial.copy_to(new, parts_of(new), dataclasses.replace(config, init_from="there", init="encoder+policy"))
    kept = torch.tensor([0, 1, 5, 6, 7, 8])
    theirs, mine = old.trunk.vectors, new.trunk.vectors
    assert same(theirs.embeddings[2].state_dict(), mine.embeddings[1].state_dict(), "")
    if hidden:
        assert torch.equal(theirs.layers[0].weight[:, kept], mine.layers[0].weight)
    else:
        assert torch.equal(old.core.rnn.weight_ih_l0[:, kept], new.core.rnn.weight_ih_l0)


def test_own_encoders_may_have_embeddings():
    policy = PolicyConfig(encoder="tests.nets.own_parts:PaletteEncoder", encoder_size=4)
    spec = PoolSpec(
        observation_space=spaces.Box(0, 255, (1, 8, 8), np.uint8), action_space=spaces.Discrete(2), num_envs=1
    )
    old, new = ActorCritic(spec, policy), ActorCritic(spec, policy)
    config = dataclasses.replace(TINY, policy=policy)
    initial = InitialWeights(name="there", config=config, weights=old.state_dict(), parts=saved_form(parts_of(old)))
    initial.copy_to(new, parts_of(new), dataclasses.replace(config, init_from="there", init="encoder"))
    assert same(old.state_dict(), new.state_dict(), "trunk.images.0.embeddings.")


def test_a_run_that_froze_random_weights_can_be_resumed(tmp_path, monkeypatch):
    """New runs that do so are refused, but not those of earlier versions."""
    with monkeypatch.context() as earlier:
        earlier.setattr("paceline.session.initial_weights", lambda config: None)
        train(dataclasses.replace(TINY, freeze="encoder"), tmp_path / "run")
    before = weights_of(tmp_path / "run")
    assert main(["--resume", "--run-dir", str(tmp_path / "run"), "--steps", "256"]) == 0
    assert same(before, weights_of(tmp_path / "run"), "trunk.", "normalizers.")


def test_images_of_another_size_are_named_with_their_environments():
    spaces_of = [spaces.Dict(depth=spaces.Box(0, 255, (1, side, side), np.uint8)) for side in (16, 32)]
    config = dataclasses.replace(TINY, policy=PolicyConfig(encoder="patches", encoder_size=8), env="small:images")
    old, new = (
        ActorCritic(PoolSpec(observation_space=s, action_space=spaces.Discrete(2), num_envs=1), config.policy)
        for s in spaces_of
    )
    initial = InitialWeights(name="there", config=config, weights=old.state_dict(), parts=saved_form(parts_of(old)))
    wanted = dataclasses.replace(config, init_from="there", init="encoder", env="large:images")
    words = "with images of small:images there and of large:images here; allowed: images of the same size, or --init"
    with pytest.raises(UsageError, match=words):
        initial.copy_to(new, parts_of(new), wanted)


def test_images_go_to_a_task_with_other_actions(tmp_path):
    policy = PolicyConfig(encoder_size=16, core=CoreConfig(kind="gru", hidden=8))
    config = dataclasses.replace(TINY, env=PICTURES, steps=64, policy=policy)
    train(config, tmp_path / "old")
    more = dataclasses.replace(
        config, env=f"{PICTURES}&actions=6", init_from=str(tmp_path / "old"), freeze="encoder", seed=2
    )
    with Session(more, tmp_path / "new") as session:
        own = copy.deepcopy(session.learners[0].policy.state_dict())
        session.run()
    theirs, after = weights_of(tmp_path / "old"), weights_of(tmp_path / "new")
    assert same(theirs, own, "trunk.", "core.") and own["head.linear.weight"].shape == (6, 8)
    assert same(own, after, "trunk.") and not same(own, after, "core.")
    rows = json.loads((tmp_path / "new" / "initial_weights.json").read_text())["policies"][0]
    told = {row["unit"]: row["note"] for row in rows}
    assert told["head"] == "head.linear.weight is 4x8 there and 6x8 here" and told["encoder of obs"] == ""


def test_d4pg_takes_and_freezes_parts(tmp_path):
    train(D4PG, tmp_path / "old")
    config = dataclasses.replace(
        D4PG, seed=3, init_from=str(tmp_path / "old"), init="encoder+policy+critic", freeze="encoder"
    )
    old = CheckpointFolder(tmp_path / "old" / "checkpoints").load()
    with Session(config, tmp_path / "new") as session:
        own, rest = copy.deepcopy(session.learners[0].policy.state_dict()), session.learners[0].state_dict()
        assert same(old.weights, own, "")
        assert same(old.state["agent"]["critic"], rest["critic"], "")
        assert same(old.weights, rest["target_policy"], ""), "targets begin as the networks do"
        session.run()
    after = weights_of(tmp_path / "new")
    assert same(own, after, "torso.") and not same(own, after, "last.")


def begin_with(folder: Path, source: Path) -> dict[str, Tensor]:
    """Train on every rank with weights of another run. Returns the weights that this rank ends with."""
    config = dataclasses.replace(TINY, seed=4, init_from=str(source), freeze="encoder")
    with Session(config, folder) as session:
        session.run()
        return session.learners[0].policy.state_dict()


def test_ranks_begin_and_end_with_the_same_weights(source, tmp_path):
    first, second = on_ranks(2, lambda: begin_with(tmp_path / "run", source))
    assert same(first, second, "")
    theirs = weights_of(source)
    assert same(theirs, first, "trunk.", "normalizers.") and not same(theirs, first, "head.")


def test_policies_of_a_population_begin_alike(source, tmp_path):
    config = dataclasses.replace(
        TINY, init_from=str(source), population=dataclasses.replace(TINY.population, policies=2)
    )
    with Session(config, tmp_path / "run") as session:
        first, second = (learner.policy.state_dict() for learner in session.learners)
        assert same(first, second, "trunk.", "core.", "head.")


def test_a_run_with_frozen_parts_is_evaluated_as_usual(source, tmp_path):
    train(dataclasses.replace(TINY, init_from=str(source), freeze="policy"), tmp_path / "run")
    run = SavedRun.load(tmp_path / "run")
    policy = run.policy(run.spec(), torch.device("cpu"))
    assert same(policy.state_dict(), weights_of(source), "core.", "head.")


# What a layer reads: columns belong to observations, by name.


def vectors(**sizes: int) -> dict[str, spaces.Space]:
    return {name: spaces.Box(-1, 1, (size,), np.float32) for name, size in sizes.items()}


def pictures(*names: str) -> dict[str, spaces.Space]:
    return {name: spaces.Box(0, 255, (1, 16, 16), np.uint8) for name in names}


def spec_with(leaves: dict[str, spaces.Space], action: spaces.Space | None = None) -> PoolSpec:
    """Observations in this order."""
    return PoolSpec(
        observation_space=spaces.Dict(list(leaves.items())), action_space=action or spaces.Discrete(2), num_envs=1
    )


def sample(spec: PoolSpec) -> dict[str, Tensor]:
    return {leaf.name: torch.from_numpy(np.stack([leaf.space.sample() for _ in range(5)])) for leaf in spec.obs}


def taken(old: nn.Module, old_parts: Parts, new: nn.Module, parts: Parts, config: Config, init: str) -> dict[str, str]:
    """Take parts of one network in another. Returns the note about each unit."""
    initial = InitialWeights(name="there", config=config, weights=old.state_dict(), parts=saved_form(old_parts))
    initial.copy_to(new, parts, dataclasses.replace(config, init_from="there", init=init))
    return {row.unit: row.note for row in initial.reports[0]}


def taken_in_ppo(old: ActorCritic, new: ActorCritic, policy: PolicyConfig, init: str) -> dict[str, str]:
    return taken(old, parts_of(old), new, parts_of(new), dataclasses.replace(TINY, policy=policy), init)


def without(network: ActorCritic, *images: str) -> None:
    """Let the encoders of these images give zeros, whatever they see."""
    for trunk in filter(None, (network.trunk, network.critic_trunk)):
        for name in images:
            encoder = trunk.images[trunk.image_names.index(name)]
            for values in encoder.parameters():
                values.data.zero_()


SEEING = PolicyConfig(encoder="patches", encoder_size=4, hidden=(6,))
CONTROL = PolicyConfig(encoder="patches", encoder_size=4)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("hidden", [(6,), ()])
def test_columns_of_images_are_taken_by_name(core, hidden):
    """The same outputs, without the image that only the other run has, and in another order."""
    policy = dataclasses.replace(SEEING, hidden=hidden, core=CoreConfig(kind=core, hidden=8))
    seen = pictures("depth", "rgb", "seg") | vectors(goal=3)
    fewer = spec_with({name: seen[name] for name in ("rgb", "depth", "goal")})
    old, new = ActorCritic(spec_with(seen), policy), ActorCritic(fewer, policy)
    notes = taken_in_ppo(old, new, policy, "encoder+policy+critic")
    reader = "core" if core == "lstm" else "head"
    assert notes[reader] == "without seg"
    without(old, "seg")
    obs = sample(spec_with(seen))
    expected, found = (
        old.act(obs, old.initial_state(5)),
        new.act({n: obs[n] for n in names_of(fewer)}, new.initial_state(5)),
    )
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)


def names_of(spec: PoolSpec) -> list[str]:
    return [leaf.name for leaf in spec.obs]


@pytest.mark.parametrize(("core", "reader"), [("none", "head"), ("gru", "core")])
def test_columns_of_another_image_are_not_taken(core, reader):
    policy = dataclasses.replace(SEEING, core=CoreConfig(kind=core, hidden=8))
    old, new = (
        ActorCritic(spec_with(pictures(*names) | vectors(goal=3)), policy)
        for names in (("depth", "rgb"), ("rgb", "seg"))
    )
    notes = taken_in_ppo(old, new, policy, "encoder+policy")
    assert notes["encoder of rgb"] == "" and notes["perceptron"] == ""
    assert notes[reader] == "the observation seg is missing there and 4 values here"


def test_a_separate_critic_is_taken_by_names():
    policy = dataclasses.replace(SEEING, critic="separate", embedding=2)
    seen = pictures("depth", "rgb") | vectors(compass=3, goal=3)
    other = spec_with({name: seen[name] for name in ("rgb", "goal", "compass")})
    old, new = ActorCritic(spec_with(seen), policy), ActorCritic(other, policy)
    assert taken_in_ppo(old, new, policy, "critic")["critic"] == "without depth"
    without(old, "depth")
    obs = sample(spec_with(seen))
    torch.testing.assert_close(
        old.value(obs, torch.zeros(5, 0)), new.value({n: obs[n] for n in names_of(other)}, torch.zeros(5, 0))
    )
    another = ActorCritic(spec_with(pictures("depth", "seg") | vectors(compass=3, goal=3)), policy)
    with pytest.raises(UsageError, match="the critic of there does not fit: the observation seg is missing there"):
        taken_in_ppo(old, another, policy, "critic")


def test_own_heads_are_taken_only_with_the_same_images_in_the_same_order():
    """Which of their columns belong to an image is not known."""
    own = dataclasses.replace(SEEING, head=HeadConfig(kind="tests.test_transfer:OwnHead"))
    old, same_images, moved = (
        ActorCritic(spec_with(pictures(*names) | vectors(goal=3)), own)
        for names in (("depth", "rgb"), ("depth", "rgb"), ("rgb", "depth"))
    )
    assert taken_in_ppo(old, same_images, own, "encoder+policy")["head"] == ""
    notes = taken_in_ppo(old, moved, own, "encoder+policy")
    assert notes["head"] == "head reads other observations there, or in another order"


class OwnHead(ActionHead):
    """Its first layer has a name of its own."""

    def __init__(self, leaves, in_features, config):
        super().__init__(leaves, in_features, config)
        self.first, self.linear = self.linear, nn.Identity()

    def forward(self, features, mask=None):
        return self.params(self.first(features), mask)


def control_networks(seen: dict[str, spaces.Space], policy: PolicyConfig) -> tuple[nn.ModuleDict, Parts]:
    """D4PG's networks with random statistics, and where their parts are."""
    own, critic = make_networks(spec_with(seen, spaces.Box(-1, 1, (2,))), D4PG.control, policy)
    for name, values in own.state_dict().items():
        if name.endswith(("shift", "scale")):
            values.uniform_(0.5, 2.0)
    return nn.ModuleDict({"policy": own, "critic": critic}), control_parts(own)


@pytest.mark.parametrize("seen", [{}, pictures("screen")], ids=["vectors", "images"])
def test_d4pg_does_not_take_columns_of_other_observations(seen):
    config = dataclasses.replace(D4PG, policy=CONTROL)
    old, new = (
        control_networks(seen | own, CONTROL) for own in (vectors(joints=3, terrain=6), vectors(camera=6, speed=3))
    )
    wanted = "policy" if seen else "encoder"
    for init in (wanted, "critic") if not seen else ("critic",):
        with pytest.raises(UsageError, match="the observation camera is missing there and 6 values here"):
            taken(*old, *new, config, init)
    if seen:
        notes = taken(*old, *new, config, "encoder+policy")
        assert notes["torso"] == "the observation camera is missing there and 6 values here"


def test_d4pg_takes_columns_and_reduced_observations_by_name():
    """The same actions and values without the observation that only the other run has, and in another order."""
    policy = dataclasses.replace(CONTROL, reduced=("terrain",), reduced_hidden=(6, 4), normalize_obs=True)
    seen = pictures("screen") | vectors(joints=3, sonar=5, terrain=6)
    names = ("terrain", "joints", "screen")
    old, new = control_networks(seen, policy), control_networks({name: seen[name] for name in names}, policy)
    config = dataclasses.replace(D4PG, policy=policy)
    notes = taken(*old, *new, config, "encoder+policy+critic")
    assert notes["torso"] == "without sonar" and notes["reduced"] == ""
    obs = sample(spec_with(seen))
    obs["sonar"] = old[0]["policy"].normalizers[1].shift.expand(5, -1)  # normalised, it is zero
    actions = torch.rand(5, 2)
    found = []
    for network, own in ((old[0], obs), (new[0], {name: obs[name] for name in names})):
        normalized = network["policy"].normalize(own)
        found.append((network["policy"](own), network["critic"](normalized, actions)))
    torch.testing.assert_close(*found)


def test_the_normaliser_of_a_reduced_observation_belongs_to_its_layers():
    policy = dataclasses.replace(CONTROL, reduced=("terrain",), reduced_hidden=(6, 4), normalize_obs=True)
    seen = pictures("screen") | vectors(joints=3, terrain=6)
    old, new = control_networks(seen, policy), control_networks(seen, policy)
    config = dataclasses.replace(D4PG, policy=policy)
    taken(*old, *new, config, "encoder")
    joints, terrain = (normalizer.state_dict() for normalizer in new[0]["policy"].normalizers)
    assert same(old[0]["policy"].normalizers[1].state_dict(), terrain, "")
    assert not same(old[0]["policy"].normalizers[0].state_dict(), joints, "shift")
    freeze(*new, ["encoder"])
    assert [normalizer.is_frozen for normalizer in new[0]["policy"].normalizers] == [False, True]
    raw = dataclasses.replace(policy, normalize_obs=False)
    unscaled = control_networks(seen, raw)
    initial = InitialWeights(name="there", config=config, weights=old[0].state_dict(), parts=saved_form(old[1]))
    initial.copy_to(*unscaled, dataclasses.replace(config, policy=raw, init_from="there", init="encoder"))
    notes = {row.unit: row.note for row in initial.reports[0]}
    assert notes["reduced"] == "policy.normalize_obs is True there and False here"


# Folders that do not say where their parts are: pretrained policies, and checkpoints of earlier versions.


def pretrained(name: str, **changes) -> Config:
    """The settings of a run that begins with a pretrained policy."""
    config = run_config(folder_of(Path(name)))
    return dataclasses.replace(config, init_from=name, policy=dataclasses.replace(config.policy, **changes))


def test_a_pretrained_policy_is_taken_by_the_names_of_its_observations():
    config = pretrained("pointnav")
    spec = SavedRun.load(folder_of(Path("pointnav"))).spec()
    seen = {leaf.name: leaf.space for leaf in spec.obs if leaf.name != "goal"}
    new, initial = ActorCritic(spec_with(seen, spaces.Discrete(4)), config.policy), InitialWeights.load(config)
    initial.copy_to(new, parts_of(new), config)
    notes = {row.unit: row.note for row in initial.reports[0]}
    assert notes["perceptron"] == "without goal" and notes["head"] == ""
    theirs = initial.weights["trunk.vectors.layers.0.weight"]
    assert torch.equal(new.trunk.vectors.layers[0].weight, theirs[:, 3:])


def test_a_pretrained_policy_of_other_observations_is_refused():
    config = pretrained("cartpole")
    new = ActorCritic(spec_with(vectors(a=1, b=3)), config.policy)
    with pytest.raises(UsageError, match="the observation a is missing there and 1 values here"):
        InitialWeights.load(config).copy_to(new, parts_of(new), config)


def test_a_planner_steers_a_pretrained_policy():
    config = dataclasses.replace(pretrained("pointnav", planner=PlannerConfig(kind="lstm")), freeze="encoder+policy")
    spec = SavedRun.load(folder_of(Path("pointnav"))).spec()
    seen = {leaf.name: leaf.space for leaf in spec.obs if leaf.name != "goal"}
    new, initial = ActorCritic(spec_with(seen, spaces.Discrete(4)), config.policy), InitialWeights.load(config)
    initial.copy_to(new, parts_of(new), config)
    assert same(
        {"head": initial.weights["head.linear.weight"], "goal": initial.weights["trunk.vectors.layers.0.weight"]},
        {"head": new.head.linear.weight, "goal": new.core.perceptron.layers[0].weight},
        "",
    )


@pytest.mark.parametrize("name", ["pointnav", "pendulum"])
def test_reading_a_pretrained_policy_draws_no_random_numbers(name):
    before = torch.get_rng_state()
    initial = InitialWeights.load(pretrained(name))
    assert initial.parts is not None
    assert torch.equal(before, torch.get_rng_state())


def forget_parts(folder: Path, keep: Callable[[Any], Any] = lambda parts: None) -> None:
    """Save the checkpoint as an earlier version would have: with parts of its form, or without any."""
    loaded = CheckpointFolder(folder / "checkpoints").load()
    state = copy.deepcopy(dict(loaded.state))
    state["agent"]["parts"] = keep(state["agent"]["parts"])
    CheckpointFolder(folder / "checkpoints").save(loaded.state["step"] + 1, loaded.weights, state, {}, best=False)


def test_unknown_parts_are_taken_only_with_equal_widths(source, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(source, folder)
    forget_parts(folder)
    (folder / "spaces.json").unlink()
    config = dataclasses.replace(TINY, init_from=str(folder))
    initial = InitialWeights.load(config)
    assert initial.parts is None
    new = ActorCritic(spec_with(vectors(a=2, b=3)), TINY.policy)
    with pytest.raises(UsageError, match="the encoder of .* does not fit: .* is .* there and .* here"):
        initial.copy_to(new, parts_of(new), config)
    planned = dataclasses.replace(TINY.policy, planner=PlannerConfig(kind="lstm"))
    with pytest.raises(UsageError, match="does not say what its policy observes; allowed: a run with spaces.json"):
        InitialWeights.load(dataclasses.replace(config, policy=planned))


def of_earlier_version(parts: dict[str, Any]) -> dict[str, Any]:
    """Parts as earlier versions saved them: cores counted all images together, and other units named nothing."""
    found = {
        part: {name: {"modules": unit["modules"], "inputs": unit["inputs"]} for name, unit in units.items()}
        for part, units in parts.items()
    }
    images, core = image_names(parts), parts["policy"]["core"]["columns"]["core"]
    joint = sum(size for name, size in core.items() if name in images)
    mixes = any("perceptron" in unit["columns"] for part in ("encoder", "policy") for unit in parts[part].values())
    others = {name: size for name, size in core.items() if name not in images}
    found["policy"]["core"]["inputs"] = {} if mixes else {"images": joint, **others}
    return found


def test_checkpoints_of_earlier_versions_are_read_by_their_spaces(source, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(source, folder)
    forget_parts(folder, of_earlier_version)
    initial = InitialWeights.load(dataclasses.replace(TINY, init_from=str(folder)))
    known = CheckpointFolder(source / "checkpoints").load().state["agent"]["parts"]
    assert initial.parts == known


@pytest.mark.parametrize("hidden", [(6,), ()])
@pytest.mark.parametrize("image", [(), ("screen",)])
def test_parts_of_earlier_versions_are_still_taken(hidden, image):
    """Of runs with classes of the user's own, whose networks are not built."""
    policy = dataclasses.replace(SEEING, hidden=hidden, core=CoreConfig(kind="gru", hidden=8))
    seen = pictures(*image) | vectors(extra=2, goal=3)
    old, new = (ActorCritic(spec_with(own), policy) for own in (seen, pictures(*image) | vectors(goal=3)))
    config = dataclasses.replace(TINY, policy=policy)
    parts = of_earlier_version(saved_form(parts_of(old)))
    initial = InitialWeights(name="there", config=config, weights=old.state_dict(), parts=parts)
    expected, wanted = copy.deepcopy(new), "encoder+policy+critic" if hidden or image else "policy+critic"
    taken_in_ppo(old, expected, policy, wanted)
    initial.copy_to(new, parts_of(new), dataclasses.replace(config, init_from="there", init=wanted))
    assert same(expected.state_dict(), new.state_dict(), "")


# Updates.

SPEC = PoolSpec(observation_space=spaces.Box(-1, 1, (3,), np.float32), action_space=spaces.Discrete(2), num_envs=4)
PERCEPTRON = PolicyConfig(hidden=(8,), normalize_obs=True)


def frozen_learner(device: torch.device, compute: ComputeConfig | None = None) -> tuple[ActorCritic, PPOLearner]:
    torch.manual_seed(0)
    policy = ActorCritic(SPEC, PERCEPTRON).to(device)
    freeze(policy, parts_of(policy), ["encoder"])
    config, generator = PPOConfig(epochs=2, minibatches=2), torch.Generator().manual_seed(0)
    learner = PPOLearner(policy, Group(RankInfo(), device, None), config, OptimizerConfig(), generator, compute)
    return policy, learner


def test_frozen_weights_have_no_gradient_and_no_moments():
    policy, learner = frozen_learner(torch.device("cpu"))
    before = copy.deepcopy(policy.state_dict())
    losses = learner.learn(make_rollout(policy).batch, 0.0)
    assert all(parameter.grad is None for parameter in policy.trunk.parameters())
    trained = [*policy.head.parameters(), *policy.critic.parameters()]
    (group,) = learner.optimizer.param_groups
    assert [id(values) for values in group["params"]] == [id(values) for values in trained]
    assert set(map(id, learner.optimizer.state)) == set(map(id, trained))
    assert losses["grad_norm"] > 0
    after = policy.state_dict()
    assert same(before, after, "trunk.", "normalizers.") and not same(before, after, "head.")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_frozen_weights_stay_in_recorded_updates():
    device, found = torch.device("cuda"), []
    for graphs in (False, True):
        policy, learner = frozen_learner(device, ComputeConfig(cuda_graphs=graphs))
        before = copy.deepcopy(policy.state_dict())
        rollout = make_rollout(ActorCritic(SPEC, PERCEPTRON))
        move(rollout, device)
        for update in range(6):
            refill(rollout, make_rollout(ActorCritic(SPEC, PERCEPTRON), seed=update))
            learner.learn(rollout.batch, 0.0)
        assert same(before, policy.state_dict(), "trunk.", "normalizers.")
        found.append(policy.state_dict())
    for name, values in found[0].items():
        torch.testing.assert_close(values, found[1][name], rtol=1e-4, atol=1e-5)
