"""`SceneBank`: K scenes and their episodes as padded tensors on one device, shared by any number of streams.

Episodes are drawn in advance, with the distances of all nodes to their goals. Starting an episode is a gather, and the
training loop never waits for the host. A bank is saved as one file. Its scenes can be replaced while simulators use it:

    bank.retire(k)                 # no new episodes in scene k; current episodes continue to their ends
    ...
    if not bank.is_in_use(k):      # true at the latest after the maximum number of steps of an episode
        bank.replace(k, scene)     # writes into the same tensors, so that captured graphs see the new scene

Legend: K scenes, E episodes, G goals, V nodes, Q obstacles, F walls, P parts (boxes that are no walls), M objects,
C categories.
"""

from __future__ import annotations

import logging
import time
import weakref
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.files import replacing
from paceline.sims.navigation.scenes.episodes import draw_episodes
from paceline.sims.navigation.scenes.free_space import CONTACT, SIGHT
from paceline.sims.navigation.scenes.furniture import CATEGORIES
from paceline.sims.navigation.scenes.generator import Tier, generate_scene, is_wall, scene_seeds, tier_named
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.geometry import FAR, NOWHERE, boxed
from paceline.sims.navigation.scenes.objects import Objects
from paceline.sims.navigation.scenes.scene import CEILING, Piece, Rect, Scene

log = logging.getLogger(__name__)

VERSION = 3
"""Version of the file format. Files of other versions are not used."""
SEEDS_VERSION = 1
"""Version of the scenes and episodes that a seed means."""
FORMAT = "paceline-navigation-bank"
_FORMAT_OF_VERSION_1 = "paceline-pointnav-bank"
_GROW = np.array([-1.0, -1.0, 1.0, 1.0])
_LOG_SECONDS = 5.0


class SceneBank:
    """Scenes and episodes. The tensors are attributes:

    footprints      [K, F + P, 4]            boxes that the camera sees, walls first
    heights         [K, P, 2]                of the parts
    colors          uint8 [K, F + P + 2, 3]  of the boxes, the floor and the ceiling
    interior        [K, 4]
    contact         [K, 4 + Q, 4]            centres and half extents of what stops the agent, outer walls first
    sight           [K, Q, 4]                centres and half extents of what hides nodes
    nodes           [K, V, 2]
    node_distances  [K, G, V]
    episodes        [K, E, 6]                see `Episodes.rows`, by ascending distance
    episode_goals   int64 [K, E]
    farthest        [K, G, 3]                x, y and distance of the place farthest from each goal
    objects         [K, M, 4]                footprints of what `Objects` finds
    categories      int64 [K, M]             of the objects; -1 for padding
    box_objects     int64 [K, F + P + 2]     the object of each box, of the floor and of the ceiling; M for none
    object_nodes    [K, C, V]                distance of every node from the nearest object of every category
    object_episodes [K, E, 5]                see `Objects.episodes`
    counts          int64 [K, 4]             of walls, parts, obstacles and nodes
    seeds           int64 [K]
    """

    def __init__(self, tensors: dict[str, Tensor], tier: str, label: str) -> None:
        self.tier, self.label = tier, label
        self.limits = tier_named(tier)
        self._tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.changed = False
        """Whether a scene was replaced, so that `label` no longer describes the content."""
        self.retired = torch.zeros(self.num_scenes, dtype=torch.bool, device=self.device)
        self.open_scenes = torch.arange(self.num_scenes, device=self.device)
        """int64 [K]: the first `num_open` scenes take new episodes."""
        self.num_open = torch.tensor(self.num_scenes, device=self.device)

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.__dict__["_tensors"][name]
        except KeyError:
            raise AttributeError(name) from None

    @classmethod
    def generate(cls, tier: str, split: str = "train", num_scenes: int = 64, seed: int = 0) -> SceneBank:
        """Bank number `seed` of a split, on the host. `bank_cache.load_or_generate` keeps it in a file."""
        seeds = scene_seeds(split, num_scenes, seed)
        scenes = (generate_scene(tier, scene_seed) for scene_seed in seeds)
        return cls.of_scenes(_with_progress(scenes, num_scenes, tier), tier, bank_label(tier, split, num_scenes, seed))

    @classmethod
    def of_scenes(cls, scenes: Iterable[Scene], tier: str, label: str = "custom") -> SceneBank:
        """A bank of any scenes within the limits of a tier."""
        limits = tier_named(tier)
        rows = [_pack(scene, limits) for scene in scenes]
        if not rows:
            raise UsageError("a bank has no scenes; allowed: one or more")
        return cls({name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}, tier, label)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return self._tensors

    @property
    def num_scenes(self) -> int:
        return len(self._tensors["footprints"])

    @property
    def num_episodes(self) -> int:
        """Per scene."""
        return self._tensors["episodes"].shape[1]

    @property
    def device(self) -> torch.device:
        return self._tensors["footprints"].device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def to(self, device: str | torch.device) -> SceneBank:
        """This bank if it is on `device` already, otherwise a copy."""
        if self.device == torch.device(device):
            return self
        moved = SceneBank({name: t.to(device) for name, t in self._tensors.items()}, self.tier, self.label)
        moved.changed = self.changed
        moved._set_retired(self.retired.tolist())
        return moved

    def scene(self, index: int) -> Scene:
        """Scene number `index`, rebuilt from the tensors. Reads the device."""
        row = {name: tensor[index].cpu().numpy() for name, tensor in self._tensors.items()}
        num_walls, num_parts = row["counts"][:2].tolist()
        most = self.limits.max_walls
        boxes = [*range(num_walls), *range(most, most + num_parts)]
        heights = np.concatenate(
            [np.tile(np.array([0.0, CEILING], np.float32), (num_walls, 1)), row["heights"][:num_parts]]
        )
        x0, y0, x1, y1 = map(float, row["interior"])
        floor_color, ceiling_color = row["colors"][-2:].tolist()
        return Scene(
            boxes=np.concatenate([row["footprints"][boxes], heights], 1).astype(np.float64),
            colors=row["colors"][boxes],
            interior=Rect(x0, y0, x1, y1),
            floor_color=tuple(floor_color),
            ceiling_color=tuple(ceiling_color),
            furniture=tuple(
                Piece(CATEGORIES[category], tuple(np.flatnonzero(row["box_objects"][boxes] == number).tolist()))
                for number, category in enumerate(row["categories"].tolist())
                if category >= 0
            ),
            seed=int(row["seeds"]),
        )

    def add_user(self, simulator: Any) -> None:
        """Register a simulator. `replace` reads its `scenes_in_use()`.

        Before a change its `check_scenes(rows)` and `check_open(scenes)` may refuse it. After a change its
        `scenes_changed()` is called.
        """
        self._users.add(simulator)

    def retire(self, index: int) -> None:
        """Begin no new episodes in a scene."""
        retired = self.retired.tolist()
        retired[index] = True
        if all(retired):
            raise UsageError("the last scene of a bank cannot be retired; at least one must remain")
        for user in self._users:
            user.check_open([number for number, gone in enumerate(retired) if not gone])
        self._set_retired(retired)

    def is_in_use(self, index: int) -> bool:
        """Whether streams of any simulator are in a scene. Reads the device."""
        return any(index in user.scenes_in_use() for user in self._users)

    def replace(self, index: int, scene: Scene) -> None:
        """Replace a retired scene, and begin episodes there again."""
        if not bool(self.retired[index]):
            raise UsageError(f"scene {index} of the bank is not retired; allowed: retire({index}), then replace")
        if self.is_in_use(index):
            raise UsageError(
                f"streams are still in scene {index}; allowed: replace it when is_in_use({index}) is False"
            )
        rows = {name: torch.from_numpy(values[None]) for name, values in _pack(scene, self.limits).items()}
        self._check(rows)
        for name, values in rows.items():
            self._tensors[name][index].copy_(values[0])
        self.changed = True
        retired = self.retired.tolist()
        retired[index] = False
        self._set_retired(retired)

    def _check(self, rows: dict[str, Tensor]) -> None:
        """Ask all users about new rows of the tensors."""
        for user in self._users:
            user.check_scenes(rows)

    def _set_retired(self, retired: list[bool]) -> None:
        kept = [index for index, gone in enumerate(retired) if not gone]
        self.retired.copy_(torch.tensor(retired))
        self.open_scenes[: len(kept)].copy_(torch.tensor(kept))
        self.num_open.fill_(len(kept))
        for user in self._users:
            user.scenes_changed()

    def state_dict(self) -> dict[str, Any]:
        """The state beyond the label. It has tensors only if scenes were replaced."""
        tensors = {name: tensor.clone() for name, tensor in self._tensors.items()} if self.changed else {}
        return {"label": self.label, "retired": self.retired.clone(), "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["label"] != self.label or len(state["retired"]) != self.num_scenes:
            raise UsageError(
                f"the state was saved over the scenes {state['label']!r}; allowed: a state over these, {self.label!r}"
            )
        if self.changed and not state["tensors"]:
            raise UsageError("the state was saved before scenes of this bank were replaced; make a new bank")
        if state["tensors"]:
            self._check(state["tensors"])
        for name, values in state["tensors"].items():
            self._tensors[name].copy_(values)
            self.changed = True
        self._set_retired(state["retired"].tolist())

    def save(self, path: str | Path) -> None:
        """Write one file, as a whole or not at all."""
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of a file."""
        tensors = {name: tensor.cpu() for name, tensor in self._tensors.items()}
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "tier": self.tier,
            "label": "custom" if self.changed else self.label,
            "checksum": str(_checksum(tensors)),
        }
        return safetensors.torch.save(tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> SceneBank:
        """Read a file written by `save`, to the host."""
        path = Path(path)
        if not path.is_file():
            raise UsageError(f"there is no scene file {str(path)!r}; allowed: a file written by SceneBank.save")
        try:
            with safetensors.safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise UsageError(f"the scene file {str(path)!r} is damaged ({error}); generate it again") from error
        if metadata.get("format") not in (FORMAT, _FORMAT_OF_VERSION_1):
            raise UsageError(f"{str(path)!r} is no scene file; allowed: a file written by SceneBank.save")
        if metadata.get("version") != str(VERSION):
            raise UsageError(
                f"the scene file {str(path)!r} has version {metadata.get('version')}; allowed: {VERSION}; write it "
                "again by SceneBank.generate(tier, split, num_scenes, seed).save(file), or leave bank_file out"
            )
        if metadata.get("checksum") != str(_checksum(tensors)):
            raise UsageError(f"the scene file {str(path)!r} is damaged (its checksum is wrong); generate it again")
        return cls(tensors, metadata["tier"], metadata["label"])


def bank_label(tier: str, split: str, num_scenes: int, seed: int) -> str:
    """The label of a generated bank, and the begin of its file's name in the cache."""
    return f"{tier}-{split}-{num_scenes}-{seed}-v{SEEDS_VERSION}"


def _pack(scene: Scene, limits: Tier) -> dict[str, np.ndarray]:
    """One scene and its episodes as padded arrays: one row of each tensor of a bank."""
    graph = Graph.of(scene)
    walls = is_wall(scene.boxes)
    counts = (int(walls.sum()), int((~walls).sum()), len(scene.obstacles), len(graph.nodes))
    allowed = (limits.max_walls, limits.max_parts, limits.max_obstacles, limits.max_nodes)
    for name, count, most in zip(("walls", "other boxes", "obstacles", "corners"), counts, allowed, strict=True):
        if count > most:
            raise UsageError(f"a scene has {count} {name}; allowed: {most} or fewer")
    episodes = draw_episodes(scene, graph, limits)
    x0, y0, x1, y1 = scene.interior
    border = [(x0 - 9, y0 - 9, x0, y1 + 9), (x1, y0 - 9, x1 + 9, y1 + 9)]
    border += [(x0 - 9, y0 - 9, x1 + 9, y0), (x0 - 9, y1, x1 + 9, y1 + 9)]
    contact = np.concatenate([np.array(border), scene.obstacles]) + _GROW * CONTACT
    parts = scene.boxes[~walls]
    return {
        "footprints": np.concatenate(
            [
                _padded(scene.boxes[walls, :4], limits.max_walls, NOWHERE),
                _padded(parts[:, :4], limits.max_parts, NOWHERE),
            ]
        ).astype(np.float32),
        "heights": _padded(parts[:, 4:], limits.max_parts, (0.0, 0.0)).astype(np.float32),
        "colors": np.concatenate(
            [
                _padded(scene.colors[walls], limits.max_walls, (0, 0, 0)),
                _padded(scene.colors[~walls], limits.max_parts, (0, 0, 0)),
                [scene.floor_color, scene.ceiling_color],
            ]
        ).astype(np.uint8),
        "interior": np.array(scene.interior, np.float32),
        "contact": _boxed(_padded(contact, 4 + limits.max_obstacles, NOWHERE)),
        "sight": _boxed(_padded(scene.obstacles + _GROW * SIGHT, limits.max_obstacles, NOWHERE)),
        "nodes": _padded(graph.nodes, limits.max_nodes, NOWHERE[:2]).astype(np.float32),
        "node_distances": np.minimum(
            np.pad(episodes.node_distances, ((0, 0), (0, limits.max_nodes - len(graph.nodes))), constant_values=np.inf),
            FAR,
        ).astype(np.float32),
        "episodes": episodes.rows,
        "episode_goals": episodes.goals,
        "farthest": episodes.farthest,
        **_pack_objects(scene, graph, walls, episodes.rows[:, :3], limits),
        "counts": np.array(counts),
        "seeds": np.array(scene.seed),
    }


def _pack_objects(
    scene: Scene, graph: Graph, walls: np.ndarray, starts: np.ndarray, limits: Tier
) -> dict[str, np.ndarray]:
    """The part of `_pack` about objects. There are no more of them than parts."""
    objects, most = Objects.of(scene), limits.max_parts
    if len(objects.categories) > most:
        raise UsageError(f"a scene has {len(objects.categories)} pieces of furniture; allowed: {most} or fewer")
    of_boxes = np.where(objects.of_boxes < len(objects.categories), objects.of_boxes, most)[:, None]
    box_objects = [_padded(of_boxes[walls], limits.max_walls, (most,)), _padded(of_boxes[~walls], most + 2, (most,))]
    nodes = np.full((len(CATEGORIES), limits.max_nodes), FAR)
    nodes[:, : len(graph.nodes)] = np.minimum(objects.by_category(graph.to_rects(objects.footprints)), FAR).T
    return {
        "objects": _padded(objects.footprints, most, NOWHERE).astype(np.float32),
        "categories": _padded(objects.categories[:, None], most, (-1,))[:, 0],
        "box_objects": np.concatenate(box_objects)[:, 0],
        "object_nodes": nodes.astype(np.float32),
        "object_episodes": objects.episodes(scene, graph, starts, len(starts)),
    }


def _padded(rows: np.ndarray, length: int, filler: Sequence[float]) -> np.ndarray:
    padding = np.tile(np.array(filler, rows.dtype), (length - len(rows), 1))
    return np.concatenate([rows, padding])


def _boxed(rects: np.ndarray) -> np.ndarray:
    return boxed(torch.from_numpy(rects)).float().numpy()


def _checksum(tensors: dict[str, Tensor]) -> int:
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].numpy().tobytes(), zlib.crc32(name.encode(), checksum))
    return checksum


def _with_progress(scenes: Iterable[Scene], count: int, tier: str) -> Iterable[Scene]:
    last = time.monotonic()
    for index, scene in enumerate(scenes):
        if time.monotonic() - last > _LOG_SECONDS:
            log.info("navigation: %d of %d %s scenes generated", index, count, tier)
            last = time.monotonic()
        yield scene
