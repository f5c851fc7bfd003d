"""Success and SPL of PointNav agents with rising noise of actuation, images and GPS, each alone and all together.

    python -m benchmarks.navigation_noise --runs runs/NAME --agents map-and-plan
    python -m benchmarks.navigation_noise --runs pointnav --agents goal-follower --env pointnav:small    # pretrained

All play the same episodes of `val`. The policy of a run plays all noises at once, as one batch, on the device that it
was trained on, with the likeliest actions.

Legend: S noises, N streams of each, L episodes, R = L / N rounds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.evaluation.evaluate import confidence_interval
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.saved import SavedRun
from paceline.pool.tensor import TensorStep
from paceline.pretrained import folder_of
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.evaluation.baselines import baseline_measures
from paceline.sims.navigation.evaluation.episode_list import listed_episodes, play
from paceline.sims.navigation.evaluation.pointnav import EVALUATION
from paceline.sims.navigation.evaluation.policy_episodes import env_config, policy_act, split_config
from paceline.sims.navigation.simulator import Navigation, load_bank

from .report import Result, Table, command_line, context, make_result, print_context, print_table

NOISES = {"actuation": "actuation_noise", "images": "image_noise", "GPS and compass": "gps_noise"}
TOGETHER = "all three"
STREAMS = {"cuda": 512, "cpu": 32}
"""Most streams of a noise. On a CPU small batches are as fast, and waste less on the last episodes."""

Measures = dict[str, np.ndarray]
"""[L] each."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    runs: tuple[str, ...] = ()
    """Folders of runs, or names of pretrained policies. Each plays its own environment."""
    agents: tuple[str, ...] = ()
    """Baselines, for example map-and-plan."""
    env: str = "pointnav:full"
    """The environment of the baselines."""
    episodes: int = 512
    levels: tuple[float, ...] = (0.05, 0.1, 0.2)
    """Standard deviations: shares of a step, a turn and a pixel, and metres and radians of the GPS and compass."""
    name: str = "navigation_noise"
    """Of the result."""

    def __post_init__(self) -> None:
        if not self.runs and not self.agents:
            raise UsageError("nothing to evaluate: give --runs or --agents")


class Noise(NamedTuple):
    """One row of a table."""

    kind: str
    level: float
    options: dict[str, float]
    """Of the environment."""


class SideBySide:
    """S simulators of N streams each as one with S x N streams, so that a policy decides for all at once.

    A list of episodes is [R, S, N] in this order: see `interleaved`.
    """

    def __init__(self, simulators: Sequence[Navigation]) -> None:
        self._simulators = simulators
        first = simulators[0]
        self.device, self.num_envs = first.device, len(simulators) * first.num_envs
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self.last_measures: dict[str, Tensor] = {}

    def load_episodes(self, scenes: Sequence[int], episodes: Sequence[int]) -> dict[str, Tensor]:
        count = len(self._simulators)
        lists = [np.reshape(values, (-1, count, self.num_envs // count)) for values in (scenes, episodes)]
        first = []
        for number, simulator in enumerate(self._simulators):
            first.append(simulator.load_episodes(*(values[:, number].ravel().tolist() for values in lists)))
        return _joined(first)

    def step(self, actions: Tensor) -> TensorStep:
        parts = actions.chunk(len(self._simulators))
        steps = [simulator.step(part) for simulator, part in zip(self._simulators, parts, strict=True)]
        self.last_measures = _joined([simulator.last_measures for simulator in self._simulators])
        reward, terminated, truncated = (
            torch.cat([getattr(step, name) for step in steps]) for name in ("reward", "terminated", "truncated")
        )
        return TensorStep(_joined([step.obs for step in steps]), reward, terminated, truncated, {})


def _joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def interleaved(values: Sequence[int], count: int, streams: int) -> list[int]:
    """`values` [L] for `count` simulators: [R, S, N], flat."""
    return np.repeat(np.reshape(values, (-1, 1, streams)), count, 1).ravel().tolist()


def separated(values: np.ndarray, count: int, streams: int) -> np.ndarray:
    """[S, L], from values in the order of `interleaved`."""
    return values.reshape(-1, count, streams).swapaxes(0, 1).reshape(count, -1)


def noises(levels: Sequence[float]) -> list[Noise]:
    """None, each kind alone with rising levels, and all together."""
    found = [Noise("none", 0.0, {})]
    for kind, names in {**{kind: (name,) for kind, name in NOISES.items()}, TOGETHER: tuple(NOISES.values())}.items():
        found += [Noise(kind, level, dict.fromkeys(names, level)) for level in levels]
    return found


def play_run(folder: str, settings: Sequence[Noise], episodes: int) -> list[Measures]:
    """The measures of a run's policy with each noise."""
    run = SavedRun.load(folder_of(Path(folder)))
    config = split_config(env_config(run.config.env))
    if not isinstance(config, PointNavConfig):
        raise UsageError(f"{folder} was trained for {config.task}; allowed: runs of pointnav")
    device = run.device()
    bank = load_bank(config).to(device)
    # Rounds of equal size, because all noises are one batch.
    streams = max(n for n in range(1, STREAMS[device.type] + 1) if episodes % n == 0)
    scenes, numbers = listed_episodes(config, bank, episodes)
    simulators = [Navigation(streams, device, replace(config, **dict(noise.options)), bank=bank) for noise in settings]
    together, count = SideBySide(simulators), len(settings)
    act = policy_act(run, together, EvaluationOptions())
    played = play(together, act, interleaved(scenes, count, streams), interleaved(numbers, count, streams))
    apart = {name: separated(values, count, streams) for name, values in played.items()}
    return [{name: values[number] for name, values in apart.items()} for number in range(count)]


def play_agent(name: str, env: str, settings: Sequence[Noise], episodes: int) -> list[Measures]:
    """The measures of a baseline with each noise."""
    config = env_config(env, "val")
    bank = load_bank(config)
    return [
        baseline_measures(EVALUATION, name, replace(config, **dict(noise.options)), bank, episodes)
        for noise in settings
    ]


def shown(values: np.ndarray) -> str:
    """The mean with its 95 % interval."""
    low, high = confidence_interval(values) or [float(values.mean())] * 2
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


def table_of(player: str, where: str, number: int, settings: Sequence[Noise], found: Sequence[Measures]) -> Table:
    rows = [
        [noise.kind, f"{noise.level:g}", shown(measures["success"]), shown(measures["spl"])]
        for noise, measures in zip(settings, found, strict=True)
    ]
    title = f"{player} with noise, {where}, {len(found[0]['spl'])} episodes of `val` (95 % interval)"
    return print_table(title, ["noise of", "standard deviation", "success", "SPL"], rows, name=f"player_{number}")


def run(quick: bool) -> Result:
    small = Plan(runs=("pointnav",), agents=("goal-follower",), env="pointnav:small", episodes=8, levels=(0.1,))
    full = Plan(runs=("pointnav",), agents=("map-and-plan", "goal-follower"), env="pointnav:small")
    return measure(small if quick else full, context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    settings = noises(plan.levels)
    tables, measurements = [], []
    for number, player in enumerate((*plan.runs, *plan.agents)):
        began = time.perf_counter()
        is_run = number < len(plan.runs)
        env = SavedRun.load(folder_of(Path(player))).config.env if is_run else plan.env
        found = (
            play_run(player, settings, plan.episodes) if is_run else play_agent(player, env, settings, plan.episodes)
        )
        label = f"Policy `{Path(player).name}`" if is_run else player.capitalize()
        tables.append(table_of(label, f"`{env.partition('?')[0]}`", number, settings, found))
        seconds = time.perf_counter() - began
        print(f"{seconds:.1f} s", flush=True)
        measurements.append({"player": player, "env": env, "seconds": seconds, "noises": _means(settings, found)})
    return make_result(plan.name, facts, tables, measurements=measurements)


def _means(settings: Sequence[Noise], found: Sequence[Measures]) -> list[dict[str, Any]]:
    return [
        {"noise": noise.options, **{name: float(values.mean()) for name, values in measures.items()}}
        for noise, measures in zip(settings, found, strict=True)
    ]


if __name__ == "__main__":
    command_line("navigation_noise", Plan, measure, __doc__)
