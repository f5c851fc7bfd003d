"""Losses of the user's own: an auxiliary loss with weights, and a term of the PPO loss without any.

Both get `LossRows`. They are checked with a few example rows before training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.learner.config import TERMS, AuxiliaryConfig, PPOConfig
from paceline.learner.loss_rows import LossRows, example_rows
from paceline.nets.ppo_policy import PPOPolicy
from paceline.nets.registry import (
    ROWS,
    Part,
    build,
    build_function,
    called_with_examples,
    require_call,
    require_shape,
)

AUXILIARY = Part("an auxiliary loss", "(num_features, num_belief, num_actions, config)", ("forward",))
OF_AUXILIARY, OF_TERM = "ppo.auxiliary.kind", "ppo.term"


class AuxiliaryLoss(Protocol):
    """What an auxiliary loss of your own has: `--ppo.auxiliary.kind package.module:Class`. It is an `nn.Module`.

    Its weights are trained with those of the policy. `ppo.auxiliary.weight` times the loss is added to the PPO loss.
    """

    def __init__(self, num_features: int, num_belief: int, num_actions: int, config: AuxiliaryConfig) -> None:
        """The widths of `features`, `belief` and `action_features` in `LossRows`. `config` has the settings of the
        section `ppo.auxiliary`, to use or to ignore."""
        ...

    def forward(self, rows: LossRows) -> Tensor | dict[str, Tensor]:
        """The loss [], a mean over the rows that count; or a dict of numbers [], with the loss as `loss`. The metrics
        have them as `auxiliary_loss`, and `auxiliary_NAME`."""
        ...


class LossTerm(Protocol):
    """A term of your own in the PPO loss: `--ppo.term package.module:function`. A function, or a class that is made
    without arguments. It has no weights: an auxiliary loss has.

    `ppo.term_coef` times its mean over the rows that count is added to the PPO loss. The metrics have the mean as
    `term_loss`.
    """

    def __call__(self, rows: LossRows) -> Tensor:
        """[M]: the loss of each row."""
        ...


class OwnAuxiliary(nn.Module):
    """An auxiliary loss of the user's own, with the names of its metrics."""

    def __init__(self, own: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.own, self._names = own, names
        self.METRICS = tuple(f"auxiliary_{name}" for name in names)

    def forward(self, rows: LossRows) -> tuple[Tensor, ...]:
        """The loss [], and the other numbers []."""
        found = _by_name(self.own(rows))
        return tuple(found[name].float() for name in self._names)


def make_own_auxiliary(policy: PPOPolicy, config: AuxiliaryConfig) -> OwnAuxiliary:
    """The class that `ppo.auxiliary.kind` names, if it does what `AuxiliaryLoss` says."""
    name, device = config.kind, policy.version.device
    with _unchanged_random_numbers(device):
        rows = example_rows(policy)
    widths = (rows.features.shape[1], rows.belief.shape[1], rows.action_features.shape[1])
    own = build(AUXILIARY, OF_AUXILIARY, name, {}, *widths, config).to(device)
    require_call(OF_AUXILIARY, name, own.forward, "forward takes (rows)", rows)
    with _unchanged_random_numbers(device), called_with_examples(OF_AUXILIARY, name):
        found = _by_name(own(rows))
    if "loss" not in found:
        raise UsageError(f"{OF_AUXILIARY} {name} gives no loss, only {', '.join(found)}; allowed: the loss as 'loss'")
    for key, number in found.items():
        require_shape(OF_AUXILIARY, name, f"{key!r}", number, ())
    _require_gradient(OF_AUXILIARY, name, found["loss"])
    return OwnAuxiliary(own, ("loss", *(key for key in found if key != "loss")))


def make_term(policy: PPOPolicy, config: PPOConfig) -> LossTerm | None:
    """What `ppo.term` names, if it does what `LossTerm` says; None for none."""
    name, device = config.term, policy.version.device
    if name in TERMS:
        return None
    with _unchanged_random_numbers(device):
        rows = example_rows(policy)
        term = build_function(OF_TERM, name, "a loss term", "(rows)", rows)
        if isinstance(term, nn.Module) and len(term.state_dict()) > 0:
            raise UsageError(
                f"{OF_TERM} {name} has weights or buffers, which a run does not train or save for a term; allowed: "
                f"{OF_AUXILIARY}"
            )
        with called_with_examples(OF_TERM, name):
            found = term(rows)
    require_shape(OF_TERM, name, "losses", found, (ROWS,))
    _require_gradient(OF_TERM, name, found)
    return term


def _by_name(found: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return found if isinstance(found, Mapping) else {"loss": found}


def _require_gradient(option: str, name: str, loss: Tensor) -> None:
    if not loss.requires_grad:
        raise UsageError(
            f"{option} {name} gives a loss without gradient, which trains nothing; allowed: a loss of what has one, "
            "such as rows.log_prob"
        )


def _unchanged_random_numbers(device: torch.device) -> contextlib.AbstractContextManager[None]:
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
