"""The replay of frames against the plain replay: the same draws to the bit, from a fraction of the memory."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.collect.explorer import as_rows
from paceline.errors import UsageError
from paceline.experience import archive as archive_module
from paceline.experience.archive import Archive
from paceline.experience.config import ReplayConfig
from paceline.experience.frame_replay import FrameReplay, frame_replay_bytes, num_frames
from paceline.experience.frames import FrameLayout
from paceline.experience.nstep import NStep
from paceline.experience.replay import Replay
from paceline.pool.protocol import PoolSpec

CPU = torch.device("cpu")
SIDE = 3


@dataclass(frozen=True)
class Case:
    """Streams of stacked images, and the replay that takes their transitions."""

    seed: int
    capacity: int
    stack: int
    steps: int
    num_slots: int
    prioritized: bool
    channels_last: bool
    end_chance: float

    @property
    def config(self) -> ReplayConfig:
        return ReplayConfig(capacity=self.capacity, prioritized=self.prioritized, stack=self.stack)

    @property
    def layout(self) -> FrameLayout:
        shape = (SIDE, SIDE + 1, 2 * self.stack) if self.channels_last else (2 * self.stack, SIDE, SIDE + 1)
        return FrameLayout("image", shape, np.dtype(np.uint8), self.channels_last, self.stack)

    def replay(self, frames: int | None = None) -> FrameReplay:
        enough = 2 * self.capacity + self.num_slots * (self.steps + self.stack) + 2 * self.stack
        return FrameReplay(self.config, CPU, [self.layout], enough if frames is None else frames)

    def transitions(self, count: int) -> Iterator[dict[str, np.ndarray]]:
        """What the slots insert in `count` steps. Episodes begin with copies of their first frame."""
        rng = np.random.default_rng(self.seed)
        nstep = NStep(self.steps, self.num_slots, 0.9)
        shape = (self.num_slots, 2, SIDE, SIDE + 1)

        def frames() -> np.ndarray:
            # Some frames are the same by chance, also in different streams.
            return np.where(rng.random((self.num_slots, 1, 1, 1)) < 0.3, 7, rng.integers(256, size=shape)).astype(
                np.uint8
            )

        stacks = np.tile(frames(), (1, self.stack, 1, 1))
        for _ in range(count):
            slots = np.flatnonzero(rng.random(self.num_slots) < 0.7)
            nstep.decide(slots, self.obs(stacks[slots]), rng.random((len(slots), 1)).astype(np.float32))
            newer = frames()
            after = np.concatenate([stacks[:, 2:], newer], 1)
            terminated, truncated, lost = (
                rng.random(len(slots)) < self.end_chance * share for share in (0.5, 0.5, 0.1)
            )
            reward = rng.random(len(slots))
            yield as_rows(nstep.complete(slots, reward, terminated, truncated, lost, self.obs(after[slots])))
            stacks[slots] = after[slots]
            begun = slots[terminated | truncated | lost]
            stacks[begun] = np.tile(frames()[begun], (1, self.stack, 1, 1))

    def obs(self, stacks: np.ndarray) -> dict[str, np.ndarray]:
        vector = stacks[:, 0, 0, :2].astype(np.float32)
        return {"image": np.moveaxis(stacks, 1, 3) if self.channels_last else stacks, "vector": vector}


cases = st.builds(
    Case,
    seed=st.integers(0, 10**6),
    capacity=st.integers(12, 60),
    stack=st.integers(1, 4),
    steps=st.integers(1, 4),
    num_slots=st.integers(1, 3),
    prioritized=st.booleans(),
    channels_last=st.booleans(),
    end_chance=st.sampled_from([0.0, 0.1, 0.5]),
)


def assert_draws_are_the_same(plain: Replay, framed: FrameReplay, seed: int) -> None:
    one, other = (replay.draw(16, torch.Generator().manual_seed(seed)) for replay in (plain, framed))
    for name in ("rows", "places", "numbers", "weight"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
    assert {name: v.stride() for name, v in one.rows.items()} == {name: v.stride() for name, v in other.rows.items()}
    errors = torch.rand(16, generator=torch.Generator().manual_seed(seed))
    plain.set_priorities(one, errors)
    framed.set_priorities(other, errors)


@settings(max_examples=12)
@given(cases)
def test_draws_are_those_of_the_plain_replay(case):
    """Over ends of episodes, several streams, lost simulators and more transitions than there are places."""
    plain, framed = Replay(case.config, CPU), case.replay()
    for number, rows in enumerate(case.transitions(60)):
        plain.add(rows)
        framed.add(rows)
        assert len(plain) == len(framed) and plain.inserted == framed.inserted
        if len(plain) and number % 4 == 0:
            assert_draws_are_the_same(plain, framed, number)


@settings(max_examples=8)
@given(cases, st.integers(0, 40))
def test_it_comes_back_from_disk_as_it_was_and_goes_on_like_the_plain_replay(tmp_path_factory, case, saved_after):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_module, "SEGMENT", 8)
        _goes_on(tmp_path_factory.mktemp("replay"), case, saved_after)


def _goes_on(folder, case, saved_after):
    """Saves and restores the replay after one of its insertions."""
    plain, framed = Replay(case.config, CPU), case.replay()
    archive = Archive(framed, folder, keep=1)
    for number, rows in enumerate(case.transitions(60)):
        plain.add(rows)
        framed.add(rows)
        archive.note()
        if len(plain) and number % 4 == 0:
            assert_draws_are_the_same(plain, framed, number)
        if number == saved_after:
            state, expected = copy.deepcopy((archive.state(), framed.state_dict()))
            archive.close()
            framed = case.replay()
            archive = Archive(framed, folder, keep=1)
            archive.load(state)
            torch.testing.assert_close(framed.state_dict(), expected, rtol=0, atol=0)
    archive.close()


EXAMPLE = Case(0, 40, 3, 3, 2, True, False, 0.1)


@settings(max_examples=8)
@given(cases, st.integers(0, 20))
def test_without_room_for_frames_the_oldest_transitions_go(case, spare):
    """What is drawn is whole, and among the latest. A restored replay goes on in the same way."""
    plain, framed = Replay(ReplayConfig(capacity=10_000), CPU), case.replay(frames=2 * case.stack + spare)
    lengths = []
    for number, rows in enumerate(case.transitions(50)):
        plain.add(rows)
        framed.add(rows)
        lengths.append(len(framed))
        if len(framed) and number % 4 == 0:
            drawn = framed.draw(16)
            whole = plain.rows(framed.inserted - len(framed), framed.inserted)
            for name, column in drawn.rows.items():
                assert torch.equal(column, whole[name][drawn.numbers - (framed.inserted - len(framed))])
        if number == 25:
            other = case.replay(frames=2 * case.stack + spare)
            other.load_state_dict(copy.deepcopy(framed.state_dict()))
            framed = other
            assert len(framed) == lengths[-1]
    uninterrupted = case.replay(frames=2 * case.stack + spare)
    for length, rows in zip(lengths, case.transitions(50), strict=True):
        uninterrupted.add(rows)
        assert len(uninterrupted) == length


def test_a_dropped_transition_gets_no_priority_from_an_earlier_draw():
    """Learning is concurrent: rows are drawn, then some of them are dropped, then the errors come."""
    plain, framed = Replay(ReplayConfig(capacity=10_000), CPU), EXAMPLE.replay(frames=20)
    transitions = iter(EXAMPLE.transitions(200))
    for _ in range(60):
        rows = next(transitions)
        plain.add(rows)
        framed.add(rows)
        drawn = framed.draw(16) if len(framed) else None
        rows = next(transitions)
        plain.add(rows)
        framed.add(rows)
        if drawn is None or not len(framed):
            continue
        framed.set_priorities(drawn, torch.full((16,), 5.0))
        again, first = framed.draw(64), framed.inserted - len(framed)
        assert (again.numbers >= first).all()
        whole = plain.rows(first, framed.inserted)
        for name, column in again.rows.items():
            assert torch.equal(column, whole[name][again.numbers - first]), name


def test_dropping_early_is_said_once(caplog):
    framed = EXAMPLE.replay(frames=20)
    for rows in EXAMPLE.transitions(60):
        framed.add(rows)
    assert len(framed) < EXAMPLE.capacity
    assert caplog.text.count("the replay has no room for more frames") == 1


def test_each_frame_is_stored_once_and_freed_when_nothing_refers_to_it():
    case = Case(1, 40, 4, 3, 1, False, False, 0.0)
    framed = case.replay()
    for rows in case.transitions(300):
        framed.add(rows)
    held = framed.rows(framed.inserted - 40, framed.inserted)
    store = framed._stores["image"]
    used = framed._num_frames - store.num_free
    assert used == len(held["frames/image"]) <= 40 + 3 + 4 - 1
    framed._drop_oldest(40)
    assert store.num_free == framed._num_frames and not store._place_of


def test_the_frames_that_are_planned_for_are_enough_for_episodes_of_eight_steps():
    config = ReplayConfig(capacity=200, stack=3)
    planned = num_frames(config, streams=4, steps=3)
    layout = FrameLayout("image", (3, 1, 4), np.dtype(np.uint8), False, 3)
    framed = FrameReplay(config, CPU, [layout], planned)
    nstep, count = NStep(3, 4, 0.9), 0
    slots, no = np.arange(4), np.zeros(4, bool)
    for step in range(200):
        if step % 8 == 0:
            count += 4
            stacks = np.repeat((count + slots).astype(np.int32)[:, None], 3, 1)
        images = stacks.view(np.uint8).reshape(4, 3, 1, 4)
        nstep.decide(slots, {"image": images}, np.zeros((4, 1), np.float32))
        count += 4
        stacks = np.concatenate([stacks[:, 1:], (count + slots).astype(np.int32)[:, None]], 1)
        after = {"image": stacks.copy().view(np.uint8).reshape(4, 3, 1, 4)}
        ended = np.full(4, step % 8 == 7)
        framed.add(as_rows(nstep.complete(slots, np.zeros(4), no, ended, no, after)))
    assert len(framed) == 200 and not framed._has_warned


def test_a_smaller_one_takes_over_the_latest():
    framed, small = EXAMPLE.replay(), Case(0, 12, 3, 3, 2, True, False, 0.1).replay()
    for rows in EXAMPLE.transitions(60):
        framed.add(rows)
    small.load_state_dict(framed.state_dict())
    numbers = small.draw(500).numbers
    assert len(small) == 12 and set(numbers.tolist()) == set(range(framed.inserted - 12, framed.inserted))


def test_memory_is_what_was_computed():
    image, vector = spaces.Box(0, 255, (6, 5, 4), np.uint8), spaces.Box(-1, 1, (3,), np.float32)
    spec = PoolSpec(
        observation_space=spaces.Dict({"image": image, "vector": vector}),
        action_space=spaces.Box(-1, 1, (2,), np.float32),
        num_envs=1,
    )
    config = ReplayConfig(capacity=100, stack=3)
    layout = FrameLayout("image", (6, 5, 4), np.dtype(np.uint8), False, 3)
    framed = FrameReplay(config, CPU, [layout], 130)
    rows = {f"{side}/image": np.zeros((1, 6, 5, 4), np.uint8) for side in ("obs", "next_obs")}
    rows |= {f"{side}/vector": np.zeros((1, 3), np.float32) for side in ("obs", "next_obs")}
    rows |= {
        "action": np.zeros((1, 2), np.float32),
        "reward": np.zeros(1, np.float32),
        "discount": np.zeros(1, np.float32),
    }
    framed.add(rows)
    numbers, held = 100 * 8, 100 * 6 * 4
    assert framed.bytes + numbers + held == frame_replay_bytes(spec, [layout], config, 130)
    assert framed.bytes == 130 * 40 + 100 * (2 * 3 * 4 + 2 * 12 + 8 + 4 + 4)


def test_the_documentation_has_the_memory_that_is_computed():
    """Of images alone, for one stream."""
    page = (Path(__file__).parents[2] / "docs" / "d4pg.md").read_text()
    found = re.findall(r"^\| \[(.*?)\] \| (\d) \| ([\d.]+) GB \| ([\d.]+) GB \|$", page, re.MULTILINE)
    assert len(found) == 5
    for sizes, stack, plain, framed in found:
        shape = tuple(map(int, sizes.split(", ")))
        config = ReplayConfig(capacity=1_000_000, stack=int(stack))
        layout = FrameLayout("obs", shape, np.dtype(np.uint8), False, config.stack)
        action = spaces.Box(-1, 1, (1,), np.float32)
        spec = PoolSpec(observation_space=spaces.Box(0, 255, shape, np.uint8), action_space=action, num_envs=1)
        others = config.capacity * (4 + 16)
        needed = frame_replay_bytes(spec, [layout], config, num_frames(config, streams=1, steps=1)) - others
        assert (f"{config.capacity * 2 * math.prod(shape) / 1e9:.1f}", f"{needed / 1e9:.1f}") == (plain, framed)


def test_bad_settings_are_refused():
    with pytest.raises(UsageError, match="must be at least 0"):
        ReplayConfig(stack=-1)
    with pytest.raises(
        UsageError,
        match="replay.stack is 4, but the image 'screen' has 9 channels; allowed: 1, or another divisor of 9",
    ):
        FrameLayout("screen", (9, 84, 84), np.dtype(np.uint8), False, 4)
    rows = next(rows for rows in EXAMPLE.transitions(60) if len(rows["reward"]))
    with pytest.raises(UsageError, match="do not fit"):
        EXAMPLE.replay().add({name: np.repeat(values[:1], 41, 0) for name, values in rows.items()})
