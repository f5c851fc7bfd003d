"""Headings of starts: towards the target, with noise. Neither the resting arm nor what it carries hits anything.

Legend: E episodes, T objects with goals, P starts, J joints, O objects, R poses, V states of doors and drawers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.sims.rearrangement.config import DRAWER_STARTS, FRIDGE_STARTS, WITH_OPEN_FRIDGE
from paceline.sims.rearrangement.objects import HALF_EXTENTS
from paceline.sims.rearrangement.physics.contact import depths
from paceline.sims.rearrangement.physics.world import FRIDGE, NOTHING, NUM_JOINTS, arm_of, in_drawers, resting_state
from paceline.sims.rearrangement.surroundings import static_boxes, world_of

NOISE, LARGEST_NOISE = 0.52, 1.0
"""Standard deviation of the noise of headings, and its largest value, in radians."""
TURNS = (1.0, 0.5, 0.0, -0.5, -1.0)
"""Shares of the noise that are tried, in this order."""
LAST_TURNS = (0.8, -0.8, 1.6, -1.6, 2.4, -2.4, np.pi)
"""Turns that are tried after these. It is better to face elsewhere than to start inside something."""
STAND_TURNS = (0.0, 0.3, -0.3, 0.6, -0.6, 0.9, -0.9, 1.2, -1.2, 1.6, -1.6)
"""Turns of stands that are tried, in this order."""
CARRIED = (0.1, 0.1, 0.14)
"""Half extents of what robots carry anywhere: as large as any object."""


def with_clear_headings(packed: Mapping[str, np.ndarray], seed: int, scenario: str) -> dict[str, np.ndarray]:
    """The row of a bank with other headings of its starts and stands.

    A start without a clear heading is replaced by another of the same target, if that has one.
    """
    rng = np.random.default_rng((13, seed + 1))
    house = _House(packed)
    num_targets = packed["goals"].shape[1]
    episodes = np.arange(len(packed["objects"]))[:, None, None]
    inside = packed["object_joint"][:, :num_targets, None]
    carried = np.arange(num_targets)[None, :, None]

    def cleared(starts: np.ndarray, joints: Any, held: Any, turns: Sequence[np.ndarray | float]) -> np.ndarray:
        """`starts` [E, T, P, 3] of robots that hold the objects `held`, with the `joints` of their targets open."""
        shape = starts.shape[:3]
        values = _opened(packed, np.broadcast_to(joints, shape), scenario in WITH_OPEN_FRIDGE)
        check = _Check(house, _flat(episodes, shape), [values], _flat(held, shape))
        return _cleared(starts.reshape(-1, shape[2], 3), check, turns).reshape(starts.shape)

    objects, goals = packed["object_starts"], packed["goal_starts"]
    at_objects, at_goals = np.split(packed["stands"][:, :, None], 2, 1)
    stands = (cleared(at_objects, inside, NOTHING, STAND_TURNS), cleared(at_goals, NOTHING, carried, STAND_TURNS))
    return {
        **packed,
        "object_starts": cleared(objects, inside, NOTHING, _noises(rng, objects)),
        "goal_starts": cleared(goals, NOTHING, carried, _noises(rng, goals)),
        "stands": np.concatenate(stands, 1)[:, :, 0],
        "far_starts": _cleared_far(rng, house, packed),
        "joint_starts": np.stack([_before_handle(rng, house, packed, joint) for joint in range(NUM_JOINTS)]),
    }


def _cleared_far(rng: np.random.Generator, house: _House, packed: Mapping[str, np.ndarray]) -> np.ndarray:
    """[E, P, 3]: starts anywhere, clear with everything closed, with everything open, and with the fridge half open."""
    far = packed["far_starts"]
    num = far.shape[0] * far.shape[1]
    episodes = _flat(np.arange(len(far))[:, None], far.shape[:2])
    limits = np.tile(packed["joints"][:, 5], (num, 1))
    values = [0.0 * limits, limits, *(_values_of(FRIDGE, value, num) for value in FRIDGE_STARTS)]
    turns = [*(rng.uniform(-np.pi, np.pi, num) for _ in range(5)), *LAST_TURNS]
    return _cleared(far, _Check(house, episodes, values, None), turns)


class _House:
    """One house, for any number of robots."""

    def __init__(self, packed: Mapping[str, np.ndarray]) -> None:
        tensors = {name: torch.from_numpy(values[None]) for name, values in packed.items()}
        self._rows: Any = SimpleNamespace(**tensors)
        """The tensors of a bank as attributes."""
        self._static = static_boxes(self._rows)

    def depths(self, episodes: Tensor, poses: Tensor, values: Tensor, carried: Tensor | None) -> Tensor:
        """[R]: how deep robots at `poses` [R, 3] are in other things.

        `carried` (int64 [R]) is an object of the episode, or -1. None: a large one that is nowhere else.
        """
        scenes = torch.zeros_like(episodes)
        rows = self._rows
        kinds, inside = rows.object_kinds[0, episodes], rows.object_joint[0, episodes]
        extents = torch.tensor(HALF_EXTENTS)[kinds]
        objects = in_drawers(rows.joints[scenes], rows.objects[0, episodes], inside, values)
        if carried is None:
            carried = torch.full_like(episodes, kinds.shape[1])
            extents = torch.cat((extents, torch.tensor(CARRIED).expand(len(extents), 1, 3)), 1)
            objects = torch.cat((objects, torch.zeros_like(objects[:, :1])), 1)
            inside = torch.cat((inside, torch.full_like(inside[:, :1], NOTHING)), 1)
        world = world_of(rows, self._static, scenes, extents)
        state = resting_state(world, poses, values, objects, inside, carried)
        return depths(world, state, arm_of(state))


class _Check:
    """Tells whether robots at the starts of one kind, which are the rows of this, touch anything."""

    def __init__(
        self, house: _House, episodes: np.ndarray, values: Sequence[np.ndarray], carried: np.ndarray | None
    ) -> None:
        """`values` are one or more possible states of doors and drawers, [R, J] each."""
        self._house, self._episodes = house, torch.from_numpy(episodes)
        self._values = torch.from_numpy(np.stack(values)).float()
        """[V, R, J]."""
        self._carried = None if carried is None else torch.from_numpy(carried)

    def __call__(self, rows: np.ndarray, poses: np.ndarray) -> np.ndarray:
        """bool: whether the robots of `rows` at `poses` are clear."""
        values = self._values[:, rows]
        num = len(values)
        carried = None if self._carried is None else self._carried[rows].repeat(num)
        places = torch.from_numpy(poses).float().repeat(num, 1)
        found = self._house.depths(self._episodes[rows].repeat(num), places, values.flatten(0, 1), carried)
        return (found <= 0.0).view(num, -1).all(0).numpy()


def _noises(rng: np.random.Generator, starts: np.ndarray) -> list[np.ndarray | float]:
    """Turns to try, [R] each or one for all: shares of the noise of each start, and then others."""
    noise = np.clip(rng.normal(0.0, NOISE, starts[..., 0].size), -LARGEST_NOISE, LARGEST_NOISE)
    return [*(share * noise for share in TURNS), *LAST_TURNS]


def _cleared(starts: np.ndarray, check: _Check, turns: Sequence[np.ndarray | float]) -> np.ndarray:
    """[G, P, 3]: `starts`, turned by the first of `turns` that is clear."""
    flat = starts.reshape(-1, 3).copy()
    is_clear = np.zeros(len(flat), bool)
    for turn in turns:
        rows = np.flatnonzero(~is_clear)
        if not len(rows):
            break
        poses = starts.reshape(-1, 3)[rows].copy()
        poses[:, 2] += np.broadcast_to(turn, len(flat))[rows]
        found = check(rows, poses)
        flat[rows[found]], is_clear[rows[found]] = poses[found], True
    return _filled(flat.reshape(starts.shape), is_clear.reshape(starts.shape[:2])).astype(np.float32)


def _before_handle(rng: np.random.Generator, house: _House, packed: Mapping[str, np.ndarray], joint: int) -> np.ndarray:
    """[P, 3]: the starts in front of a handle, clear while its door or drawer is closed and while it is open."""
    starts = packed["joint_starts"][joint]
    num = len(starts)
    values = (0.0, packed["joints"][joint, 5], *(FRIDGE_STARTS if joint == FRIDGE else DRAWER_STARTS))
    check = _Check(
        house,
        np.zeros(num, np.int64),
        [_values_of(joint, value, num) for value in values],
        np.full(num, NOTHING),
    )
    return _cleared(starts[None], check, _noises(rng, starts))[0]


def _values_of(joint: int, value: float, num: int) -> np.ndarray:
    """[R, J]: one door or drawer is open by `value`."""
    values = np.zeros((num, NUM_JOINTS))
    values[:, joint] = value
    return values


def _filled(starts: np.ndarray, is_clear: np.ndarray) -> np.ndarray:
    """[G, P, 3]: starts that are not clear are replaced by clear ones of their group, in turn."""
    result = starts.copy()
    for group in np.flatnonzero(~is_clear.all(1) & is_clear.any(1)):
        good = np.flatnonzero(is_clear[group])
        bad = np.flatnonzero(~is_clear[group])
        result[group, bad] = starts[group, good[np.arange(len(bad)) % len(good)]]
    return result


def _opened(packed: Mapping[str, np.ndarray], joints: np.ndarray, has_open_fridge: bool) -> np.ndarray:
    """[R, J]: the values at which `joints` are open and others closed, but for the fridge."""
    every = np.arange(NUM_JOINTS)
    is_open = (joints.reshape(-1, 1) == every) | (has_open_fridge & (every == FRIDGE))
    return np.where(is_open, packed["joints"][:, 5], 0.0)


def _flat(values: np.ndarray | int, shape: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(values, shape)).reshape(-1).astype(np.int64)
