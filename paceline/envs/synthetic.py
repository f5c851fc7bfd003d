"""`synthetic:distribution`: a simulator that does nothing for a settable time, for scheduling benchmarks.

Its observations say where they come from (`read_stamp`), and its rewards are the actions, so that tests can follow
every stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.envs.options import Options
from paceline.envs.step_costs import ByAction, Constant, HeavyTail, LogNormal, SceneCost, StepCost, minority
from paceline.errors import UsageError, closest

DISTRIBUTIONS: dict[str, list[str]] = {
    "constant": [],
    "lognormal": ["sigma"],
    "minority": ["slow", "fraction"],
    "scene": ["sigma"],
    "heavy_tail": ["alpha"],
    "by_action": ["slow"],
}
"""The distributions of a step's cost, and the options of each besides `mean`."""

STAMP = np.dtype([("env_index", "<u2"), ("episode", "<u2"), ("step", "<u4")])
"""The first bytes of uint8 observations. float32 observations begin with the same three numbers as floats."""


@dataclass(frozen=True, kw_only=True)
class SyntheticSettings:
    """The common options of all distributions, and their defaults."""

    spend: str = "sleep"
    """"sleep", like a simulator on a GPU or another machine, or "burn" CPU time of one core."""
    reset_seconds: float = 0.0
    """Duration of a reset."""
    obs: tuple[int, ...] = (3, 72, 128)
    """The observation's shape."""
    dtype: str = "uint8"
    """uint8 or float32."""
    actions: int = 4
    """The number of discrete actions."""
    episode_length: int = 1000
    """Steps after which an episode is truncated; 0 for never."""
    terminate: float = 0.0
    """Below 1: the probability that a step terminates its episode. From 1: the step that always terminates it."""


def names() -> list[str]:
    return list(DISTRIBUTIONS)


def resolve(env_id: EnvId) -> Factory:
    name = env_id.name or "constant"
    if name not in DISTRIBUTIONS:
        raise UsageError(
            f"distribution {name!r} of {str(env_id)!r} does not exist{closest(name, DISTRIBUTIONS)}; "
            f"allowed: {', '.join(DISTRIBUTIONS)}"
        )
    options = Options(env_id, ["mean", *DISTRIBUTIONS[name], *SyntheticSettings.__dataclass_fields__])
    settings = SyntheticSettings(
        spend=options.choice("spend", SyntheticSettings.spend, SPENDERS),
        reset_seconds=options.number("reset_seconds", SyntheticSettings.reset_seconds),
        obs=options.sizes("obs", SyntheticSettings.obs),
        dtype=options.choice("dtype", SyntheticSettings.dtype, ["uint8", "float32"]),
        actions=options.integer("actions", SyntheticSettings.actions, minimum=1),
        episode_length=options.integer("episode_length", SyntheticSettings.episode_length),
        terminate=options.number("terminate", SyntheticSettings.terminate),
    )
    needed = STAMP.itemsize if settings.dtype == "uint8" else len(STAMP.names or ())
    if np.prod(settings.obs) < needed:
        raise options.error("obs", f"at least {needed} numbers of {settings.dtype}, to identify the observation")
    cost = _cost(name, options, settings)
    return Factory(make=partial(_make, settings, cost), label=str(env_id))


def _cost(name: str, options: Options, settings: SyntheticSettings) -> Callable[[int], StepCost]:
    """A function from an environment's index to the cost of its steps."""
    mean = options.number("mean", 0.0)
    if name == "lognormal":
        return partial(_same, LogNormal, mean, options.number("sigma", 1.0))
    if name == "scene":
        return partial(_same, SceneCost, mean, options.number("sigma", 1.0))
    if name == "heavy_tail":
        alpha = options.number("alpha", 2.5)
        if alpha <= 1.0:
            raise options.error("alpha", "a number above 1, because others have no mean")
        return partial(_same, HeavyTail, mean, alpha)
    if name == "by_action":
        return partial(_same, ByAction, mean, options.number("slow", 10.0, minimum=1.0), settings.actions)
    if name == "minority":
        return partial(
            minority, mean, options.number("slow", 10.0, minimum=1.0), options.number("fraction", 0.125, maximum=1.0)
        )
    return partial(_same, Constant, mean)


def _same(kind: type, *arguments_and_index: Any) -> StepCost:
    return kind(*arguments_and_index[:-1])


def _make(settings: SyntheticSettings, cost: Callable[[int], StepCost], env_index: int) -> Synthetic:
    return Synthetic(settings, cost(env_index), env_index)


def burn(seconds: float) -> None:
    """Use that much CPU time. On a shared core this takes longer, as real work would."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


SPENDERS: dict[str, Callable[[float], None]] = {"sleep": time.sleep, "burn": burn}


class Synthetic(gymnasium.Env):
    """An environment whose steps take the time of `cost`. Observations count episodes and steps."""

    def __init__(self, settings: SyntheticSettings, cost: StepCost, env_index: int = 0) -> None:
        self._settings, self._cost = settings, cost
        self._spend = SPENDERS[settings.spend]
        high = 255 if settings.dtype == "uint8" else np.inf
        self.observation_space = spaces.Box(0, high, settings.obs, np.dtype(settings.dtype).type)
        self.action_space = spaces.Discrete(settings.actions)
        self._env_index, self._episode, self._step = env_index, -1, 0
        self._blank = np.zeros(settings.obs, settings.dtype)
        self._start_streams(np.random.default_rng())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._start_streams(self.np_random)
            self._episode = -1
        if self._settings.reset_seconds:
            self._spend(self._settings.reset_seconds)
        self._episode += 1
        self._step = 0
        self._ends_at = self._draw_end()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        seconds = self._cost.seconds(action)
        if seconds:
            self._spend(seconds)
        self._step += 1
        terminated = self._step == self._ends_at
        truncated = self._step == self._settings.episode_length and not terminated
        return self._observe(), float(action), terminated, truncated, {}

    def _start_streams(self, rng: np.random.Generator) -> None:
        # Separate streams, so that the duration of steps does not change when an episode ends.
        costs, self._ends = rng.spawn(2)
        self._cost.start(costs)

    def _draw_end(self) -> int:
        """The step that terminates the episode; -1 for none. Drawn once, to keep steps cheap."""
        terminate = self._settings.terminate
        if terminate >= 1.0:
            return int(terminate)
        return int(self._ends.geometric(terminate)) if terminate else -1

    def _observe(self) -> np.ndarray:
        observation = self._blank.copy()
        if observation.dtype == np.uint8:
            stamp = (self._step << 32) | (self._episode & 0xFFFF) << 16 | (self._env_index & 0xFFFF)
            observation.reshape(-1)[:8] = np.frombuffer(stamp.to_bytes(8, "little"), np.uint8)
        else:
            observation.reshape(-1)[:3] = (self._env_index, self._episode, self._step)
        return observation


def read_stamp(observation: np.ndarray) -> tuple[int, int, int]:
    """The environment's index, the episode since the last seed, and the step of an observation."""
    flat = np.ascontiguousarray(observation).reshape(-1)
    numbers = flat[: STAMP.itemsize].view(STAMP)[0] if flat.dtype == np.uint8 else flat[:3]
    env_index, episode, step = (int(number) for number in numbers)
    return env_index, episode, step
