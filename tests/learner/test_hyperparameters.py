"""A changed hyper-parameter: the next update is that of a learner made with the new value."""

from __future__ import annotations

import copy
import dataclasses
import io
import shutil

import pytest
import torch

from paceline.accel.config import ComputeConfig
from paceline.accel.cuda_graph import WARM_UP_RUNS, CudaGraph
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.reduce import clip_
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.replay import Drawn
from paceline.learner.config import D4PGConfig, OptimizerConfig, PPOConfig
from paceline.learner.d4pg import D4PGLearner
from paceline.learner.hyperparameters import (
    OF_D4PG,
    OF_PPO,
    Hyperparameters,
    Scalars,
    digest_sums,
    ppo_hyperparameters,
    require_same,
)
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import ControlConfig, PolicyConfig, ValueConfig
from paceline.nets.deterministic import DeterministicPolicy, make_networks
from paceline.ops.vtrace import vtrace
from paceline.pool.protocol import StepBatch
from tests.experience.rollouts import move, refill
from tests.learner import test_d4pg
from tests.learner.test_d4pg import transitions
from tests.learner.test_ppo import SPEC, alone, flat, make, make_rollout

CPU = torch.device("cpu")
CUDA = pytest.param(
    torch.device("cuda"),
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")],
    id="recorded",
)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")

NEW = {
    "optimizer.learning_rate": 3e-3,
    "optimizer.max_grad_norm": 0.07,
    "optimizer.beta1": 0.6,
    "optimizer.beta2": 0.9,
    "ppo.clip": 0.013,
    "ppo.value_coef": 1.3,
    "ppo.entropy_coef": 0.31,
    "ppo.term_coef": 0.7,
    "ppo.discount": 0.7,
    "ppo.trace_decay": 0.4,
    "ppo.max_rho": 0.8,
    "ppo.max_c": 0.6,
}
VTRACE = {"targets": "vtrace", "trace": "minibatch"}
TERM = {"term": "tests.learner.own_losses:small_values"}
NEEDS = {"ppo.discount": VTRACE, "ppo.trace_decay": VTRACE, "ppo.max_rho": VTRACE, "ppo.max_c": VTRACE}
NEEDS["ppo.term_coef"] = TERM
"""The settings of updates that read a value themselves. With GAE, `targets` reads it before the update."""


def configs(changes: dict[str, float], **ppo) -> tuple[PPOConfig, OptimizerConfig]:
    sections = {"ppo": PPOConfig(epochs=2, minibatches=2, **ppo), "optimizer": OptimizerConfig(schedule="linear")}
    for name, value in changes.items():
        section, field = name.split(".")
        sections[section] = dataclasses.replace(sections[section], **{field: value})
    return sections["ppo"], sections["optimizer"]


def learner_of(
    changes: dict[str, float], device: torch.device, compute: ComputeConfig | None = None, **ppo
) -> tuple[ActorCritic, PPOLearner]:
    torch.manual_seed(0)
    policy = ActorCritic(SPEC, PolicyConfig(hidden=(8,))).to(device)
    generator = torch.Generator().manual_seed(0)
    return policy, PPOLearner(policy, Group(RankInfo(), device, None), *configs(changes, **ppo), generator, compute)


def batches(device: torch.device):
    """One batch whose memory stays, with other contents at every step; rows are off-policy."""
    source = ActorCritic(SPEC, PolicyConfig(hidden=(8,)))
    batch = make_rollout(source)
    move(batch, device)
    for seed in range(100):
        other = make_rollout(source, seed=seed)
        other.log_prob += 0.3 * torch.randn(24, generator=torch.Generator().manual_seed(seed))
        refill(batch, other)
        yield batch


def assert_next_update_is_that_of_a_new_learner(
    policy: ActorCritic, learner: PPOLearner, batch, device: torch.device, changes: dict[str, float], **ppo
) -> None:
    """The new learner is an eager one, with the same weights, moments and mini-batches."""
    other_policy, other = learner_of(changes, device, ComputeConfig(cuda_graphs=False), **ppo)
    other_policy.load_state_dict(policy.state_dict())
    state = copy.deepcopy(learner.state_dict())
    del state["hyperparameters"]
    other.load_state_dict(state)
    other._minibatches._generator.set_state(learner._minibatches._generator.get_state())
    before = flat(policy)
    reports = learner.update(batch, 0.25), other.update(batch, 0.25)
    assert learner.learning_rate(0.25) == other.learning_rate(0.25)
    torch.testing.assert_close(flat(policy), flat(other_policy), rtol=1e-4, atol=1e-6)
    assert reports[0] == pytest.approx(reports[1], rel=1e-3, abs=1e-5)
    assert not torch.equal(flat(policy), before)
    if device == CPU and learner._loss.__class__ is other._loss.__class__:
        assert torch.equal(flat(policy), flat(other_policy)), "to the bit"


@pytest.mark.parametrize("device", [pytest.param(CPU, id="eager"), CUDA])
@pytest.mark.parametrize("name", NEW)
def test_the_next_update_obeys_a_new_value(name, device):
    assert set(NEW) == set(OF_PPO)
    ppo = NEEDS.get(name, {})
    policy, learner = learner_of({}, device, **ppo)
    source = batches(device)
    for _ in range(2 + WARM_UP_RUNS):  # the last ones are replays
        learner.update(next(source), 0.0)
    assert (len(learner._graphs) > 0) == (device != CPU)
    learner.hyperparameters.set(name, NEW[name])
    for _ in range(1 + WARM_UP_RUNS):
        assert_next_update_is_that_of_a_new_learner(policy, learner, next(source), device, {name: NEW[name]}, **ppo)


@pytest.mark.parametrize("name", [name for name in NEW if not name.startswith("optimizer.")])
def test_a_new_value_makes_a_difference(name):
    """Otherwise the tests above would show nothing."""
    results = []
    for value in (None, NEW[name]):
        policy, learner = learner_of({}, CPU, **NEEDS.get(name, {}))
        if value is not None:
            learner.hyperparameters.set(name, value)
        learner.update(next(batches(CPU)), 0.0)
        results.append(flat(policy))
    assert not torch.equal(*results)


@needs_compiler
def test_a_compiled_update_obeys_new_values_without_being_compiled_again():
    """And nothing of the loss is left to Python. It takes some 30 s, most of them the compiler's."""
    torch._dynamo.utils.counters.clear()
    policy, learner = learner_of({}, CPU, ComputeConfig(compile=True), **TERM)
    source, changes = batches(CPU), {}
    learner.update(next(source), 0.0)
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for name, value in NEW.items():
        learner.hyperparameters.set(name, value)
        changes[name] = value
        assert_next_update_is_that_of_a_new_learner(policy, learner, next(source), CPU, changes, **TERM)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled == 1
    assert not torch._dynamo.utils.counters["graph_break"]


class Zeros:
    """Values of nothing."""

    def last_values(self, batch: StepBatch) -> torch.Tensor:
        return torch.zeros(SPEC.num_slots)

    def cut_values(self, cuts: object) -> torch.Tensor:
        raise AssertionError("no episode is truncated")


@pytest.mark.parametrize("name", ["ppo.discount", "ppo.trace_decay"])
def test_targets_obey_a_new_value(name):
    results = []
    for changes in ({}, {name: NEW[name]}):
        torch.manual_seed(0)
        policy = ActorCritic(SPEC, PolicyConfig(hidden=(8,)))
        ppo, optimizer = configs(changes, normalize_returns=True)
        learner = PPOLearner(policy, Group(RankInfo(), CPU, None), ppo, optimizer, num_slots=SPEC.num_slots)
        learner.hyperparameters.set(name, NEW[name])
        batch = make_rollout(policy)
        learner.targets.complete(batch, None, Zeros())  # type: ignore[arg-type]
        results.append((batch.advantage, batch.returns, learner.targets.state_dict()["running"]))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def d4pg_learner(device: torch.device, **options) -> tuple[DeterministicPolicy, D4PGLearner]:
    torch.manual_seed(0)
    config = ControlConfig(actor_hidden=(8,), critic_hidden=(8,), value=ValueConfig(low=-5.0, high=5.0))
    policy, critic = make_networks(test_d4pg.SPEC, config, PolicyConfig())
    for network in (policy, critic):
        network.to(device)
    options = {"max_grad_norm": 0.5, "target_period": 1} | options
    group = Group(RankInfo(), device, None)
    return policy, D4PGLearner(policy, critic, group, D4PGConfig(**options))


NEW_D4PG = {"actor_rate": 3e-3, "critic_rate": 2e-3, "max_grad_norm": 0.01, "target_share": 0.3}


def assert_next_step_is_that_of_a_new_learner(policy, learner, step, drawn: Drawn, device, **changes) -> None:
    other_policy, other = d4pg_learner(device, **changes)
    other_policy.load_state_dict(policy.state_dict())
    state = copy.deepcopy(learner.state_dict())
    del state["hyperparameters"]
    other.load_state_dict(state)
    before = copy.deepcopy(learner.state_dict()["target_critic"])
    step()
    other.update(drawn)
    torch.testing.assert_close(policy.state_dict(), other_policy.state_dict(), rtol=1e-4, atol=1e-6)
    mine, theirs = learner.state_dict(), other.state_dict()
    for part in ("critic", "target_critic", "target_policy"):
        torch.testing.assert_close(mine[part], theirs[part], rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(value, before[name]) for name, value in mine["target_critic"].items())


@pytest.mark.parametrize("device", [pytest.param(CPU, id="eager"), CUDA])
def test_the_next_update_of_d4pg_obeys_new_values(device):
    """One after the other, without recording again. `test_d4pg` has a compiled update that does what this eager one
    does."""
    policy, learner = d4pg_learner(device)
    torch.manual_seed(1)
    drawn = transitions(16)
    drawn = dataclasses.replace(drawn, rows={name: rows.to(device) for name, rows in drawn.rows.items()})
    drawn = dataclasses.replace(drawn, weight=drawn.weight.to(device))
    graph = CudaGraph(lambda: learner.step(drawn)) if device != CPU else None

    def step() -> None:
        if graph is None:
            learner.update(drawn)
            return
        learner.apply_hyperparameters()
        graph.run()
        learner.count()

    for _ in range(1 + WARM_UP_RUNS):
        step()
    changes = {}
    for name, value in NEW_D4PG.items():
        learner.hyperparameters.set(f"d4pg.{name}", value)
        changes[name] = value
        assert_next_step_is_that_of_a_new_learner(policy, learner, step, drawn, device, **changes)
    assert learner.learning_rate(0.5) == NEW_D4PG["actor_rate"]


def test_scalars_give_the_bits_of_python_numbers():
    ppo, optimizer = configs(
        {"ppo.clip": 0.13, "ppo.trace_decay": 0.9, "optimizer.max_grad_norm": 0.7}, clip_inverse=True
    )
    scalars = Scalars.on(CPU)
    scalars.write(ppo, optimizer)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(10_000, generator=generator) + 0.5
    low, high = ppo.ratio_bounds
    assert torch.equal(x.clamp(low, high), x.clamp(scalars.ratio_low, scalars.ratio_high))
    assert torch.equal(ppo.entropy_coef * x, scalars.entropy_coef * x)
    for scale in (1.0, 17.3, 1e-3):
        clipped = [x * scale, x * scale]
        clip_(clipped[0], optimizer.max_grad_norm)
        clip_(clipped[1], scalars.max_grad_norm)
        assert torch.equal(*clipped)
    columns = [torch.randn(20, 50, generator=generator) for _ in range(4)]
    continues = torch.rand(20, 50, generator=generator) > 0.1
    names = ("discount", "trace_decay", "max_rho", "max_c")
    numbers, tensors = ({name: getattr(of, name) for name in names} for of in (ppo, scalars))
    for number, tensor in zip(
        vtrace(*columns, continues, **numbers), vtrace(*columns, continues, **tensors), strict=True
    ):
        assert torch.equal(number, tensor)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ppo.epochs", 3, "ppo.epochs cannot change during this run; allowed: optimizer.learning_rate, "),
        ("clip", 0.1, "clip cannot change during this run"),
        ("ppo.clip", 0.0, "ppo.clip must be above 0"),
        ("ppo.clip", None, "ppo.clip must be a number, got None"),
        ("ppo.entropy_coef", float("nan"), "ppo.entropy_coef must be a number, got nan"),
        ("ppo.discount", 1.1, "ppo.discount must be between 0 and 1"),
        ("ppo.max_rho", -1.0, "ppo.max_rho must be above 0"),
        ("optimizer.learning_rate", 0.0, "optimizer.learning_rate must be above 0"),
        ("optimizer.beta2", 1.0, "optimizer.beta2 must be at least 0 and below 1"),
    ],
)
def test_bad_values_are_refused(name, value, message):
    _, learner = make()
    before = learner.hyperparameters.as_dict()
    with pytest.raises(UsageError, match=message):
        learner.hyperparameters.set(name, value)
    assert learner.hyperparameters.as_dict() == before


def test_bad_values_of_d4pg_are_refused():
    _, learner = d4pg_learner(CPU)
    for name, value in (("actor_rate", 0.0), ("max_grad_norm", 0.0), ("noise", -1.0), ("target_share", 2.0)):
        with pytest.raises(UsageError, match=f"d4pg.{name} must be"):
            learner.hyperparameters.set(f"d4pg.{name}", value)
    assert set(learner.hyperparameters.as_dict()) == set(OF_D4PG)


def test_what_is_none_or_learned_cannot_change():
    """It decides which computation is recorded or compiled."""
    _, learner = make(clip=None, entropy_target=0.5)
    for name in ("ppo.clip", "ppo.entropy_coef"):
        assert name not in learner.hyperparameters.as_dict()
        with pytest.raises(UsageError, match=f"{name} cannot change during this run"):
            learner.hyperparameters.set(name, 0.1)
        with pytest.raises(UsageError, match=f"{name} cannot change during this run"):
            learner.hyperparameters.get(name)


def test_the_schedule_multiplies_the_current_learning_rate():
    policy, config = make()[0], OptimizerConfig(learning_rate=1e-3, schedule="linear")
    learner = PPOLearner(policy, alone(), PPOConfig(), config)
    learner.hyperparameters.set("optimizer.learning_rate", 1e-2)
    assert learner.hyperparameters.get("optimizer.learning_rate") == 1e-2
    assert learner.learning_rate(0.25) == pytest.approx(7.5e-3)


def saved_and_loaded(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_changed_values_are_in_a_checkpoint():
    _, learner = make(**TERM)
    for name, value in NEW.items():
        learner.hyperparameters.set(name, value)
    _, other = make(**TERM)
    other.load_state_dict(saved_and_loaded(learner.state_dict()))
    assert other.hyperparameters.as_dict() == NEW
    other.update(make_rollout(other.policy), 0.0)
    assert other.optimizer.param_groups[0]["betas"] == (0.6, 0.9)


def test_a_configuration_that_has_changed_since_a_checkpoint_holds():
    """A resumed run obeys the user's new setting. What the user did not touch is what it was."""
    saved = Hyperparameters(OF_PPO, ppo=PPOConfig(), optimizer=OptimizerConfig())
    saved.set("ppo.clip", 0.05)
    saved.set("ppo.value_coef", 2.0)
    resumed = Hyperparameters(OF_PPO, ppo=PPOConfig(clip=0.3), optimizer=OptimizerConfig(beta1=0.8))
    resumed.load_state_dict(saved_and_loaded(saved.state_dict()))
    assert (resumed.get("ppo.clip"), resumed.get("ppo.value_coef"), resumed.get("optimizer.beta1")) == (0.3, 2.0, 0.8)


@pytest.mark.parametrize("system", ["ppo", "d4pg"])
def test_a_checkpoint_without_hyperparameters_leaves_the_configured_ones(system):
    learner = make()[1] if system == "ppo" else d4pg_learner(CPU)[1]
    configured = learner.hyperparameters.as_dict()
    state = copy.deepcopy(learner.state_dict())
    del state["hyperparameters"]
    learner.load_state_dict(state)
    assert learner.hyperparameters.as_dict() == configured


def test_digests_are_equal_if_and_only_if_the_values_are():
    ranks = [ppo_hyperparameters(PPOConfig(), OptimizerConfig()) for _ in range(3)]

    def sums():
        return [sum(column) for column in zip(*(digest_sums([rank]) for rank in ranks), strict=True)]

    require_same(*sums(), 3)
    for rank in ranks:
        rank.set("ppo.clip", 0.3)
    require_same(*sums(), 3)
    ranks[1].set("ppo.clip", 0.30000000000000004)
    with pytest.raises(UsageError, match="differ between ranks"):
        require_same(*sums(), 3)
