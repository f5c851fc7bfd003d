"""Parts of networks by name: a known one, or a class of the user's own as `package.module:Class`.

Legend: B rows, F features, S numbers of recurrent state, P parameters of an action distribution.

Every part is an `nn.Module`. The current directory is importable. The options, and what their classes need:

- `policy.encoder`: constructor `(leaf_shape, *, hidden)`, with [C, H, W] of the images. Attribute `out_features`.
  `forward(images)` gives [B, out_features]. Bytes come unscaled.
- `policy.core.kind`, `policy.planner.kind`: constructor `(in_features, config)`, with a `CoreConfig`. Attributes
  `out_features`, and `state_size` S (0 for no memory). `step(features [B, F], state [B, S])` gives the output [B,
  out_features] and the state after the step, without changing the state it was given. `sequence` and `scan` of
  `cores.Core` are optional; without them sequences go step by step.
- `policy.head.kind`: constructor `(leaves, in_features, config)`, with a `HeadConfig`. Attribute `max_entropy`.
  `forward(features, mask)` gives parameters [B, P]; `sample`, `mode`, `log_prob`, `entropy` and `env_actions` are those
  of `heads.ActionHead`.
- `control.value.kind`: constructor `(config)`, with a `ValueConfig`. Attribute `num_outputs`. `mean`, `loss` and
  `surprise` are those of `value_heads.ValueHead`.
- `policy.activation`, `control.activation`: constructor `()`. `forward(x)` gives the shape of x.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from paceline.errors import UsageError, extra_hint
from paceline.nets.config import check_choice


class Part(NamedTuple):
    """A kind of part: how it is made, and what it must have."""

    kind: str
    arguments: str
    needs: tuple[str, ...]


ENCODER = Part("an encoder", "(leaf_shape, *, hidden)", ("forward", "out_features"))
CORE = Part("a core", "(in_features, config)", ("out_features", "state_size", "step"))
HEAD = Part(
    "a head",
    "(leaves, in_features, config)",
    ("forward", "max_entropy", "sample", "mode", "log_prob", "entropy", "env_actions"),
)
VALUE_HEAD = Part("a value head", "(config)", ("num_outputs", "mean", "loss", "surprise"))
ACTIVATION = Part("an activation", "()", ("forward",))


def build(
    part: Part, option: str, name: str, known: Mapping[str, Callable[..., Any]], *arguments: Any, **options: Any
) -> Any:
    """Make the part `name`. A class that is not as `part` says is refused, with what it lacks."""
    check_choice(option, name, list(known))
    if name in known:
        return known[name](*arguments, **options)
    made = _call(part, option, name, arguments, options)
    if not isinstance(made, nn.Module):
        raise UsageError(f"{option} {name} makes a {type(made).__name__}; allowed: {part.kind} that is an nn.Module")
    lacking = [need for need in part.needs if not hasattr(made, need)]
    if "forward" in part.needs and type(made).forward is nn.Module.forward:
        lacking.insert(0, "forward")
    if lacking:
        raise UsageError(f"{option} {name} lacks {', '.join(lacking)}; {part.kind} needs {', '.join(part.needs)}")
    return made


def _call(part: Part, option: str, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    make = _import(option, name)
    try:
        inspect.signature(make).bind(*arguments, **options)
    except TypeError as error:
        raise UsageError(f"{option} {name} cannot be called ({error}); {part.kind} takes {part.arguments}") from error
    return make(*arguments, **options)


def _import(option: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: a file of the user's must not hide a package by accident
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{option} {name}: {error}; modules are looked for in the current directory ({os.getcwd()}) and among the "
            f"installed packages{extra_hint(error)}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{option} {name}: module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    return found
