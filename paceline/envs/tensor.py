"""Batched simulators in torch: `tensor:cartpole?max_episode_steps=200`, `tensor:pong`, or `tensor:package.module:Class`
for your own.

This module does not import torch. A simulator follows the protocol `paceline.pool.tensor.TensorSimulator`. Its class is
called with `num_envs`, `device` and the id's options.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.envs.factory import Factory, check_options
from paceline.envs.ids import EnvId
from paceline.envs.user import BUILDER, ImportedCall, check_call
from paceline.errors import UsageError, closest
from paceline.own_code import find, import_attribute


class BuiltIn(NamedTuple):
    """A simulator of this package."""

    target: str
    """module:Class."""
    options: tuple[str, ...]
    single: str | None = None
    """module:Class of one such environment, which can be filmed. It has the same options."""


SIMULATORS: dict[str, BuiltIn] = {
    "cartpole": BuiltIn("paceline.envs.tensor_cartpole:TensorCartPole", ("max_episode_steps",)),
    "pong": BuiltIn(
        "paceline.envs.tensor_pong:TensorPong", ("points", "max_episode_steps"), "paceline.envs.pong_match:PongMatch"
    ),
}

METHODS = ("reset", "step", "state_dict", "load_state_dict")
ATTRIBUTES = ("num_envs", "device", "observation_space", "action_space", "frameskip")
"""What a simulator must have: the members of `TensorSimulator`."""


@dataclass(frozen=True)
class TensorTask:
    """A simulator and its options. Unlike the `make` of other families it makes n environments at once, on a device."""

    module: str
    attribute: str
    folder: str
    """The current directory when the id was resolved."""
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, num_envs: int, device: str = "cpu") -> Any:
        """A `TensorSimulator` of `num_envs` environments on `device`."""
        make = import_attribute(self.module, self.attribute, self.folder)
        simulator = make(num_envs=num_envs, device=device, **self.options)
        _require(simulator, (*METHODS, *ATTRIBUTES), f"{self.module}:{self.attribute}")
        return simulator


def resolve(env_id: EnvId) -> Factory:
    known = SIMULATORS.get(env_id.name)
    module, colon, attribute = (known.target if known else env_id.name).partition(":")
    if not colon:
        raise UsageError(
            f"there is no tensor simulator {env_id.name!r}{closest(env_id.name, SIMULATORS)}; "
            f"allowed: {', '.join(SIMULATORS)}, or package.module:Class for your own"
        )
    if known:
        check_options(env_id, known.options)
    else:
        simulator = find(module, attribute, str(env_id), BUILDER)
        check_call(simulator, env_id, given=("num_envs", "device"))
        if isinstance(simulator, type):  # a function may return anything, and the result is checked
            _require(simulator, METHODS, f"{module}:{attribute}")
    make = TensorTask(module, attribute, os.getcwd(), dict(env_id.options))
    return Factory(make=make, backend="tensor", label=str(env_id), single=_single(env_id, known))


def _single(env_id: EnvId, known: BuiltIn | None) -> Factory | None:
    if known is None or known.single is None:
        return None
    module, _, attribute = known.single.partition(":")
    return Factory(make=ImportedCall(module, attribute, os.getcwd(), dict(env_id.options), False), label=str(env_id))


def named_code(env_id: EnvId) -> str | None:
    module, colon, attribute = env_id.name.partition(":")
    return f"import the module {module!r} and call {attribute!r}" if colon else None


def names() -> Iterable[str]:
    return sorted(SIMULATORS)


def _require(simulator: Any, members: Iterable[str], name: str) -> None:
    missing = [member for member in members if not hasattr(simulator, member)]
    if missing:
        raise UsageError(
            f"{name} is no tensor simulator: it lacks {', '.join(missing)} (see paceline.pool.tensor.TensorSimulator)"
        )
