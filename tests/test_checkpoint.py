"""Checkpoints survive crashes, and damage is detected."""

from __future__ import annotations

import errno
import json

import pytest
import torch

from paceline import checkpoint
from paceline.checkpoint import CheckpointError, CheckpointFolder
from paceline.files import DiskFull
from tests.pickles import Touch

WEIGHTS = {"layer.weight": torch.arange(6.0).view(2, 3), "mean": torch.tensor(3.0)}


def save(folder: CheckpointFolder, step: int, best: bool = False, **state):
    return folder.save(step, WEIGHTS, {"step": step, **state}, {0: b"pool"}, best=best)


def test_save_and_load(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 5, rng=torch.tensor([1, 2]), nested={"lr": 0.5, "list": [1, "a"]})
    loaded = folder.load()
    assert loaded.folder.name == "step_5"
    for name, tensor in WEIGHTS.items():
        torch.testing.assert_close(loaded.weights[name], tensor, rtol=0, atol=0)
    assert loaded.state["nested"] == {"lr": 0.5, "list": [1, "a"]} and loaded.state["rng"].tolist() == [1, 2]
    assert loaded.pool_state(0) == b"pool" and loaded.pool_state(1) is None


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in range(1, 7):
        save(folder, step, best=step == 2)
    assert folder.steps() == [2, 5, 6]
    assert folder.load("best").state["step"] == 2
    assert folder.load("latest").state["step"] == 6
    assert folder.load("step_5").state["step"] == 5
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_run_that_went_back_keeps_what_it_writes_from_there(tmp_path):
    """The checkpoints written last are kept, not those with the highest steps."""
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (100, 500, 600):
        save(folder, step, best=step == 100)
    for step in (150, 200):
        save(folder, step)
        assert folder.load("latest").state["step"] == step
    assert folder.steps() == [100, 150, 200]


def test_a_crash_during_writing_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_flush", crash)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 2)
    assert folder.steps() == [1] and folder.load().state["step"] == 1


@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.STATE, "pool_0.bin"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_is_a_clear_error_that_names_another(tmp_path, name, damage):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    path = save(folder, 2) / name
    data = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(data[:-1])
    elif damage == "flip":
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    else:
        path.unlink()
    with pytest.raises(CheckpointError, match=rf"step_2 is damaged: {name} .*--checkpoint step_1"):
        folder.load("step_2")
    assert folder.load("step_1").state["step"] == 1


def test_resuming_falls_back_to_the_newest_whole_checkpoint_and_says_so(tmp_path, caplog):
    """Only `latest` falls back; a checkpoint that the user names does not."""
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2, 3):
        save(folder, step, best=step == 3)
    (tmp_path / "step_3" / checkpoint.STATE).write_bytes(b"")
    (tmp_path / "step_2" / checkpoint.WEIGHTS).unlink()
    assert folder.load("latest").state["step"] == 1
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 2 and all("step_1 is used instead" in warning for warning in warnings)
    assert "step_3 is damaged: state.pt has 0 bytes" in warnings[0]
    assert "step_2 is damaged: weights.safetensors is missing" in warnings[1]
    for named in ("best", "step_3", "step_2"):
        with pytest.raises(CheckpointError, match="is damaged"):
            folder.load(named)
    (tmp_path / "step_1" / checkpoint.MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="step_3 is damaged"):
        folder.load("latest")


def test_a_wrong_pointer_falls_back_to_the_newest_checkpoint(tmp_path, caplog):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    (tmp_path / "latest").write_text("../elsewhere")
    assert folder.load("latest").state["step"] == 1
    assert "no checkpoint '../elsewhere'" in caplog.text


@pytest.mark.parametrize("manifest", ["[1, 2]", "{}", '{"weights.safetensors": 3, "state.pt": {}}'])
def test_a_manifest_without_files_is_damage(tmp_path, manifest):
    folder = CheckpointFolder(tmp_path)
    (save(folder, 1) / checkpoint.MANIFEST).write_text(manifest)
    with pytest.raises(CheckpointError, match="manifest.json cannot be read"):
        folder.load()


def test_a_state_that_would_run_code_is_damage_and_runs_none(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints")
    path = save(folder, 1) / checkpoint.STATE
    torch.save({"step": Touch(tmp_path / "ran")}, path)
    manifest = json.loads((path.parent / checkpoint.MANIFEST).read_text())
    manifest[checkpoint.STATE] = checkpoint._fingerprint(path)
    (path.parent / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="cannot be read"):
        folder.load()
    assert not (tmp_path / "ran").exists()


def test_simulators_that_the_manifest_does_not_have_are_not_read(tmp_path):
    folder = CheckpointFolder(tmp_path)
    (save(folder, 1) / "pool_1.bin").write_bytes(b"somebody put this here")
    loaded = folder.load()
    assert loaded.pool_state(1) is None and loaded.pool_state(0) == b"pool"
    (tmp_path / "step_1" / "pool_0.bin").write_bytes(b"loop")
    assert loaded.pool_state(0) is None, "changed since it was verified"


def test_a_full_disk_is_an_error_that_keeps_old_checkpoints(tiny_disk):
    """The size is computed before writing, so this checkpoint is not even begun."""
    folder = CheckpointFolder(tiny_disk)
    save(folder, 1)
    with pytest.raises(
        DiskFull, match=r"step_2 cannot be written: the disk is full \(it needs 1\.\d MiB, and \d+ KiB are free"
    ):
        save(folder, 2, large=torch.zeros(300_000))
    assert sorted(path.name for path in tiny_disk.iterdir()) == ["latest", "step_1"], "no half checkpoint is left"
    assert folder.load().state["step"] == 1 and (tiny_disk / "latest").read_text() == "step_1\n"


@pytest.mark.parametrize("part", ["weights", "state", "pools"])
def test_a_disk_that_becomes_full_during_writing_is_the_same_error(tiny_disk, monkeypatch, part):
    """This happens with quotas, which cannot be checked before. The error is the same for all libraries that write."""
    monkeypatch.setattr(checkpoint, "check_room", lambda path, needed: None)
    folder = CheckpointFolder(tiny_disk)
    save(folder, 1)
    large = torch.zeros(100_000)
    parts = {"weights": WEIGHTS, "state": {}, "pools": {}}
    parts[part] = {"weights": {"large": large}, "state": {"large": large}, "pools": {0: bytes(400_000)}}[part]
    with pytest.raises(DiskFull, match="step_2 cannot be written: the disk is full"):
        folder.save(2, **parts, best=False)
    assert sorted(path.name for path in tiny_disk.iterdir()) == ["latest", "step_1"]


def test_a_quota_is_named_in_the_error(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(checkpoint, "_flush", fail)
    with pytest.raises(DiskFull, match="the disk quota is used up"):
        save(CheckpointFolder(tmp_path), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_the_same_step_replaces_the_old_one(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1, part="old")
    save(folder, 1, part="new")
    assert folder.load().state["part"] == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_1"]


def test_a_manifest_that_is_no_json(tmp_path):
    folder = CheckpointFolder(tmp_path)
    (save(folder, 1) / checkpoint.MANIFEST).write_text('{"weights')
    with pytest.raises(CheckpointError, match="manifest.json cannot be read.*there is no other one"):
        folder.load()


def test_a_checkpoint_that_does_not_exist(tmp_path):
    folder = CheckpointFolder(tmp_path)
    with pytest.raises(CheckpointError, match="there are: none"):
        folder.load()
    save(folder, 3)
    with pytest.raises(CheckpointError, match="there are: step_3"):
        folder.load("step_9")


def test_a_temporary_folder_of_a_crash_is_never_taken_for_a_checkpoint(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    (tmp_path / ".step_2.123").mkdir()
    (tmp_path / ".step_2.123" / checkpoint.MANIFEST).write_text(json.dumps({}))
    assert folder.steps() == [1]
