"""Why the policy of a run cannot play in an environment, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paceline.errors import UsageError
from paceline.nets.actor_critic import MASK
from paceline.nets.parts import IMAGES
from paceline.pool.protocol import PoolSpec
from paceline.wording import counted


class ImageMisfit(UsageError):
    """The images of the environment have another size than those of the run."""


def misfit(run: str, observed: Mapping[str, int | None], spec: PoolSpec, error: Exception) -> UsageError:
    """The reason of an `error` when the network for `spec` was made, or when the weights of a run were loaded.

    `run` is the subject of the message. `observed` is what the policy observes: the number of values of each vector,
    None for images; empty if not known.
    """
    here = {leaf.name: leaf.shape for leaf in spec.obs if leaf.name != MASK}
    problem = _other_observations(observed, {name: math.prod(shape) for name, shape in here.items()})
    if problem is not None:
        return UsageError(f"{run} {problem}")
    if isinstance(error, UsageError):
        return error
    shapes = {name: f"{name} {list(shape)}" for name, shape in here.items()}
    images = [text for name, text in shapes.items() if observed.get(name, 0) is None]
    if images and f"size mismatch for {IMAGES}" in str(error):
        return ImageMisfit(f"{run} needs images of the same size; here they are: {', '.join(images)}")
    return UsageError(
        f"{run} does not fit this environment: its observations are {', '.join(shapes.values())}, its actions are "
        f"{spec.action_space}; allowed: those of the run"
    )


def _other_observations(observed: Mapping[str, int | None], here: Mapping[str, int]) -> str | None:
    """The first observation that differs. `here` has the number of values of each."""
    for name, size in observed.items():
        if name not in here:
            return f"needs the observation {name!r}, which this environment does not have; it has: {', '.join(here)}"
        if size not in (None, here[name]):
            return f"needs {counted(size or 0, 'value')} of the observation {name!r}, which has {here[name]} here"
    unknown = [name for name in here if observed and name not in observed]
    if unknown:
        return f"does not know the observation {unknown[0]!r} of this environment; it knows: {', '.join(observed)}"
    return None
