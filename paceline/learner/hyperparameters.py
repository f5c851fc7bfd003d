"""Hyper-parameters of a learner that may change during a run.

Recorded CUDA graphs and compiled functions keep Python numbers as constants. An update therefore reads these numbers
from 0-dim tensors on the learner's device, which give the same bits as Python numbers. Reading them never waits for the
device.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.learner.config import TERMS, OptimizerConfig, PPOConfig

OF_PPO = (
    *(f"optimizer.{name}" for name in ("learning_rate", "max_grad_norm", "beta1", "beta2")),
    *(f"ppo.{name}" for name in ("clip", "value_coef", "entropy_coef", "term_coef")),
    *(f"ppo.{name}" for name in ("discount", "trace_decay", "max_rho", "max_c")),
)
OF_D4PG = tuple(
    f"d4pg.{name}" for name in ("actor_rate", "critic_rate", "max_grad_norm", "discount", "noise", "target_share")
)


class Hyperparameters:
    """The settings of a learner, some of them mutable. A name is a path in the run's configuration: `ppo.clip`.

    Any thread may call `set`, with the same values on all ranks. The learner applies new values when its next update
    begins. A setting that is None in the configuration stays None: it decides which computation is recorded or
    compiled.
    """

    def __init__(self, names: tuple[str, ...], **sections: Any) -> None:
        self._configured, self._sections = sections, dict(sections)
        self._names = [name for name in names if self._value(sections, name) is not None]
        self.revision = 0
        """The number of changes so far."""

    def section(self, name: str) -> Any:
        """A part of the configuration (`ppo`, `optimizer` or `d4pg`) with the current values."""
        return self._sections[name]

    def get(self, name: str) -> float:
        self._require(name)
        return self._value(self._sections, name)

    def set(self, name: str, value: float) -> None:
        """Change a value. It must be one that the configuration allows."""
        self._require(name)
        if value is None or math.isnan(value):
            raise UsageError(f"{name} must be a number, got {value}")
        section, field = name.split(".")
        self._sections[section] = dataclasses.replace(self._sections[section], **{field: float(value)})
        self.revision += 1

    def as_dict(self) -> dict[str, float]:
        return {name: self.get(name) for name in self._names}

    def state_dict(self) -> dict[str, tuple[float, float]]:
        """By name: the configured value and the current one."""
        return {name: (self._value(self._configured, name), self.get(name)) for name in self._names}

    def load_state_dict(self, state: dict[str, tuple[float, float]]) -> None:
        """Restore the values of a checkpoint. Where this run is configured with another value than the saved run, its
        own configuration holds: the user has changed that setting."""
        for name in self._names:
            configured = self._value(self._configured, name)
            saved = state.get(name, (configured, configured))
            value = saved[1] if saved[0] == configured else configured
            if value != self.get(name):
                self.set(name, value)

    def take_over(self, state: dict[str, tuple[float, float]]) -> None:
        """Continue with the current values in the state of another learner."""
        for name, (_, current) in state.items():
            self.set(name, current)

    def _require(self, name: str) -> None:
        if name not in self._names:
            raise UsageError(f"{name} cannot change during this run; allowed: {', '.join(self._names)}")

    @staticmethod
    def _value(sections: dict[str, Any], name: str) -> Any:
        section, field = name.split(".")
        return getattr(sections[section], field)


def digest_sums(hyperparameters: Iterable[Hyperparameters]) -> list[float]:
    """What one rank adds to the sums over all ranks that `require_same` checks: its digest, and the square of it.

    20 bits of a digest keep the sums exact.
    """
    digest = zlib.crc32(repr([one.as_dict() for one in hyperparameters]).encode()) >> 12
    return [float(digest), float(digest**2)]


def require_same(total: float, of_squares: float, num_ranks: int) -> None:
    """Refuse hyper-parameters that differ between ranks, by the sums of their digests over all ranks.

    Numbers are equal if and only if the square of their sum is their count times the sum of their squares.
    """
    if int(total) ** 2 != num_ranks * int(of_squares):
        raise UsageError(
            "the hyper-parameters differ between ranks; allowed: the same changes on every rank, by a callback with "
            'ranks = "all" that does not depend on the rank\'s own episodes'
        )


def ppo_hyperparameters(ppo: PPOConfig, optimizer: OptimizerConfig) -> Hyperparameters:
    # A learned entropy weight is no setting: the configured one is where it starts.
    unread = {"ppo.entropy_coef"} if ppo.entropy_target is not None else set()
    unread |= {"ppo.term_coef"} if ppo.term in TERMS else set()
    return Hyperparameters(tuple(name for name in OF_PPO if name not in unread), ppo=ppo, optimizer=optimizer)


class Scalars(NamedTuple):
    """What the steps of a PPO update read: 0-dim tensors."""

    ratio_low: Tensor
    ratio_high: Tensor
    value_coef: Tensor
    entropy_coef: Tensor
    term_coef: Tensor
    discount: Tensor
    trace_decay: Tensor
    max_rho: Tensor
    max_c: Tensor
    max_grad_norm: Tensor

    @classmethod
    def on(cls, device: torch.device) -> Scalars:
        # float64 for numbers that are multiplied with each other first, as Python numbers are.
        exact = {"discount": torch.float64, "trace_decay": torch.float64}
        return cls(*(torch.zeros((), dtype=exact.get(name, torch.float32), device=device) for name in cls._fields))

    def write(self, ppo: PPOConfig, optimizer: OptimizerConfig) -> None:
        low, high = ppo.ratio_bounds if ppo.clip is not None else (0.0, math.inf)
        numbers = (low, high, ppo.value_coef, ppo.entropy_coef, ppo.term_coef, ppo.discount, ppo.trace_decay)
        bounds = (ppo.max_rho, ppo.max_c, optimizer.max_grad_norm or math.inf)
        for tensor, number in zip(self, (*numbers, *bounds), strict=True):
            tensor.fill_(number)
