"""`TrainedPolicy`: a trained policy that acts outside of Paceline's pools, for one observation or for many.

Legend: B observations of a batch, D numbers of recurrent state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.distributed.config import require_device
from paceline.errors import UsageError
from paceline.evaluation.player import Playable
from paceline.evaluation.saved import SavedRun
from paceline.keywords import keywords_in_messages
from paceline.own_code import give
from paceline.pool.finite_values import all_finite, describe, first_bad
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import Leaf, own_values


@keywords_in_messages
def load(
    folder: str | Path,
    checkpoint: str = "latest",
    *,
    policy: int | str | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    parts: Iterable[Any] = (),
    trust: bool = False,
) -> TrainedPolicy:
    """The policy of the run in `folder`. The simulator need not be installed.

    `checkpoint` is latest, best or step_N. Where the run has several policies, `policy` is the number of one, K@STEP
    for a past self, or None for the best one. `device` is cpu, cuda, cuda:N, or auto: a GPU if there is one. `seed` is
    for sampled actions. `parts` are classes of your own that the run has and that cannot be imported, such as those of
    a notebook. With `trust`, classes that the run names are imported even if another user wrote the folder.
    """
    for part in parts:
        give(part)
    run = SavedRun.load(Path(folder), checkpoint, policy=None if policy is None else str(policy), trust=trust)
    spec = run.spec()
    return TrainedPolicy(run.policy(spec, _device(str(device))), spec, seed=seed, run=run)


def _device(name: str) -> torch.device:
    require_device(name)
    available = torch.cuda.is_available()
    if name.startswith("cuda") and not available:
        raise UsageError(f"device {name}: PyTorch finds no CUDA device on this machine; allowed: cpu, auto")
    return torch.device(("cuda" if available else "cpu") if name == "auto" else name)


class TrainedPolicy:
    """A trained policy. It keeps no state between two calls of `predict`."""

    def __init__(self, network: Any, spec: PoolSpec, *, seed: int = 0, run: SavedRun | None = None) -> None:
        self.network = network
        """The PyTorch module."""
        self.observation_space: spaces.Space = spec.observation_space
        self.action_space: spaces.Space = spec.action_space
        self.run = run
        """The run that it comes from."""
        self._playable: Playable = network
        self.obs = spec.obs
        """The arrays of an observation."""
        self._actions = spec.actions
        self.device = next(network.parameters()).device
        self._generator = torch.Generator(self.device).manual_seed(seed)

    @torch.no_grad()
    def predict(
        self,
        observation: Any,
        state: Tensor | np.ndarray | None = None,
        *,
        deterministic: bool = True,
        episode_start: Any = None,
    ) -> tuple[Any, Tensor | None]:
        """The action for an observation, or for a batch of them, and the recurrent state for the next call.

        An observation looks as the environment returns it; in a batch, every array has one dimension more, in front.
        Actions look as the environment takes them. They are the most likely ones, or sampled if not `deterministic`.
        `state` is what the last call returned, and None at the start of an episode. `episode_start` (bool, or [B])
        forgets the state where an episode begins. A policy without memory returns None as its state.
        """
        obs, count = self._tensors(observation)
        before = self._state(state, 1 if count is None else count)
        if episode_start is not None:
            before = before.masked_fill(self._starts(episode_start, len(before))[:, None], 0.0)
        generator = None if deterministic else self._generator
        actions, after = self._playable.play(obs, before, generator)
        arrays = {name: values.cpu().numpy() for name, values in actions.items()}
        if count is None:
            arrays = {name: values[0] for name, values in arrays.items()}
        chosen = _nested(self.action_space, (), {leaf.path: leaf for leaf in self._actions}, arrays)
        return chosen, (after if after.shape[1] else None)

    def _state(self, state: Any, count: int) -> Tensor:
        fresh = self._playable.initial_state(count).to(self.device)
        if state is None:
            return fresh
        refusal = f"state is a {type(state).__name__}; allowed: what predict returns, or None"
        given = _as_tensor(state, fresh.dtype, refusal)
        if given.shape != fresh.shape:
            raise UsageError(
                f"the state has shape {tuple(given.shape)}; {count} observations need {tuple(fresh.shape)}, or None"
            )
        return given.to(self.device)

    def _starts(self, episode_start: Any, count: int) -> Tensor:
        """Which of `count` rows begin an episode."""
        allowed = f"allowed: True, False, or {count} of them, one for each observation"
        starts = _as_tensor(episode_start, torch.bool, f"episode_start is {episode_start!r:.40}; {allowed}")
        if starts.shape not in ((), (1,), (count,)):
            raise UsageError(f"episode_start has shape {tuple(starts.shape)}; {allowed}")
        return starts.to(self.device).expand(count)

    def _tensors(self, observation: Any) -> tuple[dict[str, Tensor], int | None]:
        """The leaves of an observation [B, ...], and B; None for a single observation, which is a batch of one."""
        arrays = {leaf.name: _array_of(observation, leaf) for leaf in self.obs}
        counts = {leaf.name: _batch_of(arrays[leaf.name], leaf) for leaf in self.obs}
        if len(set(counts.values())) > 1:
            raise UsageError(f"the entries of the observation have different numbers of rows: {counts}")
        count = next(iter(counts.values()))
        tensors = {}
        for leaf in self.obs:
            values = _canonical(arrays[leaf.name], leaf)
            tensors[leaf.name] = torch.tensor(values if count is not None else values[None], device=self.device)
        return tensors, count


def _as_tensor(values: Any, dtype: torch.dtype, refusal: str) -> Tensor:
    """`values` as a tensor, or a `UsageError` with the text `refusal`."""
    try:
        return torch.as_tensor(values, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(refusal) from error


def _find(observation: Any, leaf: Leaf) -> Any:
    for key in leaf.path:
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError):
            found = f", only {', '.join(map(repr, observation))}" if isinstance(observation, Mapping) else ""
            raise UsageError(f"the observation has no {leaf.name!r}{found}") from None
    return observation


def _array_of(observation: Any, leaf: Leaf) -> np.ndarray:
    """The entry of an observation as an array, or a `UsageError`."""
    entry = _find(observation, leaf)
    try:
        return np.asarray(entry.detach().cpu() if isinstance(entry, Tensor) else entry)
    except ValueError as error:  # lists of different lengths
        raise UsageError(f"observation {leaf.name!r} is no array: {error}") from error


def _batch_of(array: np.ndarray, leaf: Leaf) -> int | None:
    """The number of observations in a batch; None for a single one."""
    if array.shape == leaf.shape:
        return None
    if array.shape[1:] == leaf.shape and array.ndim == len(leaf.shape) + 1:
        return len(array)
    raise UsageError(
        f"observation {leaf.name!r} has shape {array.shape}; allowed: {leaf.shape}, or {('B', *leaf.shape)} for a batch"
    )


def _canonical(values: np.ndarray, leaf: Leaf) -> np.ndarray:
    """Values [..., *leaf.shape] of the environment as the network takes them. `UsageError` if training refuses them."""
    kept = leaf.dtype
    are_integers = kept.kind in "iu" and values.dtype.kind in "iu"
    if not are_integers and not np.can_cast(values.dtype, kept, "same_kind"):
        raise UsageError(f"observation {leaf.name!r} has dtype {values.dtype}; allowed: {leaf.source.dtype}")
    counted = _from_zero(values, leaf) if leaf.choices else values
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite
        found = counted.astype(kept, copy=False)
    if leaf.is_floating and not all_finite(found):
        index = first_bad(found)
        raise UsageError(
            f"observation {leaf.name!r} is {describe(float(values[index]), index)}; allowed: finite numbers"
        )
    if are_integers and not np.can_cast(counted.dtype, kept) and (wrong := found != counted).any():
        low, high = np.iinfo(kept).min, np.iinfo(kept).max
        raise UsageError(f"observation {leaf.name!r} has the number {values[wrong][0]}; allowed: {low} to {high}")
    return found


def _from_zero(values: np.ndarray, leaf: Leaf) -> np.ndarray:
    """Discrete values, counted from zero and not from the environment's own start."""
    counted = values - leaf.offset
    limits = np.reshape(leaf.choices, leaf.shape)
    if (wrong := (counted < 0) | (counted >= limits)).any():
        raise UsageError(f"observation {leaf.name!r} has the number {values[wrong][0]}; allowed: {leaf.source}")
    return counted


def _nested(space: spaces.Space, path: tuple[Any, ...], leaves: Mapping[Any, Leaf], arrays: Mapping[str, Any]) -> Any:
    """Actions by leaf, in the structure of the action space, with the environment's own numbers."""
    if isinstance(space, spaces.Dict):
        return {name: _nested(part, (*path, name), leaves, arrays) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(part, (*path, index), leaves, arrays) for index, part in enumerate(space.spaces))
    leaf = leaves[path]
    return own_values(leaf, arrays[leaf.name])
