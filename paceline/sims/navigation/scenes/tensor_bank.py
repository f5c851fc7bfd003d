"""`TensorBank`: K scenes as padded tensors on one device, shared by any number of streams, and saved as one file.

Scenes can be replaced while simulators use them:

    bank.retire(k)                 # no new episodes in scene k; current episodes continue to their ends
    ...
    if not bank.is_in_use(k):      # true at the latest after the maximum number of steps of an episode
        bank.replace(k, scene)     # writes into the same tensors, so that captured graphs see the new scene

Legend: K scenes, V nodes, Q obstacles, F walls, P parts (boxes that are no walls).
"""

from __future__ import annotations

import abc
import logging
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.files import replacing
from paceline.sims.navigation.scenes.free_space import Growths
from paceline.sims.navigation.scenes.generator import SceneLimits, is_wall
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.geometry import FAR, NOWHERE, boxed
from paceline.sims.navigation.scenes.scene import CEILING, Rect, Scene

log = logging.getLogger(__name__)

_GROW = np.array([-1.0, -1.0, 1.0, 1.0])
_LOG_SECONDS = 5.0

Content = TypeVar("Content")
"""What a bank is made of: scenes, or houses."""


class TensorBank(abc.ABC, Generic[Content]):
    """Scenes as tensors, which are attributes. All banks have these; see `pack_scene`:

    footprints  [K, F + P, 4]            boxes that the camera sees, walls first
    heights     [K, P, 2]                of the parts
    colors      uint8 [K, F + P + 2, 3]  of the boxes, the floor and the ceiling
    interior    [K, 4]
    contact     [K, 4 + Q, 4]            centres and half extents of what stops the agent, outer walls first
    sight       [K, Q, 4]                centres and half extents of what hides nodes
    nodes       [K, V, 2]
    counts      int64 [K, 4]             of walls, parts, obstacles and nodes
    seeds       int64 [K]
    """

    FORMAT: ClassVar[str]
    """Identifies a file."""
    VERSION: ClassVar[int]
    """Version of the file format. Files of other versions are not used."""
    SEEDS_VERSION: ClassVar[int]
    """Version of the scenes and episodes that a seed means."""
    OLD_FORMATS: ClassVar[tuple[str, ...]] = ()
    """Formats of earlier versions."""
    SIMULATOR: ClassVar[str]
    """The name of the simulator, in messages and of the cache's folder."""
    WORTH_A_WORKER: ClassVar[Mapping[str, int]]
    """Least number of scenes for each process that makes them, by tier. It takes seconds to start, in which it could
    make as many."""
    DETAILS: ClassVar[tuple[str, ...]] = ()
    """The names of `details`."""

    def __init__(self, tensors: dict[str, Tensor], tier: str, label: str, details: Sequence[str] = ()) -> None:
        self.tier, self.label = tier, label
        self.details = tuple(details)
        """Further arguments of `pack`."""
        self.limits = self.limits_of(tier)
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
    @abc.abstractmethod
    def limits_of(cls, tier: str) -> SceneLimits:
        """The limits of a tier."""

    @classmethod
    @abc.abstractmethod
    def make(cls, tier: str, seed: int) -> Content:
        """The scene of a seed."""

    @classmethod
    @abc.abstractmethod
    def pack(cls, content: Content, tier: str, *details: str) -> dict[str, np.ndarray]:
        """One scene and its episodes as padded arrays: one row of each tensor."""

    @classmethod
    def of_scenes(
        cls, scenes: Iterable[Content], tier: str, label: str = "custom", details: Sequence[str] = ()
    ) -> Self:
        """A bank of any scenes within the limits of a tier."""
        cls.limits_of(tier)  # refuses unknown tiers
        rows = [cls.pack(scene, tier, *details) for scene in scenes]
        if not rows:
            raise UsageError("a bank has no scenes; allowed: one or more")
        tensors = {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}
        return cls(tensors, tier, label, details)

    @classmethod
    def of_seeds(cls, seeds: Iterable[int], tier: str, label: str = "custom", details: Sequence[str] = ()) -> Self:
        """A bank of generated scenes."""
        return cls.of_scenes((cls.make(tier, seed) for seed in seeds), tier, label, details)

    @classmethod
    def label_of(cls, tier: str, split: str, num_scenes: int, seed: int, details: Sequence[str] = ()) -> str:
        """The label of a generated bank, and the begin of its file's name in the cache."""
        return "-".join((tier, *details, split, str(num_scenes), str(seed), f"v{cls.SEEDS_VERSION}"))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return self._tensors

    @property
    def num_scenes(self) -> int:
        return len(self._tensors["footprints"])

    @property
    def device(self) -> torch.device:
        return self._tensors["footprints"].device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def to(self, device: str | torch.device) -> Self:
        """This bank if it is on `device` already, otherwise a copy."""
        if self.device == torch.device(device):
            return self
        tensors = {name: tensor.to(device) for name, tensor in self._tensors.items()}
        moved = type(self)(tensors, self.tier, self.label, self.details)
        moved.changed = self.changed
        moved._set_retired(self.retired.tolist())
        return moved

    def scene(self, index: int) -> Scene:
        """Scene number `index`, rebuilt from the tensors, without its furniture. Reads the device."""
        row = self.row(index)
        boxes, num_walls = self.boxes_of(row), int(row["counts"][0])
        heights = np.tile(np.array([0.0, CEILING], np.float32), (num_walls, 1))
        heights = np.concatenate([heights, row["heights"][: len(boxes) - num_walls]])
        x0, y0, x1, y1 = map(float, row["interior"])
        floor_color, ceiling_color = row["colors"][-2:].tolist()
        return Scene(
            boxes=np.concatenate([row["footprints"][boxes], heights], 1).astype(np.float64),
            colors=row["colors"][boxes],
            interior=Rect(x0, y0, x1, y1),
            floor_color=tuple(floor_color),
            ceiling_color=tuple(ceiling_color),
            radius=self.limits.radius,
            seed=int(row["seeds"]),
        )

    def row(self, index: int) -> dict[str, np.ndarray]:
        """What the tensors have about one scene, on the host."""
        return {name: tensor[index].cpu().numpy() for name, tensor in self._tensors.items()}

    def boxes_of(self, row: dict[str, np.ndarray]) -> list[int]:
        """The numbers of a scene's boxes in `footprints`, without padding."""
        num_walls, num_parts = row["counts"][:2].tolist()
        most = self.limits.max_walls
        return [*range(num_walls), *range(most, most + num_parts)]

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

    def replace(self, index: int, scene: Content) -> None:
        """Replace a retired scene, and begin episodes there again."""
        if not bool(self.retired[index]):
            raise UsageError(f"scene {index} of the bank is not retired; allowed: retire({index}), then replace")
        if self.is_in_use(index):
            raise UsageError(
                f"streams are still in scene {index}; allowed: replace it when is_in_use({index}) is False"
            )
        packed = self.pack(scene, self.tier, *self.details)
        rows = {name: torch.from_numpy(values[None]) for name, values in packed.items()}
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
            "format": self.FORMAT,
            "version": str(self.VERSION),
            "tier": self.tier,
            "label": "custom" if self.changed else self.label,
            "checksum": str(checksum(tensors)),
            **dict(zip(self.DETAILS, self.details, strict=True)),
        }
        return safetensors.torch.save(tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by `save`, to the host."""
        path = Path(path)
        if not path.is_file():
            raise UsageError(f"there is no scene file {str(path)!r}; allowed: a file written by {cls.__name__}.save")
        try:
            with safetensors.safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise UsageError(f"the scene file {str(path)!r} is damaged ({error}); generate it again") from error
        if metadata.get("format") not in (cls.FORMAT, *cls.OLD_FORMATS):
            raise UsageError(f"{str(path)!r} is no scene file; allowed: a file written by {cls.__name__}.save")
        if metadata.get("version") != str(cls.VERSION):
            raise UsageError(
                f"the scene file {str(path)!r} has version {metadata.get('version')}; allowed: {cls.VERSION}; write "
                f"it again by {cls.__name__}.generate(tier, split, num_scenes, seed).save(file), or leave bank_file out"
            )
        if metadata.get("checksum") != str(checksum(tensors)):
            raise UsageError(f"the scene file {str(path)!r} is damaged (its checksum is wrong); generate it again")
        return cls(tensors, metadata["tier"], metadata["label"], [metadata[name] for name in cls.DETAILS])


def pack_scene(scene: Scene, graph: Graph, limits: SceneLimits) -> dict[str, np.ndarray]:
    """One scene as padded arrays: one row of the tensors that all banks have."""
    if scene.radius != limits.radius:
        raise UsageError(f"a scene is for an agent of radius {scene.radius:g} m; allowed: {limits.radius:g} m")
    walls = is_wall(scene.boxes)
    counts = (int(walls.sum()), int((~walls).sum()), len(scene.obstacles), len(graph.nodes))
    allowed = (limits.max_walls, limits.max_parts, limits.max_obstacles, limits.max_nodes)
    for name, count, most in zip(("walls", "other boxes", "obstacles", "corners"), counts, allowed, strict=True):
        if count > most:
            raise UsageError(f"a scene has {count} {name}; allowed: {most} or fewer")
    growths = Growths.of(scene.radius)
    x0, y0, x1, y1 = scene.interior
    border = [(x0 - 9, y0 - 9, x0, y1 + 9), (x1, y0 - 9, x1 + 9, y1 + 9)]
    border += [(x0 - 9, y0 - 9, x1 + 9, y0), (x0 - 9, y1, x1 + 9, y1 + 9)]
    contact = np.concatenate([np.array(border), scene.obstacles]) + _GROW * growths.contact
    parts = scene.boxes[~walls]
    return {
        "footprints": np.concatenate(
            [
                padded(scene.boxes[walls, :4], limits.max_walls, NOWHERE),
                padded(parts[:, :4], limits.max_parts, NOWHERE),
            ]
        ).astype(np.float32),
        "heights": padded(parts[:, 4:], limits.max_parts, (0.0, 0.0)).astype(np.float32),
        "colors": np.concatenate(
            [
                padded(scene.colors[walls], limits.max_walls, (0, 0, 0)),
                padded(scene.colors[~walls], limits.max_parts, (0, 0, 0)),
                [scene.floor_color, scene.ceiling_color],
            ]
        ).astype(np.uint8),
        "interior": np.array(scene.interior, np.float32),
        "contact": _boxed(padded(contact, 4 + limits.max_obstacles, NOWHERE)),
        "sight": _boxed(padded(scene.obstacles + _GROW * growths.sight, limits.max_obstacles, NOWHERE)),
        "nodes": padded(graph.nodes, limits.max_nodes, NOWHERE[:2]).astype(np.float32),
        "counts": np.array(counts),
        "seeds": np.array(scene.seed),
    }


def pack_distances(to_goals: np.ndarray, limits: SceneLimits) -> np.ndarray:
    """float32 [G, V]: the distances of every node from some goals, from those of all nodes but padding [G, nodes]."""
    missing = limits.max_nodes - to_goals.shape[1]
    return np.minimum(np.pad(to_goals, ((0, 0), (0, missing)), constant_values=np.inf), FAR).astype(np.float32)


def padded(rows: np.ndarray, length: int, filler: Sequence[float]) -> np.ndarray:
    """`rows` [R, C], and copies of `filler` up to `length` rows."""
    padding = np.tile(np.array(filler, rows.dtype), (length - len(rows), 1))
    return np.concatenate([rows, padding])


def _boxed(rects: np.ndarray) -> np.ndarray:
    return boxed(torch.from_numpy(rects)).float().numpy()


def checksum(tensors: dict[str, Tensor]) -> int:
    """Of names and values."""
    result = 0
    for name in sorted(tensors):
        result = zlib.crc32(tensors[name].numpy().tobytes(), zlib.crc32(name.encode(), result))
    return result


def with_progress(seeds: Iterable[int], count: int, about: str) -> Iterable[int]:
    """`seeds`, with a message every few seconds."""
    last = time.monotonic()
    for index, seed in enumerate(seeds):
        if time.monotonic() - last > _LOG_SECONDS:
            log.info("%s: %d of %d scenes generated", about, index, count)
            last = time.monotonic()
        yield seed
