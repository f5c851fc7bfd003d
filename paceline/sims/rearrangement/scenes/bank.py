"""`HouseBank`: K houses and their episodes as padded tensors on one device, shared by any number of streams.

Episodes are drawn in advance, with the distances of all nodes to their stands. Starting an episode is a gather, and the
training loop never waits for the host.

Legend: K houses, J joints, M moving boxes, S surfaces, E episodes, O objects, T objects with goals, P starts, V nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.bank_cache import load_or_generate_bank
from paceline.sims.navigation.scenes.generator import scene_seeds
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.geometry import NOWHERE
from paceline.sims.navigation.scenes.scene import Rect
from paceline.sims.navigation.scenes.tensor_bank import TensorBank, pack_distances, pack_scene, padded, with_progress
from paceline.sims.rearrangement.scenes.clearance import with_clear_headings
from paceline.sims.rearrangement.scenes.episodes import draw_house_episodes, scenario_named
from paceline.sims.rearrangement.scenes.generator import HouseLimits, generate_house, house_tier
from paceline.sims.rearrangement.scenes.house import IN_THE_OPEN, SURFACE_KINDS, House, Surface

DEFAULT_SCENARIO = "tidy_house"


class HouseBank(TensorBank[House]):
    """Houses and episodes. These tensors are attributes, beside those of `TensorBank`; see `House` and `HouseEpisodes`:

    joints          [K, J, 6]
    moving          [K, M, 7]
    moving_joint    int64 [K, M]
    moving_colors   uint8 [K, M, 3]
    handles         [K, J, 3]
    surfaces        [K, S, 6]           x0, y0, x1, y1, z, joint; padding is far away
    surface_kinds   int64 [K, S]        numbers in `SURFACE_KINDS`; -1 for padding
    object_kinds    int64 [K, E, O]
    objects         [K, E, O, 4]
    object_joint    int64 [K, E, O]
    goals           [K, E, T, 3]
    object_starts   [K, E, T, P, 3]
    goal_starts     [K, E, T, P, 3]
    joint_starts    [K, J, P, 3]
    far_starts      [K, E, P, 3]
    stands          [K, E, 2T, 3]
    stand_distances [K, E * 2T, V]
    """

    FORMAT: ClassVar = "paceline-rearrangement-bank"
    VERSION: ClassVar = 1
    SEEDS_VERSION: ClassVar = 3
    SIMULATOR: ClassVar = "rearrangement"
    WORTH_A_WORKER: ClassVar = {"small": 16, "full": 8}
    DETAILS: ClassVar = ("scenario",)

    limits: HouseLimits

    @classmethod
    def limits_of(cls, tier: str) -> HouseLimits:
        return house_tier(tier)

    @classmethod
    def make(cls, tier: str, seed: int) -> House:
        return generate_house(tier, seed)

    @classmethod
    def generate(
        cls,
        tier: str,
        split: str = "train",
        num_scenes: int = 64,
        seed: int = 0,
        scenario: str = DEFAULT_SCENARIO,
    ) -> HouseBank:
        """Bank number `seed` of a split, on the host. `load_or_generate_houses` keeps it in a file."""
        scenario_named(scenario)
        seeds = with_progress(scene_seeds(split, num_scenes, seed), num_scenes, f"rearrangement, {tier}")
        details = (scenario,)
        return cls.of_seeds(seeds, tier, cls.label_of(tier, split, num_scenes, seed, details), details)

    @property
    def scenario(self) -> str:
        return self.details[0]

    @property
    def num_episodes(self) -> int:
        """Per house."""
        return self._tensors["objects"].shape[1]

    def retire(self, index: int) -> None:
        """Refused: simulators keep the static boxes of all houses in another form."""
        raise UsageError("houses of a bank cannot be replaced; allowed: another bank, for example by bank_seed")

    def house(self, index: int) -> House:
        """House number `index`, rebuilt from the tensors, without its furniture. Reads the device."""
        row = self.row(index)
        kinds = row["surface_kinds"].tolist()
        return House(
            scene=self.scene(index),
            **{name: row[name].astype(np.float64) for name in ("joints", "moving", "handles")},
            moving_joint=row["moving_joint"],
            moving_colors=row["moving_colors"],
            surfaces=tuple(
                Surface(Rect(*values[:4]), values[4], SURFACE_KINDS[kind], round(values[5]))
                for values, kind in zip(row["surfaces"].tolist(), kinds, strict=True)
                if kind >= 0
            ),
        )

    @classmethod
    def pack(cls, content: House, tier: str, *details: str) -> dict[str, np.ndarray]:
        limits, graph = house_tier(tier), Graph.of(content.scene)
        if len(content.surfaces) > limits.max_surfaces:
            raise UsageError(f"a house has {len(content.surfaces)} surfaces; allowed: {limits.max_surfaces} or fewer")
        packed = pack_scene(content.scene, graph, limits)
        episodes = draw_house_episodes(content, graph, *details)
        surfaces = np.array([(*surface.area, surface.z, surface.joint) for surface in content.surfaces])
        kinds = np.array([[SURFACE_KINDS.index(surface.kind)] for surface in content.surfaces])
        arrays = {
            "joints": content.joints,
            "moving": content.moving,
            "handles": content.handles,
            "surfaces": padded(surfaces, limits.max_surfaces, (*NOWHERE, 0.0, IN_THE_OPEN)),
            **{name: values for name, values in vars(episodes).items() if values.dtype == np.float64},
            "stand_distances": pack_distances(episodes.stand_distances, limits),
        }
        row = {
            **packed,
            **{name: values.astype(np.float32) for name, values in arrays.items()},
            "moving_joint": content.moving_joint,
            "moving_colors": content.moving_colors,
            "surface_kinds": padded(kinds, limits.max_surfaces, (-1,))[:, 0],
            "object_kinds": episodes.object_kinds,
            "object_joint": episodes.object_joint,
        }
        return with_clear_headings(row, content.scene.seed, *details)


def load_or_generate_houses(
    tier: str,
    split: str = "train",
    num_scenes: int = 64,
    seed: int = 0,
    scenario: str = DEFAULT_SCENARIO,
    folder: Path | None = None,
) -> HouseBank:
    """The generated bank of these arguments, from the cache if it is there."""
    scenario_named(scenario)
    return load_or_generate_bank(HouseBank, tier, split, num_scenes, seed, (scenario,), folder)
