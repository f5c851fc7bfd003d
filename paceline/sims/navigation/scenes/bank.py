"""`SceneBank`: K scenes and their episodes as padded tensors on one device, shared by any number of streams.

Episodes are drawn in advance, with the distances of all nodes to their goals. Starting an episode is a gather, and the
training loop never waits for the host.

Legend: K scenes, E episodes, G goals, V nodes, F walls, P parts (boxes that are no walls), M objects, C categories.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.episodes import draw_episodes
from paceline.sims.navigation.scenes.furniture import CATEGORIES
from paceline.sims.navigation.scenes.generator import Tier, generate_scene, is_wall, scene_seeds, tier_named
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.geometry import FAR, NOWHERE
from paceline.sims.navigation.scenes.objects import Objects
from paceline.sims.navigation.scenes.scene import Piece, Scene
from paceline.sims.navigation.scenes.tensor_bank import TensorBank, pack_distances, pack_scene, padded, with_progress


class SceneBank(TensorBank[Scene]):
    """Scenes and episodes. These tensors are attributes, beside those of `TensorBank`:

    node_distances  [K, G, V]
    episodes        [K, E, 6]                see `Episodes.rows`, by ascending distance
    episode_goals   int64 [K, E]
    farthest        [K, G, 3]                x, y and distance of the place farthest from each goal
    objects         [K, M, 4]                footprints of what `Objects` finds
    categories      int64 [K, M]             of the objects; -1 for padding
    box_objects     int64 [K, F + P + 2]     the object of each box, of the floor and of the ceiling; M for none
    object_nodes    [K, C, V]                distance of every node from the nearest object of every category
    object_episodes [K, E, 5]                see `Objects.episodes`
    """

    FORMAT: ClassVar = "paceline-navigation-bank"
    VERSION: ClassVar = 3
    SEEDS_VERSION: ClassVar = 1
    OLD_FORMATS: ClassVar = ("paceline-pointnav-bank",)
    SIMULATOR: ClassVar = "navigation"
    WORTH_A_WORKER: ClassVar = {"small": 128, "full": 16}

    limits: Tier

    @classmethod
    def limits_of(cls, tier: str) -> Tier:
        return tier_named(tier)

    @classmethod
    def make(cls, tier: str, seed: int) -> Scene:
        return generate_scene(tier, seed)

    @classmethod
    def generate(cls, tier: str, split: str = "train", num_scenes: int = 64, seed: int = 0) -> SceneBank:
        """Bank number `seed` of a split, on the host. `bank_cache.load_or_generate` keeps it in a file."""
        seeds = with_progress(scene_seeds(split, num_scenes, seed), num_scenes, f"navigation, {tier}")
        return cls.of_seeds(seeds, tier, cls.label_of(tier, split, num_scenes, seed))

    @property
    def num_episodes(self) -> int:
        """Per scene."""
        return self._tensors["episodes"].shape[1]

    def scene(self, index: int) -> Scene:
        """Scene number `index`, rebuilt from the tensors. Reads the device."""
        row = self.row(index)
        of_boxes = row["box_objects"][self.boxes_of(row)]
        furniture = tuple(
            Piece(CATEGORIES[category], tuple(np.flatnonzero(of_boxes == number).tolist()))
            for number, category in enumerate(row["categories"].tolist())
            if category >= 0
        )
        return replace(super().scene(index), furniture=furniture)

    @classmethod
    def pack(cls, content: Scene, tier: str, *details: str) -> dict[str, np.ndarray]:
        limits, graph = tier_named(tier), Graph.of(content)
        packed = pack_scene(content, graph, limits)
        episodes = draw_episodes(content, graph, limits)
        return {
            **packed,
            "node_distances": pack_distances(episodes.node_distances, limits),
            "episodes": episodes.rows,
            "episode_goals": episodes.goals,
            "farthest": episodes.farthest,
            **_pack_objects(content, graph, episodes.rows[:, :3], limits),
        }


def _pack_objects(scene: Scene, graph: Graph, starts: np.ndarray, limits: Tier) -> dict[str, np.ndarray]:
    """The part of `SceneBank.pack` about objects. There are no more of them than parts."""
    objects, walls, most = Objects.of(scene), is_wall(scene.boxes), limits.max_parts
    if len(objects.categories) > most:
        raise UsageError(f"a scene has {len(objects.categories)} pieces of furniture; allowed: {most} or fewer")
    of_boxes = np.where(objects.of_boxes < len(objects.categories), objects.of_boxes, most)[:, None]
    box_objects = [padded(of_boxes[walls], limits.max_walls, (most,)), padded(of_boxes[~walls], most + 2, (most,))]
    nodes = np.full((len(CATEGORIES), limits.max_nodes), FAR)
    nodes[:, : len(graph.nodes)] = np.minimum(objects.by_category(graph.to_rects(objects.footprints)), FAR).T
    return {
        "objects": padded(objects.footprints, most, NOWHERE).astype(np.float32),
        "categories": padded(objects.categories[:, None], most, (-1,))[:, 0],
        "box_objects": np.concatenate(box_objects)[:, 0],
        "object_nodes": nodes.astype(np.float32),
        "object_episodes": objects.episodes(scene, graph, starts, len(starts)),
    }
