"""A replay on disk comes back as it was, whenever it was written, and costs a checkpoint only what is new."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from paceline.errors import PacelineError
from paceline.experience import archive as module
from paceline.experience.archive import Archive
from paceline.experience.config import ReplayConfig
from paceline.experience.replay import Replay
from paceline.files import DiskFull
from tests.experience.test_replay import CPU, numbered


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(module, "SEGMENT", 8)
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "archive"], "no thread is left"


def fill(replay: Replay, archive: Archive, counts: list[int]) -> None:
    for count in counts:
        replay.add(numbered(replay.inserted, count))
        archive.note()
        if len(replay):
            drawn = replay.draw(4)
            replay.set_priorities(drawn, 10 * torch.rand(4))


@settings(max_examples=40)
@given(
    st.integers(2, 40),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=20),
    st.lists(st.integers(0, 9), max_size=20),
    st.integers(0, 10**6),
)
def test_it_comes_back_as_it_was(tmp_path_factory, capacity, prioritized, before, after, seed):
    """Also when it went on after the checkpoint, and had written more segments by the time that it ended."""
    torch.manual_seed(seed)
    config, folder = ReplayConfig(capacity=capacity, prioritized=prioritized), tmp_path_factory.mktemp("replay")
    replay = Replay(config, CPU)
    archive = Archive(replay, folder, keep=1)
    fill(replay, archive, [min(count, capacity) for count in before])
    state, expected = copy.deepcopy((archive.state(), replay.state_dict()))
    fill(replay, archive, [min(count, capacity) for count in after])
    archive.close()
    other = Replay(config, CPU)
    restored = Archive(other, folder, keep=1)
    restored.load(state)
    torch.testing.assert_close(other.state_dict(), expected, rtol=0, atol=0)
    fill(other, restored, [min(count, capacity) for count in after])  # over the segments that were written meanwhile
    again = Replay(config, CPU)
    final = restored.state()
    Archive(again, folder, keep=1).load(final)
    torch.testing.assert_close(again.state_dict(), other.state_dict(), rtol=0, atol=0)
    restored.close()


def test_a_checkpoint_writes_only_what_is_new_and_old_segments_go(tmp_path):
    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path, keep=2)
    written = {}
    for _ in range(12):
        fill(replay, archive, [7])
        state = archive.state()
        archive.checkpointed(state)
        assert len(state["tail"]["reward"]) < 8, "all else is on disk already"
        for path in tmp_path.iterdir():
            stamp = path.stat().st_mtime_ns
            assert written.setdefault(path.name, stamp) == stamp, "a segment is written once"
    kept = sorted(int(path.stem.split("_")[1]) for path in tmp_path.iterdir())
    oldest_needed = (12 - 2) * 7 - 32  # of the checkpoint before the one before the last
    assert kept == list(range(oldest_needed // 8, 84 // 8))
    archive.close()


def test_an_older_checkpoint_has_what_is_still_there(tmp_path, caplog):
    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path, keep=1)
    fill(replay, archive, [30])
    old = archive.state()
    archive.checkpointed(old)
    for _ in range(3):
        fill(replay, archive, [10])
        archive.checkpointed(archive.state())
    archive.close()
    other = Replay(ReplayConfig(capacity=32), CPU)
    Archive(other, tmp_path, keep=1).load(old)
    assert "no longer on disk" in caplog.text
    names = other.draw(500).rows["reward"]
    assert 0 < len(other) < 30 and set(names.tolist()) == set(range(30 - len(other), 30)), "the newest of them"
    uniform = Replay(ReplayConfig(capacity=32, prioritized=False), CPU)
    Archive(uniform, tmp_path, keep=1).load(old)
    assert set(uniform.draw(500).rows["reward"].tolist()) == set(names.tolist())


def test_going_back_to_an_earlier_checkpoint_leaves_the_later_ones_alone(tmp_path):
    """Both lines have a segment of the same numbers, and each its own."""
    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path, keep=3)
    fill(replay, archive, [10])
    early = copy.deepcopy(archive.state())
    fill(replay, archive, [10])
    late, expected = copy.deepcopy((archive.state(), replay.state_dict()))
    archive.close()
    other = Replay(ReplayConfig(capacity=32), CPU)
    again = Archive(other, tmp_path, keep=3)
    again.load(early)
    other.add(numbered(500, 10))
    again.note()
    again.state()
    again.close()
    back = Replay(ReplayConfig(capacity=32), CPU)
    Archive(back, tmp_path, keep=3).load(late)
    torch.testing.assert_close(back.state_dict(), expected, rtol=0, atol=0)


def test_a_segment_that_cannot_be_read_is_as_one_that_is_gone(tmp_path, caplog):
    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path, keep=1)
    fill(replay, archive, [20])
    state = archive.state()
    archive.close()
    first = next(tmp_path.glob("segment_0_*"))
    first.write_bytes(first.read_bytes()[:50])
    other = Replay(ReplayConfig(capacity=32), CPU)
    Archive(other, tmp_path, keep=1).load(state)
    assert "oldest 8 of the checkpoint's 20" in caplog.text and len(other) == 12


def test_a_disk_that_takes_nothing_is_a_clear_error(tmp_path):
    (tmp_path / "replay").write_text("a file where a folder should be")
    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path / "replay" / "rank_0", keep=1)
    with pytest.raises(PacelineError, match="rank_0 cannot be written"):
        fill(replay, archive, [20])


def test_what_could_not_be_written_is_said_at_the_next_occasion(tmp_path, monkeypatch):
    def fail(rows, path):
        raise OSError("no space left")

    monkeypatch.setattr(module, "save_file", fail)
    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path, keep=1)
    fill(replay, archive, [10])
    with pytest.raises(PacelineError, match="no space left"):
        archive.state()
    archive.close()


def test_a_segment_that_was_changed_is_left_out_and_named(tmp_path, caplog):
    """Numbers that are not what was written would be learned from in silence."""
    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path, keep=1)
    fill(replay, archive, [20])
    state = archive.state()
    archive.close()
    first = next(tmp_path.glob("segment_0_*"))
    rows = load_file(first)
    rows["reward"].fill_(float("nan"))
    save_file(rows, first)
    other = Replay(ReplayConfig(capacity=32), CPU)
    Archive(other, tmp_path, keep=1).load(state)
    assert len(other) == 12 and torch.isfinite(other.draw(100).rows["reward"]).all()
    assert f"{first} was changed" in caplog.text


def test_a_checkpoint_without_digests_still_loads(tmp_path):
    """Those that were written before there were any."""
    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path, keep=1)
    fill(replay, archive, [20])
    state, expected = copy.deepcopy((archive.state(), replay.state_dict()))
    archive.close()
    del state["digests"]
    other = Replay(ReplayConfig(capacity=32), CPU)
    Archive(other, tmp_path, keep=1).load(state)
    torch.testing.assert_close(other.state_dict(), expected, rtol=0, atol=0)


def test_looking_at_the_state_deletes_nothing(tmp_path):
    """Only a checkpoint that was written makes older segments superfluous."""
    replay = Replay(ReplayConfig(capacity=8), CPU)
    archive = Archive(replay, tmp_path, keep=1)
    for _ in range(6):
        fill(replay, archive, [8])
        archive.state()
    assert len(list(tmp_path.iterdir())) == 6
    for _ in range(2):
        archive.checkpointed(archive.state())
    assert [path.name[:10] for path in tmp_path.iterdir()] == ["segment_5_"]
    archive.close()


def test_a_full_disk_delays_segments_and_loses_none(tmp_path, monkeypatch, caplog):
    """It is said once; a checkpoint says so too, and once there is room, everything is written."""

    def fail(rows, path):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    replay = Replay(ReplayConfig(capacity=32), CPU)
    archive = Archive(replay, tmp_path, keep=1)
    with monkeypatch.context() as full:
        full.setattr(module, "save_file", fail)
        fill(replay, archive, [10, 10])
        with pytest.raises(DiskFull, match=r"segment_0_\w+.safetensors cannot be written: the disk is full"):
            archive.state()
        fill(replay, archive, [10])
    assert caplog.text.count("tried again") == 1
    state = archive.state()
    archive.close()
    other = Replay(ReplayConfig(capacity=32), CPU)
    Archive(other, tmp_path, keep=1).load(state)
    torch.testing.assert_close(other.state_dict(), replay.state_dict(), rtol=0, atol=0)
