"""Durations of simulated steps: distributions with an exact mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

BLOCK = 1024
"""Number of draws at a time. A single draw would cost as much as an empty step."""


class StepCost(Protocol):
    """Durations of one environment's steps. The generator given to `start` determines them."""

    def start(self, rng: np.random.Generator) -> None: ...

    def seconds(self, action: int) -> float: ...


@dataclass
class Constant:
    """Every step takes the same time."""

    mean: float

    def start(self, rng: np.random.Generator) -> None:
        pass

    def seconds(self, action: int) -> float:
        return self.mean


@dataclass
class ByAction:
    """Action a of n costs `slow` ** (a / (n - 1)) times the cost of action 0. `mean` holds for uniform actions."""

    mean: float
    slow: float
    num_actions: int

    def __post_init__(self) -> None:
        weights = self.slow ** np.linspace(0.0, 1.0, self.num_actions)
        self._seconds = (self.mean * weights / weights.mean()).tolist()

    def start(self, rng: np.random.Generator) -> None:
        pass

    def seconds(self, action: int) -> float:
        return self._seconds[action]


class _Drawn:
    """Independent draws, made in blocks."""

    def start(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._left: list[float] = []

    def seconds(self, action: int) -> float:
        if not self._left:
            self._left = self.draw(self._rng, BLOCK).tolist()
        return self._left.pop()

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        raise NotImplementedError


@dataclass
class LogNormal(_Drawn):
    """Log-normal with `sigma` of the logarithm."""

    mean: float
    sigma: float

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return self.mean * rng.lognormal(-0.5 * self.sigma**2, self.sigma, count)


@dataclass
class HeavyTail(_Drawn):
    """Pareto with exponent `alpha` > 1: a few steps take very long. The variance is infinite for `alpha` <= 2."""

    mean: float
    alpha: float

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        shortest = self.mean * (self.alpha - 1.0) / self.alpha
        return shortest * (1.0 + rng.pareto(self.alpha, count))


@dataclass
class SceneCost:
    """Each environment has one constant cost, like a small or a large scene: log-normal with `sigma` over environments.

    `mean` is the mean over all seeds.
    """

    mean: float
    sigma: float

    def start(self, rng: np.random.Generator) -> None:
        self._seconds = self.mean * float(rng.lognormal(-0.5 * self.sigma**2, self.sigma))

    def seconds(self, action: int) -> float:
        return self._seconds


def minority(mean: float, slow: float, fraction: float, env_index: int) -> Constant:
    """A `fraction` of the environments, evenly spread over the indices, is `slow` times slower than the others.

    `mean` is the mean over all environments.
    """
    # Without the tolerance, fractions such as 0.1 would lose an environment to rounding.
    is_slow = math.floor((env_index + 1) * fraction + 1e-9) > math.floor(env_index * fraction + 1e-9)
    return Constant(mean / (1.0 + fraction * (slow - 1.0)) * (slow if is_slow else 1.0))
