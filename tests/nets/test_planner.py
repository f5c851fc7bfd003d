"""The neural controller: a planner that steers a frozen policy gives what a plain composition of the two gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from paceline.accel.config import ComputeConfig
from paceline.checkpoint import CheckpointFolder
from paceline.config import Config
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.evaluation.saved import SavedRun
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PlannerConfig, PolicyConfig
from paceline.nets.cores import scan_steps, sequence_steps
from paceline.nets.parts import freeze, parts_of, saved_form
from paceline.nets.planner import PlannedCore
from paceline.nets.ppo_policy import Recall
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec
from paceline.session import Session, train
from paceline.transfer import InitialWeights
from tests.experience.rollouts import move, refill
from tests.integration.learning import train_until
from tests.learner.test_ppo import SPEC, flat, make_rollout

STATES = {
    "depth": spaces.Box(0, 255, (1, 16, 16), np.uint8),
    "battery": spaces.Box(-1, 1, (1,), np.float32),
    "goal": spaces.Box(-1, 1, (3,), np.float32),
    "previous_action": spaces.Box(0, 1, (5,), np.float32),
}
LSTM = CoreConfig(kind="lstm", hidden=6, layers=2)


STEERED = PolicyConfig(hidden=(8,), core=LSTM, planner=PlannerConfig(kind="lstm", hidden=8))


def spec_of(*names: str) -> PoolSpec:
    space = spaces.Dict({name: STATES[name] for name in names})
    return PoolSpec(observation_space=space, action_space=spaces.Discrete(4), num_envs=3)


def observe(spec: PoolSpec, rows: int) -> dict[str, Tensor]:
    return {leaf.name: torch.from_numpy(np.stack([leaf.space.sample() for _ in range(rows)])) for leaf in spec.obs}


def steered(
    names: tuple[str, ...] = ("depth", "previous_action"),
    core: CoreConfig = LSTM,
    planner: str = "lstm",
    normalize: bool = False,
) -> tuple[ActorCritic, ActorCritic]:
    """An agent that observes a goal besides `names`, and a planner for environments with `names` that steers it."""
    plain = PolicyConfig(
        encoder="patches",
        encoder_size=7,
        embedding=3,
        hidden=(5,),
        activation="relu",
        core=core,
        normalize_obs=normalize,
    )
    planned = dataclasses.replace(plain, planner=PlannerConfig(kind=planner, hidden=8))
    agent = ActorCritic(spec_of(*{*names, "goal"}), plain)
    for values in agent.state_dict().values():
        values.copy_(torch.rand(values.shape) + 0.1)  # normalisers too
    for values in agent.parameters():
        values.data.uniform_(-0.7, 0.7)
    policy = ActorCritic(spec_of(*names), planned)
    assert isinstance(policy.core, PlannedCore)
    policy.core.goal.weight.data.normal_()
    initial = InitialWeights(
        name="there", config=Config(policy=plain), weights=agent.state_dict(), parts=saved_form(parts_of(agent))
    )
    initial.copy_to(policy, parts_of(policy), Config(policy=planned, init_from="there", freeze="encoder+policy"))
    freeze(policy, parts_of(policy), ["encoder", "policy"])
    return agent, policy


def naively(agent: ActorCritic, policy: ActorCritic, steps: list[dict[str, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Parameters and values of every step: the planner's LSTM, its goal, and the agent on observations with it."""
    found, memory, state = [], None, agent.initial_state(3)
    for obs in steps:
        seen = policy.see(obs)
        inputs = [policy.trunk.images[0](seen["depth"])] if "depth" in obs else []
        vectors = torch.cat([seen[name] for name in sorted(obs) if name != "depth"], 1)
        inputs.append(policy.trunk.vectors(vectors))
        plan, memory = policy.core.planner.rnn(torch.cat(inputs, 1)[None], memory)
        raw = plan[0] @ policy.core.goal.weight.T + policy.core.goal.bias
        distance = torch.where(raw[:, :1] > 0, raw[:, :1], raw[:, :1].exp() - 1) + 0.75
        goal = torch.cat([distance, raw[:, 1:].tanh()], 1)
        params, _, state = agent.act(obs | {"goal": goal}, state)
        found.append((params, policy.critic(plan[0]).squeeze(1)))
    return found


@pytest.mark.parametrize(
    "names", [("depth", "previous_action"), ("battery", "depth", "goal", "previous_action"), ("battery",)]
)
@pytest.mark.parametrize("core", [LSTM, CoreConfig(kind="gru", hidden=4), CoreConfig()], ids=lambda core: core.kind)
@pytest.mark.parametrize("normalize", [False, True])
def test_it_is_the_plain_composition(names, core, normalize):
    torch.manual_seed(0)
    agent, policy = steered(names, core, normalize=normalize)
    steps = [observe(spec_of(*names), 3) for _ in range(4)]
    state = policy.initial_state(3)
    assert state.shape == (3, 2 * 2 * 8 + agent.core.state_size)
    for obs, (params, value) in zip(steps, naively(agent, policy, steps), strict=True):
        torch.testing.assert_close(policy.value(obs, state), value)
        own_params, own_value, state = policy.act(obs, state)
        torch.testing.assert_close(own_params, params)
        torch.testing.assert_close(own_value, value)


@pytest.mark.parametrize("planner", ["lstm", "gru"])
@pytest.mark.parametrize("layer_by_layer", [False, True])
def test_sequences_and_columns_equal_steps(planner, layer_by_layer):
    torch.manual_seed(1)
    _, policy = steered(planner=planner)
    core = policy.core
    core.layer_by_layer = layer_by_layer
    width = policy.trunk.out_features + 5
    starts, first = torch.rand(6, 4) < 0.3, torch.randn(4, core.state_size)
    columns = torch.randn(6, 4, width)
    torch.testing.assert_close(core.scan(columns, starts, first), scan_steps(core, columns, starts, first))
    packed = pack_sequence([torch.randn(length, width) for length in (5, 3, 3, 1)])
    by_step = sequence_steps(core, packed.data, packed.batch_sizes, first)
    torch.testing.assert_close(core.sequence(packed.data, packed.batch_sizes, first), by_step)


@pytest.mark.parametrize("form", ["columns", "packed"])
def test_the_gradient_passes_through_the_controller_to_the_planner(form):
    """It equals the gradient of the plain composition, and reaches no frozen weight."""
    torch.manual_seed(2)
    agent, policy = steered()
    agent.requires_grad_(False)
    steps = [observe(spec_of("depth", "previous_action"), 3) for _ in range(4)]
    actions = {"action": torch.randint(4, (12,))}
    trained = {name: values for name, values in policy.named_parameters() if values.requires_grad}

    def gradients(log_prob: Tensor) -> dict[str, Tensor]:
        policy.zero_grad()
        log_prob.mean().backward()
        assert all(values.grad is None for values in policy.parameters() if not values.requires_grad)
        return {name: values.grad for name, values in trained.items() if values.grad is not None}

    params = torch.cat([params for params, _ in naively(agent, policy, steps)])
    expected = gradients(agent.head.log_prob(params, actions))
    obs = {name: torch.cat([step[name] for step in steps]) for name in steps[0]}
    state = policy.initial_state(3)
    recall = Recall(state, episode_start=torch.zeros(4, 3, dtype=torch.bool))
    if form == "packed":
        recall = Recall(state, batch_sizes=torch.full((4,), 3))
    found = gradients(policy.evaluate(obs, actions, recall).log_prob)
    of_planner = {path for unit in parts_of(policy)["planner"].values() for path in unit.modules.values()}
    assert {name for name in trained if not name.startswith("critic.")} == set(found) == set(expected)
    assert all(name.startswith(tuple(of_planner)) and values.abs().max() > 0 for name, values in found.items())
    for name, values in found.items():
        torch.testing.assert_close(values, expected[name], rtol=1e-4, atol=1e-6)


# Updates.


def updated(device: str, *, sequences: str = "columns", graphs: bool = False) -> tuple[Tensor, list[dict[str, float]]]:
    """The weights of a planner after six updates through a frozen controller, and the reports."""
    torch.manual_seed(0)
    policy = ActorCritic(SPEC, STEERED).to(device)
    freeze(policy, parts_of(policy), ["encoder", "policy"])
    learner = PPOLearner(
        policy,
        Group(RankInfo(), torch.device(device), None),
        PPOConfig(epochs=2, minibatches=1, sequences=sequences),
        OptimizerConfig(learning_rate=1e-3),
        torch.Generator().manual_seed(0),
        ComputeConfig(cuda_graphs=graphs),
    )
    reports = []
    rollout = make_rollout(ActorCritic(SPEC, STEERED))
    move(rollout, torch.device(device))
    for update in range(6):
        refill(rollout, make_rollout(ActorCritic(SPEC, STEERED), seed=update))
        reports.append(learner.update(rollout, 0.0))
    return flat(policy).cpu(), reports


def test_columns_teach_what_packed_sequences_do():
    (columns, _), (packed, _) = (updated("cpu", sequences=sequences) for sequences in ("columns", "packed"))
    torch.testing.assert_close(columns, packed, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_updates_are_the_eager_ones():
    (eager, reports), (recorded, others) = (updated("cuda", graphs=graphs) for graphs in (False, True))
    torch.testing.assert_close(recorded, eager, rtol=1e-4, atol=1e-6)
    for one, other in zip(reports, others, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gradient_passes_through_a_frozen_lstm_of_cudnn():
    torch.manual_seed(0)
    start = flat(ActorCritic(SPEC, STEERED))
    columns, packed = (updated("cuda", sequences=sequences)[0] - start for sequences in ("columns", "packed"))
    assert torch.cosine_similarity(columns, packed, dim=0) > 0.99


# Whole runs.

WALKING = Config(
    env="pointnav:small?resolution=16&scenes=4",
    steps=256,
    rollout_steps=16,
    device="cpu",
    pool=PoolConfig(num_envs=4),
    policy=PolicyConfig(
        encoder="patches", encoder_size=8, hidden=(8,), activation="relu", core=CoreConfig(kind="lstm", hidden=8)
    ),
    ppo=PPOConfig(epochs=1, minibatches=2),
)


@pytest.fixture(scope="module")
def walking(tmp_path_factory) -> Path:
    """A finished run of `pointnav`."""
    folder = tmp_path_factory.mktemp("walking") / "run"
    train(WALKING, folder)
    return folder


@pytest.mark.parametrize("system", ["ddppo", "ver"])
def test_a_planner_trains_resumes_and_is_evaluated(walking, tmp_path, system):
    policy = dataclasses.replace(WALKING.policy, planner=PlannerConfig(kind="lstm", hidden=8))
    config = dataclasses.replace(WALKING, policy=policy, system=system, init_from=str(walking), freeze="encoder+policy")
    with Session(config, tmp_path / "run") as session:
        before = {name: values.clone() for name, values in session.learners[0].policy.state_dict().items()}
        session.run()
    train(dataclasses.replace(config, steps=512), tmp_path / "run", resume="latest")
    run = SavedRun.load(tmp_path / "run")
    theirs = CheckpointFolder(walking / "checkpoints").load().weights
    same = {name: name for name in ("head.", "trunk.images.")}
    pairs = same | {"core.controller.": "core.", "core.perceptron.": "trunk.vectors."}
    for own, other in pairs.items():
        for name in [name for name in run.weights if name.startswith(own)]:
            assert torch.equal(run.weights[name], theirs[other + name.removeprefix(own)]), name
    changed = {name for name, values in before.items() if not torch.equal(values, run.weights[name])}
    assert {name.rsplit(".", 1)[0] for name in changed} >= {"core.planner.rnn", "core.goal", "trunk.vectors.layers.0"}
    loaded = run.policy(run.spec(), torch.device("cpu"))
    assert loaded.initial_state(1).shape == (1, 2 * 2 * 8 + 2 * 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "policy.planner needs a policy to steer.*--init-from RUN"),
        ({"init_from": "there", "init": "encoder"}, "policy.planner needs a policy to steer.*--init encoder"),
        ({"init_from": "there", "freeze": "encoder+policy+planner"}, "leaves no policy to train"),
    ],
)
def test_a_planner_needs_a_policy(options, words):
    with pytest.raises(UsageError, match=words):
        Config(policy=PolicyConfig(planner=PlannerConfig(kind="lstm")), **options)


class Forgetful(nn.Module):
    """A core without memory."""

    def __init__(self, in_features: int, config: CoreConfig) -> None:
        super().__init__()
        self.out_features, self.state_size = in_features, 0

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return features, state


def test_a_planner_may_be_a_class_with_memory():
    """Its sequences go step by step."""
    torch.manual_seed(3)
    _, policy = steered(planner="tests.nets.own_parts:Core")
    obs = observe(spec_of("depth", "previous_action"), 6)
    state, params = policy.initial_state(3), []
    for rows in (slice(0, 3), slice(3, 6)):
        found, _, state = policy.act({name: values[rows] for name, values in obs.items()}, state)
        params.append(found)
    actions = {"action": torch.randint(4, (6,))}
    recall = Recall(policy.initial_state(3), episode_start=torch.zeros(2, 3, dtype=torch.bool))
    expected = policy.head.log_prob(torch.cat(params), actions)
    torch.testing.assert_close(policy.evaluate(obs, actions, recall).log_prob, expected)
    with pytest.raises(UsageError, match=r"policy.planner.kind .*Forgetful has no memory; allowed: lstm, gru"):
        steered(planner="tests.nets.test_planner:Forgetful")


def test_a_goal_that_the_policy_does_not_observe_is_refused(walking):
    policy = dataclasses.replace(WALKING.policy, planner=PlannerConfig(kind="lstm", hidden=8, goal="gaol"))
    with pytest.raises(UsageError, match=r"^policy.planner.goal 'gaol' is not observed in .*step_256; allowed: goal$"):
        InitialWeights.load(dataclasses.replace(WALKING, policy=policy, init_from=str(walking)))


def test_a_policy_without_a_goal_cannot_be_steered(tmp_path):
    policy = PolicyConfig(hidden=(8,), core=WALKING.policy.core)
    pool = PoolConfig(kind="serial", num_envs=4)
    pushing = dataclasses.replace(WALKING, env="gym:CartPole-v1", pool=pool, policy=policy)
    train(pushing, tmp_path / "pushing")
    policy = dataclasses.replace(pushing.policy, planner=PlannerConfig(kind="gru", hidden=8))
    config = dataclasses.replace(pushing, policy=policy, init_from=str(tmp_path / "pushing"))
    with pytest.raises(UsageError, match="planner.goal 'goal' is not observed in .*; allowed: a run that"):
        train(config, tmp_path / "run")
    with pytest.raises(UsageError, match="separate needs policy.planner.kind none"):
        PolicyConfig(critic="separate", planner=PlannerConfig(kind="lstm"))


class Follow(gymnasium.Env):
    """Turn to where the goal is, left or right. Nothing else matters. The best return is 8."""

    SIDES = ("goal", "light")
    reads = "goal"

    def __init__(self) -> None:
        sizes = {"goal": 3, "light": 1}
        self.observation_space = spaces.Dict(
            {name: spaces.Box(-2, 2, (sizes[name],), np.float32) for name in self.SIDES}
        )
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._time = 0
        return self._observe(), {}

    def step(self, action: Any):
        reward = float((self._shown[self.reads][-1] > 0) == (action == 1))
        self._time += 1
        return self._observe(), reward, False, self._time == 8, {}

    def _observe(self) -> dict[str, np.ndarray]:
        spaces_of = self.observation_space.spaces
        self._shown = {
            name: self.np_random.uniform(-1, 1, space.shape).astype(np.float32) for name, space in spaces_of.items()
        }
        return self._shown


class Signal(Follow):
    """Turn as the light says. There is no goal."""

    SIDES = ("light",)
    reads = "light"


def test_steering_is_learned(tmp_path, learning_seed):
    """A planner learns a new task through a controller that stays as it is. No false alarm in 20 seeds."""
    config = Config(
        env="tests.nets.test_planner:Follow",
        steps=60_000,
        rollout_steps=32,
        seed=learning_seed,
        device="cpu",
        threads=1,
        pool=PoolConfig(kind="serial", num_envs=16),
        policy=PolicyConfig(hidden=(16,), core=CoreConfig(kind="lstm", hidden=16)),
        ppo=PPOConfig(epochs=4, minibatches=4, discount=0.5),
        optimizer=OptimizerConfig(learning_rate=3e-3),
    )
    assert train_until(config, 7.5, tmp_path / "follow") >= 7.5
    policy = dataclasses.replace(config.policy, planner=PlannerConfig(kind="lstm", hidden=16, layers=1))
    config = dataclasses.replace(
        config,
        env="tests.nets.test_planner:Signal",
        policy=policy,
        init_from=str(tmp_path / "follow"),
        freeze="encoder+policy",
    )
    assert train_until(config, 7.0, tmp_path / "signal") >= 7.0, "an agent that learns nothing has 4"
