"""Parts of one run in another: what is taken, what is refused, and what stays frozen."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

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
from paceline.evaluation.saved import SavedRun
from paceline.experience.config import LimiterConfig
from paceline.learner.config import D4PGConfig, OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import ControlConfig, CoreConfig, PolicyConfig
from paceline.nets.parts import freeze, parts_of, saved_form
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec
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
    if before.policy.core.kind == now.policy.core.kind:
        copied("policy", [narrow_core(old, new, before, now)], [new.core])
        copied("policy", [old.head], [new.head])
    copied("critic", [old.critic], [new.critic])
    return taken


def narrow_core(old: ActorCritic, new: ActorCritic, before: Config, now: Config) -> nn.Module:
    """The old core without the observations that only the old network has; nothing if the cores read other things."""
    old_names, new_names = ([leaf.name for leaf in network.trunk.leaves] for network in (old, new))
    mixed_before, mixed_now = (bool(names and c.policy.hidden) for names, c in ((old_names, before), (new_names, now)))
    if mixed_before != mixed_now:
        return nn.Module()
    if mixed_now or before.policy.core.kind == "none":
        return old.core
    size, images = before.policy.embedding, old.trunk.num_image_features
    fits = images == new.trunk.num_image_features and set(new_names) <= set(old_names)
    if not fits or any((size or VECTORS[name]) != (now.policy.embedding or VECTORS[name]) for name in new_names):
        return nn.Module()
    core = copy.deepcopy(old.core)
    widths = [images, *(size or VECTORS[name] for name in old_names)]
    columns = dict(zip(["images", *old_names], core.rnn.weight_ih_l0.split(widths, 1), strict=True))
    core.rnn.weight_ih_l0 = nn.Parameter(torch.cat([columns[name] for name in ("images", *new_names)], 1))
    return core


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
