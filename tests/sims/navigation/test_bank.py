"""Banks: their content, their file, the cache, and scenes that are replaced while simulators run."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.scenes import bank_cache, bank_workers
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.bank_cache import load_or_generate
from paceline.sims.navigation.scenes.free_space import is_free
from paceline.sims.navigation.scenes.generator import TIERS, generate_scene, scene_seeds
from paceline.sims.navigation.scenes.tensor_bank import checksum
from paceline.sims.navigation.simulator import Navigation
from tests.forks import run_python
from tests.sims.navigation.rooms import divided_room, room

VERSION = SceneBank.VERSION


def tensors_of(bank):
    return bank._tensors


def assert_equal(one, other):
    assert tensors_of(one).keys() == tensors_of(other).keys()
    for name, values in tensors_of(one).items():
        assert torch.equal(values, tensors_of(other)[name]), name


@pytest.mark.parametrize("tier", TIERS)
def test_episodes_are_playable(tier, small_bank, full_bank):
    bank = small_bank if tier == "small" else full_bank
    limits = TIERS[tier]
    distances = bank.episodes[:, :, 5]
    assert (distances >= limits.min_distance).all()
    assert (distances <= limits.max_distance).all()
    assert (distances.diff(dim=1) >= 0).all()  # for curricula
    for k in range(bank.num_scenes):
        rows = bank.episodes[k].double().numpy()
        scene = bank.scene(k)
        assert is_free(scene, rows[:, :2], 0.12).all()
        assert is_free(scene, rows[:, 3:5], 0.12).all()
        assert (distances[k].numpy() >= np.linalg.norm(rows[:, :2] - rows[:, 3:5], axis=1) - 1e-5).all()
    assert distances.max() > (4.0 if tier == "small" else 15.0)


def test_straight_lines_are_mostly_left_out(full_bank):
    rows = full_bank.episodes.view(-1, 6)
    ratio = rows[:, 5] / (rows[:, :2] - rows[:, 3:5]).norm(dim=1)
    assert (ratio >= 1.1).float().mean() > 0.75
    assert 0 < (ratio < 1.01).float().mean() < 0.2


def test_scenes_come_back_out_of_a_bank(full_bank):
    seeds = scene_seeds("val", full_bank.num_scenes)
    for k in (0, 5):
        made, kept = generate_scene("full", seeds[k]), full_bank.scene(k)
        order = np.argsort(~((made.boxes[:, 4] <= 0) & (made.boxes[:, 5] >= 2.5)), kind="stable")
        np.testing.assert_allclose(kept.boxes, made.boxes[order], atol=1e-5)
        assert np.array_equal(kept.colors, made.colors[order])
        assert (kept.floor_color, kept.ceiling_color) == (made.floor_color, made.ceiling_color)
        assert kept.seed == seeds[k]


def test_a_bank_is_one_file(tmp_path, small_bank):
    small_bank.save(tmp_path / "bank")
    assert [path.name for path in tmp_path.iterdir()] == ["bank"]
    loaded = SceneBank.load(tmp_path / "bank")
    assert_equal(loaded, small_bank)
    assert (loaded.tier, loaded.label) == ("small", small_bank.label)


def test_damaged_files_are_refused(tmp_path, small_bank):
    path = tmp_path / "bank"
    with pytest.raises(UsageError, match="there is no scene file"):
        SceneBank.load(path)
    small_bank.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="damaged"):
        SceneBank.load(path)
    path.write_bytes(b"something else")
    with pytest.raises(UsageError, match="damaged"):
        SceneBank.load(path)
    flipped = bytearray(whole)
    flipped[-1000] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(UsageError, match="checksum"):
        SceneBank.load(path)
    path.write_bytes(whole.replace(f'"version":"{VERSION}"'.encode(), b'"version":"9"'))
    with pytest.raises(UsageError, match=f"version 9; allowed: {VERSION}"):
        SceneBank.load(path)
    small_bank.save(path)
    tensors, metadata = safetensors.torch.load_file(path), {"format": "paceline-pointnav-bank", "version": "1"}
    safetensors.torch.save_file(tensors, path, metadata)
    with pytest.raises(UsageError, match=r"has version 1; allowed: .; write it again by SceneBank.generate\(.*\).save"):
        SceneBank.load(path)
    path.write_bytes(whole.replace(b"paceline-navigation-bank", b"paceline-navigation-BANK"))
    with pytest.raises(UsageError, match="no scene file"):
        SceneBank.load(path)


def test_the_cache_is_used_and_repaired(tmp_path, monkeypatch, caplog):
    made = load_or_generate("small", "val", 3, 1, folder=tmp_path)
    files = [path for path in tmp_path.iterdir() if path.suffix == ".safetensors"]
    assert [path.name for path in files] == [f"small-val-3-1-v1-format{VERSION}.safetensors"]
    with monkeypatch.context() as patch:
        patch.setattr(SceneBank, "of_seeds", None)
        assert_equal(load_or_generate("small", "val", 3, 1, folder=tmp_path), made)
    files[0].write_bytes(b"rubbish")
    assert_equal(load_or_generate("small", "val", 3, 1, folder=tmp_path), made)
    assert "generated again" in caplog.text
    assert_equal(SceneBank.load(files[0]), made)


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert load_or_generate("small", "val", 2, folder=tmp_path / "file" / "below").num_scenes == 2
    assert "not kept" in caplog.text


def test_a_full_disk_costs_a_warning(tiny_disk, caplog):
    (tiny_disk / "large").write_bytes(bytes(300 * 1024 - 4096))
    assert load_or_generate("small", "val", 2, folder=tiny_disk).num_scenes == 2
    assert "not kept" in caplog.text and [path.name for path in tiny_disk.glob("*safetensors*")] == []


def test_concurrent_callers_generate_a_bank_once(tmp_path, monkeypatch):
    made, of_seeds = [], SceneBank.of_seeds
    monkeypatch.setattr(SceneBank, "of_seeds", lambda *arguments: made.append(arguments) or of_seeds(*arguments))
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(load_or_generate("small", "train", 3, folder=tmp_path)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1
    assert len(got) == 4
    for bank in got:
        assert_equal(bank, got[0])


def test_the_user_s_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert bank_cache.cache_folder() == tmp_path / "paceline" / "navigation"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert bank_cache.cache_folder() == tmp_path / ".cache" / "paceline" / "navigation"


def test_banks_are_the_same_in_every_process(tmp_path):
    (tmp_path / "program.py").write_text(
        "from paceline.sims.navigation.scenes.bank import SceneBank;"
        "from paceline.sims.navigation.scenes.tensor_bank import checksum;"
        "print(checksum(SceneBank.generate('small', 'test', 2)._tensors))"
    )
    there = run_python(tmp_path / "program.py").stdout
    assert int(there) == checksum(tensors_of(SceneBank.generate("small", "test", 2)))


def test_scenes_are_replaced_while_a_simulator_runs():
    bank = SceneBank.of_scenes([generate_scene("small", seed) for seed in range(3)], "small")
    simulator = Navigation(24, "cpu", PointNavConfig(sensors="blind", max_episode_steps=20), bank=bank)
    simulator.reset(0)
    memory = {name: values.data_ptr() for name, values in tensors_of(bank).items()}
    with pytest.raises(UsageError, match="not retired"):
        bank.replace(2, divided_room())
    bank.retire(2)
    assert bank.is_in_use(2)
    with pytest.raises(UsageError, match="still in scene 2"):
        bank.replace(2, divided_room())
    forward = torch.ones(24, dtype=torch.long)
    for turn in range(20):
        in_scene_2 = simulator.scenes == 2
        step = simulator.step(forward)
        # Nothing is cut short, and nothing begins there.
        assert (step.truncated == (turn == 19)).all()
        assert not ((simulator.scenes == 2) & ~in_scene_2).any()
    assert not bank.is_in_use(2)
    bank.replace(2, divided_room())
    assert {name: values.data_ptr() for name, values in tensors_of(bank).items()} == memory
    assert_equal_scene(bank.scene(2), divided_room())
    for _ in range(40):
        simulator.step(forward)
        new = simulator.scenes == 2
        assert (simulator._state[new, 6] < 20).all()
        assert (simulator.poses[new, 0] <= 5.9).all()
    assert bank.is_in_use(2)


def assert_equal_scene(one, other):
    np.testing.assert_allclose(np.sort(one.boxes, 0), np.sort(other.boxes, 0), atol=1e-6)
    assert one.interior == pytest.approx(other.interior)


def test_replaced_scenes_are_part_of_the_state():
    def make():
        return SceneBank.of_scenes([generate_scene("small", seed) for seed in range(3)], "small", "three")

    bank = make()
    simulator = Navigation(4, "cpu", PointNavConfig(sensors="blind"), bank=bank)
    simulator.reset(0)
    assert simulator.state_dict()["bank"]["tensors"] == {}
    bank.retire(0)
    while bank.is_in_use(0):
        simulator.step(torch.zeros(4, dtype=torch.long))
    bank.replace(0, divided_room())
    bank.retire(2)
    other = Navigation(4, "cpu", PointNavConfig(sensors="blind"), bank=make())
    other.load_state_dict(simulator.state_dict())
    assert_equal(other.bank, bank)
    assert other.bank.retired.tolist() == [False, False, True]
    with pytest.raises(UsageError, match="saved over the scenes 'three'; allowed: .* 'custom'"):
        Navigation(4, bank=SceneBank.of_scenes([divided_room()], "small")).load_state_dict(simulator.state_dict())


def test_the_last_scene_stays():
    bank = SceneBank.of_scenes([divided_room(), room(seed=4)], "small")
    bank.retire(0)
    with pytest.raises(UsageError, match="at least one"):
        bank.retire(1)


def test_what_does_not_fit_is_refused():
    boxes = [(0.5 + i, 1.0, 0.8 + i, 1.3, 0.0, 0.5) for i in range(5)] + [
        (0.5 + i, 2.5, 0.8 + i, 2.8, 0.0, 0.5) for i in range(5)
    ]
    with pytest.raises(UsageError, match="10 other boxes; allowed: 6 or fewer"):
        SceneBank.of_scenes([room(boxes=boxes)], "small")
    with pytest.raises(UsageError, match="has no scenes; allowed: one or more"):
        SceneBank.of_scenes([], "small")
    with pytest.raises(UsageError, match="no goal was found"):
        SceneBank.of_scenes([room(0.6, 0.6)], "small")
    with pytest.raises(UsageError, match="hardly any free floor"):
        SceneBank.of_scenes([room(0.5, 0.5, boxes=[(0.1, 0.1, 0.4, 0.4, 0, 1)])], "small")


@pytest.mark.parametrize(("tier", "scenes", "workers"), [("small", 64, 0), ("small", 300, 2), ("full", 40, 2)])
def test_workers_start_only_for_more_scenes_than_they_could_make_meanwhile(monkeypatch, tier, scenes, workers):
    class Started(Exception):
        pass

    def start(commands, *_):
        raise Started(len(commands))

    monkeypatch.setattr(bank_workers, "_run", start)
    monkeypatch.setattr(bank_workers, "available_core_ids", lambda: list(range(8)))
    monkeypatch.setattr(SceneBank, "of_seeds", lambda seeds, *arguments: arguments)
    if workers:
        with pytest.raises(Started, match=str(workers)):
            bank_workers.generate(SceneBank, tier, "train", scenes, 0)
    else:
        label = SceneBank.label_of(tier, "train", scenes, 0)
        assert bank_workers.generate(SceneBank, tier, "train", scenes, 0) == (tier, label, ())


def test_workers_make_the_same_bank():
    """The same bytes in the same order, however scenes are divided among workers."""
    alone = SceneBank.generate("small", "val", 7, 2)
    together = bank_workers.generate(SceneBank, "small", "val", 7, 2, workers=2)
    assert together.label == alone.label
    assert_equal(together, alone)


def test_what_does_not_exist_is_refused_before_any_worker_starts(monkeypatch):
    monkeypatch.setattr(bank_workers, "_run", None)
    with pytest.raises(UsageError, match="split 'vale' does not exist"):
        bank_workers.generate(SceneBank, "small", "vale", 64, 0, workers=2)
    with pytest.raises(UsageError, match="tier"):
        bank_workers.generate(SceneBank, "smal", "val", 64, 0, workers=2)


def test_the_error_of_a_worker_is_reported():
    command = [sys.executable, "-c", "raise SystemExit('the scene is not here')"]
    with pytest.raises(RuntimeError, match="is not here"):
        bank_workers._run([command], [], 1, "small")


def test_a_worker_ends_if_its_parent_ended_before_it_started():
    with pytest.raises(SystemExit, match="has ended"):
        next(bank_workers._watched([1], parent=os.getpid()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_workers_and_leaves_no_files(tmp_path, monkeypatch, number):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"  # tests in the background ignore it
        "from functools import partial; from paceline.sims.navigation.scenes import bank_cache;"
        "bank_cache.generate = partial(bank_cache.generate, workers=2);"
        f"bank_cache.load_or_generate('full', 'val', 4000, folder=bank_cache.Path({str(tmp_path)!r}))"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while len(workers := children.read_text().split()) < 2:
            assert parent.poll() is None, parent.stderr.read()
            time.sleep(0.05)
        parent.send_signal(number)
        assert b"KeyboardInterrupt" in parent.communicate(timeout=300)[1]
    finally:
        parent.kill()
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        f"full-val-4000-0-v1-format{VERSION}.lock",
        "temporary",
    ]
