"""A turn that is recorded, or whose actions are sent first, leaves what the same turn does step by step: in the
rollout, in the actor, and with the pool."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.accel.config import ComputeConfig
from paceline.accel.cuda_graph import CudaGraph
from paceline.accel.recorded_acting import RecordedActing
from paceline.accel.send_first import SendFirst
from paceline.collect import sampler as sampling
from paceline.collect.acting import Acting, OpponentActing, PlainActing, make_acting
from paceline.collect.actor import Actor
from paceline.experience.chunks import Chunks
from paceline.experience.layouts import LockStep, Variable
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.batches import rows_of
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec, StepBatch
from paceline.schedule.config import VERConfig
from paceline.session import train
from tests.integration.test_training import tiny

ACTIONS = spaces.Dict({"aim": spaces.Discrete(5), "push": spaces.Box(-0.5, 0.5, (2,), np.float32)})
OBS = spaces.Dict({"numbers": spaces.Box(-1, 1, (4,), np.float32), "action_mask": spaces.MultiBinary(5)})
STEPS = 4
OUTCOME = ("reward", "terminated", "truncated", "active", "lost")


class Replay:
    """As a recording runs where there is no GPU: again and again, in the same memory."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.run = function


def send_first(actor: Actor, rollout: RolloutBuffer) -> SendFirst:
    """PyTorch computes batches of fewer than four rows, NumPy the others."""
    assert actor.inference.perceptron is not None
    actor.inference.perceptron._least = 4
    return SendFirst([actor], rollout)


class Side:
    """One of the two ways, with a rollout, an actor and weights of its own."""

    def __init__(self, policy: ActorCritic, spec: PoolSpec, book: Any, device: str, way: Any = PlainActing) -> None:
        self.policy = copy.deepcopy(policy).to(device)
        # Of as many rows as there are; random numbers would be other ones.
        self.policy.head.sample = lambda params, generator=None: self.policy.head.mode(params)
        self.actor = Actor(self.policy, spec, torch.device(device), ComputeConfig(cuda_graphs=False))
        self.rollout = RolloutBuffer(book, torch.device(device), spare=True)
        self.acting = way(self.actor, self.rollout)

    def columns(self) -> dict[str, torch.Tensor]:
        rows = slice(0, self.rollout.layout.capacity)
        table = {name: column[rows].cpu() for name, column in self.rollout._columns().items() if len(column)}
        cuts = self.rollout.take_truncations()
        if cuts is not None:
            table |= {"cut rows": cuts.rows.cpu(), "cut state": cuts.state.cpu(), "cut obs": cuts.obs["numbers"].cpu()}
        return table | {"states": self.actor.state.cpu(), "starts": self.actor.episode_start.cpu()}


def random_batch(rng: np.random.Generator, slots: np.ndarray, num_slots: int, space: spaces.Dict) -> StepBatch:
    def obs(count: int) -> dict[str, np.ndarray]:
        mask = rng.random((count, 5)) < 0.6
        found = {"numbers": rng.normal(size=(count, 4)).astype(np.float32), "action_mask": mask.astype(np.int8)}
        return {name: found[name] for name in space}

    count = len(slots)
    ends = rng.integers(0, 6, count)
    return StepBatch(
        slots=slots,
        obs=obs(count),
        reward=rng.normal(size=count).astype(np.float32),
        terminated=ends == 0,
        truncated=ends == 1,
        final_obs=obs(num_slots),
        active=rng.random(count) < 0.8,
        lost=ends == 2,
        step_seconds=np.zeros(count, np.float32),
    )


def play(
    seed: int, num_slots: int, core: str, variable: bool, device: str, way: Any, num_turns: int = 14, obs: Any = OBS
) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    spec = PoolSpec(observation_space=obs, action_space=ACTIONS, num_envs=num_slots)
    policy = ActorCritic(spec, PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=6)))
    books = [
        Variable(STEPS, num_slots) if variable else Chunks(STEPS, num_slots, num_slots, num_turns) for _ in range(2)
    ]
    sides = [Side(policy, spec, books[0], device), Side(policy, spec, books[1], device, way)]
    held = [random_batch(rng, np.arange(num_slots), num_slots, obs)]
    for turn in range(num_turns):
        for batch in (held[index] for index in rng.permutation(len(held))):
            for side in sides:
                side.acting.start(batch)
            plain, recorded = ([a.copy() for _, a in sorted(side.acting.actions().items())] for side in sides)
            for values in (*batch.obs.values(), *(getattr(batch, name) for name in OUTCOME)):
                values[:] = 0  # sent: it is the simulators' memory again
            for side in sides:
                side.acting.write_decisions()
            for ours, theirs in zip(recorded, plain, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        in_flight = rng.permutation(np.flatnonzero(books[0]._pending >= 0))
        some = in_flight[: rng.integers(1, len(in_flight) + 1)]
        parts = np.split(
            some, [rng.integers(0, len(some) + 1)]
        )  # of two batches, none is decided on before both are there
        held = [random_batch(rng, np.sort(part), num_slots, obs) for part in parts if len(part)]
        for batch in held:
            for side in sides:
                side.acting.write_outcomes(batch)
        for side in sides:
            side.policy.version += 1
            for weights in side.policy.parameters():
                weights.data *= 1.01
        is_full = variable and books[0].is_full
        if rng.random() < 0.5 and not is_full:
            continue
        for side in sides:
            side.acting.flush()
        plain, recorded = (side.columns() for side in sides)
        assert plain.keys() == recorded.keys()
        for name, values in plain.items():
            torch.testing.assert_close(
                recorded[name], values, rtol=1e-4, atol=1e-5, equal_nan=True, msg=f"{turn} {name}"
            )
        if is_full:
            for side in sides:
                side.rollout.start_rollout()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_slots=st.integers(1, 6),
    core=st.sampled_from(["none", "gru", "lstm"]),
    variable=st.booleans(),
)
def test_a_recorded_turn_is_the_same_turn(seed, num_slots, core, variable):
    """Over random batches, ends, lost simulators, absent agents, cuts and new weights."""
    play(seed, num_slots, core, variable, "cpu", lambda actor, rollout: RecordedActing([actor], rollout, record=Replay))


Together = Callable[[list[Actor], RolloutBuffer, list[int], bool], Acting]


def recorded_by(record: Any) -> Together:
    return lambda actors, rollout, team, learned: RecordedActing(actors, rollout, team, record, learned=learned)


class TeamSide:
    """Several policies. The first `learned` of them learn. They act one after the other, each for its own slots, or in
    two teams: those that learn, and the others. `together` makes what acts for a team."""

    def __init__(
        self,
        policies: list[ActorCritic],
        learned: int,
        spec: PoolSpec,
        book: Any,
        device: str,
        assigned: np.ndarray,
        together: Together | None,
    ) -> None:
        self.policies = [copy.deepcopy(policy).to(device) for policy in policies]
        for policy in self.policies:
            policy.head.sample = lambda params, generator=None: self.policies[0].head.mode(params)
        compute = ComputeConfig(cuda_graphs=False)
        self.actors = [Actor(policy, spec, torch.device(device), compute) for policy in self.policies]
        self.assigned = book.policies = assigned.copy()
        self.rollout = RolloutBuffer(book, torch.device(device), spare=True)
        self.learned = learned
        self.rows: list[torch.Tensor] = []
        """Of the policies that learn, of all batches, in order. The two sides use chunks in different order."""
        numbers = list(range(len(policies)))
        teams = [numbers[:learned], numbers[learned:]] if together else [[number] for number in numbers]
        self.acting = [(team, self._acting(team, together)) for team in teams if team]

    def _acting(self, team: list[int], together: Together | None) -> Acting:
        actors, learned = [self.actors[number] for number in team], team[0] < self.learned
        if together is not None:
            return together(actors, self.rollout, team, learned)
        return (PlainActing if learned else OpponentActing)(actors[0], self.rollout)

    def _parts(self, batch: StepBatch) -> list[tuple[Any, np.ndarray]]:
        own = [(acting, np.flatnonzero(np.isin(self.assigned[batch.slots], team))) for team, acting in self.acting]
        return [(acting, rows) for acting, rows in own if len(rows)]

    def act(self, batch: StepBatch) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for acting, rows in self._parts(batch):
            acting.start(rows_of(batch, rows))
            for name, values in acting.actions().items():
                found.setdefault(name, np.zeros((len(batch), *values.shape[1:]), values.dtype))[rows] = values
            acting.write_decisions()
        learned = batch.slots[self.assigned[batch.slots] < self.learned]
        self.rows.append(torch.from_numpy(self.rollout.layout._pending[learned]))
        return found

    def observe(self, batch: StepBatch, assigned: np.ndarray) -> None:
        for acting, rows in self._parts(batch):
            acting.write_outcomes(rows_of(batch, rows))
        changed = np.flatnonzero(self.assigned != assigned)
        if len(changed):
            for _, acting in self.acting:
                acting.flush()
            self.rollout.layout.end_streams(changed)
            self.assigned[:] = assigned
            for number, actor in enumerate(self.actors):
                actor.start_anew(changed[assigned[changed] == number])

    def table(self) -> dict[str, torch.Tensor]:
        for _, acting in self.acting:
            acting.flush()
        rows = torch.cat(self.rows)
        table = self._final_observations(rows)
        if len(rows):
            table |= {name: column.cpu()[rows] for name, column in self.rollout._columns().items() if len(column)}
        assigned = torch.from_numpy(self.assigned)
        for name in ("state", "episode_start"):
            slots = torch.stack([getattr(actor, name).cpu() for actor in self.actors])
            table["slots " + name] = slots[assigned, torch.arange(len(assigned))]
        return table

    def _final_observations(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Those of truncated episodes, in the order of `rows`. All must belong to one of these."""
        cuts = self.rollout.take_truncations()
        if cuts is None:
            return {}
        self.rollout._truncations = [replace(cuts, rows=cuts.rows.cpu())]
        where = {row: index for index, row in enumerate(rows.tolist())}
        at = torch.tensor([where[row] for row in cuts.rows.tolist()])
        order = at.argsort()
        final = {"cut rows": at, "cut state": cuts.state.cpu(), "cut numbers": cuts.obs["numbers"].cpu()}
        return {name: values[order] for name, values in final.items()}


def play_as_a_team(
    seed: int,
    num_slots: int,
    num_policies: int,
    learned: int,
    core: str,
    device: str,
    together: Together,
    obs: spaces.Dict = OBS,
) -> None:
    """Policies that act together against each policy by itself. Policies change where episodes end."""
    rng, num_turns = np.random.default_rng(seed), 14
    torch.manual_seed(seed)
    spec = PoolSpec(observation_space=obs, action_space=ACTIONS, num_envs=num_slots)
    config = PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=6))
    policies = [ActorCritic(spec, config) for _ in range(num_policies)]
    for number, policy in enumerate(policies):
        policy.version += number
    assigned = rng.integers(0, num_policies, num_slots)
    books = [Chunks(STEPS, num_slots, num_slots, num_turns, range(num_policies), changing=True) for _ in range(2)]
    sides = [
        TeamSide(policies, learned, spec, book, device, assigned, how)
        for book, how in zip(books, (None, together), strict=True)
    ]
    held = random_batch(rng, np.arange(num_slots), num_slots, obs)
    for turn in range(num_turns):
        plain, joined = (side.act(held) for side in sides)
        assert plain.keys() == joined.keys()
        for name, values in plain.items():
            np.testing.assert_allclose(joined[name], values, rtol=1e-4, atol=1e-5)
        in_flight = rng.permutation(np.flatnonzero(books[0]._pending >= 0))
        held = random_batch(rng, np.sort(in_flight[: rng.integers(1, len(in_flight) + 1)]), num_slots, obs)
        ended = held.slots[held.terminated | held.truncated | held.lost]
        assigned[ended] = rng.integers(0, num_policies, len(ended))
        for side in sides:
            side.observe(held, assigned)
        if rng.random() < 0.5:
            plain, joined = (side.table() for side in sides)
            assert plain.keys() == joined.keys()
            for name, values in plain.items():
                torch.testing.assert_close(
                    joined[name], values, rtol=1e-4, atol=1e-5, equal_nan=True, msg=f"{turn} {name}"
                )


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_slots=st.integers(1, 9),
    learned=st.integers(1, 3),
    others=st.integers(0, 3),
    core=st.sampled_from(["none", "lstm"]),
)
def test_a_recorded_turn_of_several_policies_is_the_turn_of_each(seed, num_slots, learned, others, core):
    """Nothing is kept of those that do not learn."""
    play_as_a_team(seed, num_slots, learned + others, learned, core, "cpu", recorded_by(Replay))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_recorded_turn_of_several_policies_on_a_gpu(core):
    for seed in range(4):
        play_as_a_team(seed, 9, 4, 3, core, "cuda", recorded_by(CudaGraph))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), num_slots=st.integers(1, 6), variable=st.booleans())
def test_a_turn_whose_actions_are_sent_first_is_the_same_turn(seed, num_slots, variable):
    """Though its memory is the simulators' again before anything is written down."""
    play(seed, num_slots, "none", variable, "cpu", send_first, obs=spaces.Dict({"numbers": OBS["numbers"]}))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), num_slots=st.integers(1, 9), num_policies=st.integers(1, 4))
def test_a_turn_of_several_perceptrons_is_the_turn_of_each(seed, num_slots, num_policies):
    """Also where some have no slot, and where PyTorch computes the rows of one and NumPy those of another."""

    def together(actors: list[Actor], rollout: RolloutBuffer, team: list[int], learned: bool) -> Acting:
        assert learned and all(actor.inference.perceptron is not None for actor in actors)
        return SendFirst(actors, rollout, team)

    numbers = spaces.Dict({"numbers": OBS["numbers"]})
    play_as_a_team(seed, num_slots, num_policies, num_policies, "none", "cpu", together, obs=numbers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize("variable", [True, False], ids=["ver", "appo"])
def test_a_recorded_turn_on_a_gpu(monkeypatch, core, variable):
    """Recordings of every size are replayed on a slow device: arrays that it still reads may not be overwritten."""
    flush = RecordedActing.flush

    def late(self):
        torch.cuda._sleep(1_000_000)  # half a millisecond
        flush(self)

    monkeypatch.setattr(RecordedActing, "flush", late)
    for seed in range(2):
        play(
            seed,
            6,
            core,
            variable,
            "cuda",
            lambda actor, rollout: RecordedActing([actor], rollout, record=CudaGraph),
            num_turns=60,
        )


@pytest.mark.parametrize("variable", [True, False], ids=["ver", "nover"])
def test_a_run_with_recorded_turns_is_the_same_run(tmp_path, monkeypatch, variable):
    """Through collecting, learning, rows that are carried over and checkpoints."""
    config = tiny("lstm", system="ver", ver=VERConfig(variable=variable), pool=PoolConfig(num_envs=4, kind="serial"))
    plain = train(config, tmp_path / "plain")
    used = []

    def recorded(actors, rollout, *, learned, **_):
        if not learned:
            return {}
        used.append(RecordedActing([actors[0]], rollout, record=Replay))
        return {(0,): used[-1]}

    monkeypatch.setattr(sampling, "make_acting", recorded)
    run = train(config, tmp_path / "recorded")
    assert used and run.step == plain.step
    for ours, theirs in zip(run.policy.parameters(), plain.policy.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("system", ["ddppo", "ver"])
def test_a_run_that_sends_first_is_the_same_run(tmp_path, monkeypatch, system):
    """To the bit, through collecting, learning and checkpoints."""
    config = tiny("none", system=system, pool=PoolConfig(num_envs=4, kind="serial"))
    used = []

    def noted(self, actors, rollout, numbers):
        used.append(actors)
        begin(self, actors, rollout, numbers)

    begin = SendFirst.__init__
    monkeypatch.setattr(SendFirst, "__init__", noted)
    first = train(config, tmp_path / "first")
    assert used
    monkeypatch.setattr(
        sampling,
        "make_acting",
        lambda actors, rollout, **_: {(number,): PlainActing(actor, rollout) for number, actor in actors.items()},
    )
    plain = train(config, tmp_path / "plain")
    assert first.step == plain.step
    for ours, theirs in zip(first.policy.parameters(), plain.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def acting_of(actor: Actor, rollout: RolloutBuffer, *, recorded: bool = False, on_device: bool = False) -> Acting:
    ((numbers, acting),) = make_acting(
        {0: actor}, rollout, learned=True, recorded=recorded, on_device=on_device
    ).items()
    assert numbers == (0,)
    return acting


def test_turns_are_recorded_where_they_can_be(monkeypatch):
    spec = PoolSpec(observation_space=OBS, action_space=ACTIONS, num_envs=2)
    actor = Actor(ActorCritic(spec, PolicyConfig(hidden=(8,))), spec, torch.device("cpu"))
    rollout = RolloutBuffer(Chunks(STEPS, 2, 2, 1), torch.device("cpu"), spare=True)
    assert isinstance(acting_of(actor, rollout, recorded=True), PlainActing), "there is no GPU"
    monkeypatch.setattr(type(actor.inference), "is_recorded", True)
    assert isinstance(acting_of(actor, rollout, recorded=True), RecordedActing)
    assert isinstance(acting_of(actor, rollout), PlainActing)
    assert isinstance(acting_of(actor, rollout, recorded=True, on_device=True), PlainActing)
    no_spare = RolloutBuffer(LockStep(STEPS, 2), torch.device("cpu"))
    assert isinstance(acting_of(actor, no_spare, recorded=True), PlainActing)


def test_small_perceptrons_send_first():
    spec = PoolSpec(observation_space=OBS["numbers"], action_space=ACTIONS, num_envs=2)
    actors = [Actor(ActorCritic(spec, PolicyConfig(hidden=(8,))), spec, torch.device("cpu")) for _ in range(3)]
    rollout = RolloutBuffer(LockStep(STEPS, 2), torch.device("cpu"))
    assert isinstance(acting_of(actors[0], rollout), SendFirst)
    spare = RolloutBuffer(Chunks(STEPS, 2, 2, 1), torch.device("cpu"), spare=True)
    assert isinstance(acting_of(actors[0], spare, recorded=True), SendFirst), "there is no GPU that could record"
    rollout.layout.policies = np.zeros(2, np.int64)
    learning = make_acting(dict(enumerate(actors)), rollout, learned=True, recorded=True, on_device=False)
    assert [(numbers, type(acting)) for numbers, acting in learning.items()] == [((0, 1, 2), SendFirst)]
    opponents = make_acting({1: actors[1], 2: actors[2]}, rollout, learned=False, recorded=False, on_device=False)
    assert [(numbers, type(acting)) for numbers, acting in opponents.items()] == [
        ((1,), OpponentActing),
        ((2,), OpponentActing),
    ]
