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

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.own_code import check_choice, load

ROWS = 4
"""Example rows with which parts of the user's own are checked before training."""


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
    make = load(option, name, f"{part.kind}: a class, or a function that makes one")
    require_call(option, name, make, f"{part.kind} takes {part.arguments}", *arguments, **options)
    return make(*arguments, **options)


def build_function(option: str, name: str, kind: str, takes: str, *example: Any) -> Callable[..., Any]:
    """A function of the user's own, or an object of a class, which can be called with the arguments `example`."""
    found: Any = load(option, name, f"{kind}: a class, or a function")
    if inspect.isclass(found):
        require_call(option, name, found, f"{kind} is made without arguments")
        if not callable(found := found()):
            raise UsageError(f"{option} {name} lacks __call__; {kind} takes {takes}")
    require_call(option, name, found, f"{kind} takes {takes}", *example)
    return found


@contextlib.contextmanager
def called_with_examples(option: str, name: str) -> Iterator[None]:
    """Adds to an exception of the user's own code what it was called for."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        error.add_note(f"{option} {name} was called with {ROWS} example rows of zeros, to check it before training")
        raise


def require_call(option: str, name: str, function: Callable[..., Any], takes: str, *args: Any, **options: Any) -> None:
    """Refuse a function of the user's own that cannot be called with these arguments. `takes` says what is allowed."""
    try:
        inspect.signature(function).bind(*args, **options)
    except TypeError as error:
        raise UsageError(f"{option} {name} cannot be called ({error}); {takes}") from error
    except ValueError:  # some built-in functions have no signature
        return


def require_shape(option: str, name: str, what: str, found: Any, shape: tuple[int, ...]) -> None:
    """Refuse what a part of the user's own has computed, if it is no tensor of this shape."""
    if not isinstance(found, Tensor):
        raise UsageError(f"{option} {name} gives {what} as a {type(found).__name__}; allowed: a tensor {list(shape)}")
    if tuple(found.shape) != shape:
        raise UsageError(
            f"{option} {name} gives {what} of shape {list(found.shape)} for {ROWS} rows; allowed: {list(shape)}"
        )
