"""A bank of the user's floor plans."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.plans.check import LARGEST_TIER, fitting_tier, free_cells, sound_scene
from paceline.sims.navigation.plans.reading import Problem, plan_files
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.bank_cache import load_or_make
from paceline.sims.navigation.scenes.generator import TIERS
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.scene import Scene

_VERSION = 2
"""Version of the scenes that the content of plans means."""
_INSIDE = 1e-4
"""How far from the obstacles corners are measured, so that they see along walls."""


def plan_bank(path: str | Path) -> SceneBank:
    """The plans of a file or folder, in the smallest tier that holds them. The label depends on their content."""
    files = plan_files(path)
    scenes = [sound_scene(file) for file in files]
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    label = f"plans-{digest[:12]}-v{_VERSION}"
    return load_or_make(SceneBank, label, f"preparing the floor plans of {path}", lambda: _make(files, scenes, label))


def _make(files: Sequence[Path], scenes: Sequence[Scene], label: str) -> SceneBank:
    tier, banks = tier_of(scenes), []
    for file, scene in zip(files, scenes, strict=True):
        try:
            banks.append(SceneBank.of_scenes([scene], tier))
        except UsageError as error:
            raise UsageError(f"floor plan {str(file)!r}: {error}") from error
    tensors = {name: torch.cat([bank.tensors[name] for bank in banks]) for name in banks[0].tensors}
    return SceneBank(tensors, tier, label)


def check_episodes(scene: Scene) -> list[Problem]:
    """The problem that no episodes can be drawn in a scene, if so."""
    try:
        SceneBank.of_scenes([scene], tier_of([scene]))
    except UsageError as error:
        return [Problem("", str(error))]
    return []


def tier_of(scenes: Sequence[Scene]) -> str:
    """The smallest tier that holds the boxes of all scenes, and episodes between their farthest places."""
    fitting = {fitting_tier(scene) for scene in scenes}
    small = min(TIERS, key=lambda name: TIERS[name].max_distance)
    is_small = fitting == {small} and max(map(longest_path, scenes)) <= TIERS[small].max_distance
    return small if is_small else LARGEST_TIER


def longest_path(scene: Scene) -> float:
    """The longest of the shortest paths between two corners of the free floor."""
    corners = _corners(scene)
    distances = Graph.of(scene).between_points(corners, corners)
    return float(distances[np.isfinite(distances)].max(initial=0.0))


def _corners(scene: Scene) -> np.ndarray:
    """[P, 2]: places in the corners of the free floor, where just one of four cells is free."""
    cells = free_cells(scene)
    free = np.pad(cells.free, 1)
    found = []
    for i, j in np.ndindex(len(cells.xs), len(cells.ys)):
        around = free[i : i + 2, j : j + 2]
        if around.sum() == 1:
            ((right, up),) = np.argwhere(around)
            found.append((cells.xs[i] + _INSIDE * (2 * right - 1), cells.ys[j] + _INSIDE * (2 * up - 1)))
    return np.array(found).reshape(-1, 2)
