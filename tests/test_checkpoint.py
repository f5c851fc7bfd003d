"""Checkpoints survive crashes, and damage is noticed."""

from __future__ import annotations

import json

import pytest
import torch

from paceline import checkpoint
from paceline.checkpoint import CheckpointError, CheckpointFolder

WEIGHTS = {"layer.weight": torch.arange(6.0).view(2, 3), "mean": torch.tensor(3.0)}


def save(folder: CheckpointFolder, step: int, best: bool = False, **state):
    return folder.save(step, WEIGHTS, {"step": step, **state}, {0: b"pool"}, best=best)


def test_what_is_saved_comes_back(tmp_path):
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
    """Those that were written last are kept, not those of the highest steps."""
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (100, 500, 600):
        save(folder, step, best=step == 100)
    for step in (150, 200):
        save(folder, step)
        assert folder.load("latest").state["step"] == step
    assert folder.steps() == [100, 150, 200]


def test_a_crash_while_writing_leaves_the_one_before(tmp_path, monkeypatch):
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
        folder.load()
    assert folder.load("step_1").state["step"] == 1


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
