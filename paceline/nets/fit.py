"""Checks of networks of the user's own with a few example rows, before anything is trained.

Errors name in one line what has the wrong shape. An exception of the user's code keeps its traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.nets.registry import HEAD, ROWS, called_with_examples, require_call, require_shape
from paceline.pool.spaces import Leaf


@contextlib.contextmanager
def checking(option: str, name: str) -> Iterator[None]:
    """Computes without gradients and without changing the random numbers of the run, on the CPU."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), called_with_examples(option, name):
        yield


def require_encoder(option: str, name: str, encoder: Any, images: Tensor) -> None:
    """Refuse an encoder that does not give its features for `images` of the example rows."""
    require_call(option, name, encoder.forward, "forward takes (images)", images)
    with checking(option, name):
        require_shape(option, name, "features", encoder(images), (ROWS, encoder.out_features))


def require_core(option: str, name: str, core: Any, in_features: int) -> None:
    """Refuse a core whose step does not give its output and its state."""
    features, state = torch.zeros(ROWS, in_features), torch.zeros(ROWS, core.state_size)
    require_call(option, name, core.step, "step takes (features, state)", features, state)
    with checking(option, name):
        found = core.step(features, state)
    out, after = require_results(option, name, found, 2, "the output and the state")
    require_shape(option, name, "the output", out, (ROWS, core.out_features))
    require_shape(option, name, "the state", after, (ROWS, core.state_size))


def require_head(option: str, name: str, head: Any, actions: Sequence[Leaf], in_features: int) -> None:
    """Refuse a head that does not give parameters, or no actions of the environment."""
    features = torch.zeros(ROWS, in_features)
    require_call(option, name, head.forward, "forward takes (features, mask)", features, None)
    with checking(option, name):
        require_actions(option, name, head, actions, head(features, None))


def require_actions(option: str, name: str, head: Any, actions: Sequence[Leaf], params: Any) -> None:
    """Refuse parameters of an action distribution, or a head that does not make actions of them."""
    lacking = [need for need in HEAD.needs if need != "forward" and not hasattr(head, need)]
    if lacking:
        raise UsageError(f"{option} {name}: its head lacks {', '.join(lacking)}; make_head makes one that has all")
    width = params.shape[-1] if isinstance(params, Tensor) and params.dim() else 0
    require_shape(option, name, "parameters of actions", params, (ROWS, width))
    sampled, wanted = head.sample(params), [leaf.name for leaf in actions]
    if not isinstance(sampled, dict) or set(sampled) != set(wanted):
        named = list(sampled) if isinstance(sampled, dict) else type(sampled).__name__
        raise UsageError(f"{option} {name} samples {named}; allowed: a dict with {wanted}")
    for leaf in actions:
        require_shape(option, name, f"actions {leaf.name!r}", sampled[leaf.name], (ROWS, *leaf.shape))
    require_shape(option, name, "log-probabilities", head.log_prob(params, sampled), (ROWS,))
    require_shape(option, name, "entropies", head.entropy(params), (ROWS,))


def require_results(option: str, name: str, found: Any, count: int, allowed: str) -> tuple[Any, ...]:
    """Refuse a result that is not `count` things, which are `allowed`, in words."""
    if not isinstance(found, tuple) or len(found) != count:
        given = f"{len(found)} results" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
        raise UsageError(f"{option} {name} gives {given}; allowed: {allowed}")
    return found
