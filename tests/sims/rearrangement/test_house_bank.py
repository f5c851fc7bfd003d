"""Banks of houses: their content, their file, the cache and workers. The machinery is navigation's."""

import os

import numpy as np
import pytest
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.scenes import bank_cache, bank_workers
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.generator import scene_seeds
from paceline.sims.rearrangement.scenes.bank import HouseBank, load_or_generate_houses
from paceline.sims.rearrangement.scenes.generator import HOUSE_TIERS, generate_house


def assert_equal(one, other):
    assert one.tensors.keys() == other.tensors.keys()
    for name, values in one.tensors.items():
        assert torch.equal(values, other.tensors[name]), name
    assert (one.tier, one.label, one.scenario) == (other.tier, other.label, other.scenario)


@pytest.fixture(scope="module")
def bank():
    return load_or_generate_houses("small", "val", 2, 0, "set_table")


def test_shapes(banks):
    """J = 3 joints, M = 14 moving boxes, E = 32 episodes, O = 10 objects, T = 5 goals, P = 4 starts."""
    for (tier, _), bank in banks.items():
        num, limits = bank.num_scenes, HOUSE_TIERS[tier]
        expected = {
            "joints": (3, 6),
            "moving": (14, 7),
            "moving_joint": (14,),
            "moving_colors": (14, 3),
            "handles": (3, 3),
            "surfaces": (limits.max_surfaces, 6),
            "surface_kinds": (limits.max_surfaces,),
            "object_kinds": (32, 10),
            "objects": (32, 10, 4),
            "object_joint": (32, 10),
            "goals": (32, 5, 3),
            "object_starts": (32, 5, 4, 3),
            "goal_starts": (32, 5, 4, 3),
            "joint_starts": (3, 4, 3),
            "far_starts": (32, 4, 3),
            "stands": (32, 10, 3),
            "stand_distances": (320, limits.max_nodes),
        }
        assert {name: tuple(bank.tensors[name].shape) for name in expected} == {
            name: (num, *shape) for name, shape in expected.items()
        }
        whole = {"moving_joint", "surface_kinds", "object_kinds", "object_joint", "counts", "seeds"}
        assert {name for name, values in bank.tensors.items() if values.dtype == torch.int64} == whole
        assert {name for name, values in bank.tensors.items() if values.dtype == torch.uint8} == {
            "colors",
            "moving_colors",
        }
        assert all(values.isfinite().all() for values in bank.tensors.values())


def test_a_seed_gives_the_same_bank(bank):
    """The workers' test makes all houses again."""
    first = HouseBank.generate("small", "val", 1, 0, "set_table")
    other = HouseBank.generate("small", "val", 1, 0, "tidy_house")
    for name, values in first.tensors.items():
        assert torch.equal(values, bank.tensors[name][:1]), name
    assert torch.equal(other.footprints, first.footprints) and not torch.equal(other.objects, first.objects)


def test_splits_share_no_houses(bank):
    seeds = [set(scene_seeds(split, 1000)) for split in ("train", "val", "test")]
    assert not seeds[0] & seeds[1] and not seeds[0] & seeds[2] and not seeds[1] & seeds[2]
    assert bank.seeds.tolist() == scene_seeds("val", 2)


def test_houses_come_back_out_of_a_bank(bank):
    made, kept = generate_house("small", scene_seeds("val", 2)[1]), bank.house(1)
    for name in ("joints", "moving", "handles"):
        np.testing.assert_allclose(getattr(kept, name), getattr(made, name), atol=1e-5)
    assert np.array_equal(kept.moving_joint, made.moving_joint)
    assert np.array_equal(kept.moving_colors, made.moving_colors)
    assert [surface[2:] for surface in kept.surfaces] == [surface[2:] for surface in made.surfaces]
    np.testing.assert_allclose([s.area for s in kept.surfaces], [s.area for s in made.surfaces], atol=1e-5)
    assert kept.scene.radius == made.scene.radius == 0.25


def test_a_bank_is_one_file(tmp_path, bank):
    bank.save(tmp_path / "bank")
    assert_equal(HouseBank.load(tmp_path / "bank"), bank)
    with pytest.raises(UsageError, match="no scene file; allowed: a file written by SceneBank.save"):
        SceneBank.load(tmp_path / "bank")


def test_copies_are_equal(bank):
    assert bank.to("cpu") is bank
    assert_equal(bank.to("cpu:0"), bank)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_on_a_gpu_are_equal(bank):
    assert_equal(bank.to("cuda").to("cpu"), bank)


def test_the_cache_is_used(tmp_path, monkeypatch):
    made = load_or_generate_houses("small", "val", 1, 4, "prepare_groceries", folder=tmp_path)
    names = [path.name for path in tmp_path.glob("*.safetensors")]
    assert names == ["small-prepare_groceries-val-1-4-v3-format1.safetensors"]
    monkeypatch.setattr(HouseBank, "of_seeds", None)
    assert_equal(load_or_generate_houses("small", "val", 1, 4, "prepare_groceries", folder=tmp_path), made)
    assert bank_cache.cache_folder(HouseBank).name == "rearrangement"


def test_workers_make_the_same_bank(bank, monkeypatch, capfd):
    """Workers run in this process: tests of navigation start new ones, which takes seconds."""

    def run(commands, files, num_scenes, about):
        for command in commands:
            monkeypatch.setattr("sys.argv", command[2:])
            bank_workers.main()

    monkeypatch.setattr(bank_workers, "_run", run)
    monkeypatch.setattr("os.getppid", os.getpid)
    assert_equal(bank_workers.generate(HouseBank, "small", "val", 2, 0, ("set_table",), workers=2), bank)


def test_houses_cannot_be_replaced(bank):
    with pytest.raises(UsageError, match="cannot be replaced; allowed: another bank"):
        bank.retire(1)


def test_a_house_has_space_for_all_objects():
    """The first kitchen that this seed draws has hardly any surfaces."""
    assert HouseBank.of_seeds([1000591], "small", details=["tidy_house"]).num_episodes == 32


def test_scenes_for_another_radius_are_refused(houses):
    with pytest.raises(UsageError, match=r"radius 0.25 m; allowed: 0.1 m"):
        SceneBank.of_scenes([houses["small"][0].scene], "full")
