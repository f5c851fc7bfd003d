"""Why the policy of a run cannot play in an environment, in words."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import UsageError
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import MASK, Leaf


class ImageMisfit(UsageError):
    """The images of the environment have another size than those of the run."""


def misfit(
    run: str, trained: PoolSpec | None, spec: PoolSpec, error: Exception, classes: Mapping[str, str] | None = None
) -> UsageError:
    """The reason of an `error` when the network for `spec` was made, or when the weights of a run were loaded.

    `run` is the subject of the message. `trained` has the run's observations and actions; None if they are not known.
    `classes` are classes of the user's own in the network, by option.
    """
    if trained is not None:
        there, here = ({leaf.name: leaf for leaf in one.obs if leaf.name != MASK} for one in (trained, spec))
        problem = _other_observations(there, here)
        if problem is not None:
            return type(problem)(f"{run} {problem}")
        if trained.action_space != spec.action_space:
            return UsageError(f"{run} needs the actions {trained.action_space}; here are {spec.action_space}")
    if isinstance(error, UsageError):
        return error
    if trained is not None and classes:
        named = ", ".join(f"{option} {name}" for option, name in classes.items())
        what = " ".join(str(error).split())
        return UsageError(f"{run} does not fit {named}, which may have changed since it was trained: {what:.200}")
    shapes = ", ".join(f"{leaf.name} {list(leaf.shape)}" for leaf in spec.obs)
    return UsageError(
        f"{run} does not fit this environment: its observations are {shapes}, its actions are {spec.action_space}; "
        "allowed: those of the run"
    )


def _other_observations(there: dict[str, Leaf], here: dict[str, Leaf]) -> UsageError | None:
    """The first observation that differs from those of the run."""
    for name, leaf in there.items():
        if name not in here:
            return UsageError(
                f"needs the observation {name!r}, which this environment does not have; it has: {', '.join(here)}"
            )
        if leaf.shape != here[name].shape:
            kind = ImageMisfit if len(leaf.shape) == len(here[name].shape) == 3 else UsageError
            shapes = f"{list(leaf.shape)} of the observation {name!r}; here it is {list(here[name].shape)}"
            return kind(f"needs the shape {shapes}")
    unknown = [name for name in here if name not in there]
    if unknown:
        return UsageError(
            f"does not know the observation {unknown[0]!r} of this environment; it knows: {', '.join(there)}"
        )
    return None
