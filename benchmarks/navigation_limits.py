"""What limits the SPL of PointNav: agents with growing knowledge in the same episodes, and where each loses SPL.

    python -m benchmarks.navigation_limits
    python -m benchmarks.navigation_limits --agents oracle --runs runs/NAME    # the same for a trained policy

The path of a successful episode is longer than the shortest one for several reasons. A step of length l that brings the
agent closer by p wastes l - p. Its angle to the shortest path is that with cosine p / l.

| cause | what it wastes |
|---|---|
| start | steps of more than 90 degrees, before the agent was ever closer to the goal than at its start |
| wrong way | such steps later |
| sideways | steps of 20 to 90 degrees |
| steering | steps of less than 20 degrees, and contact with obstacles |
| stop | minus the rest of the way, up to `success_distance`, that the agent does not walk |

Turns cost nothing, because SPL counts only the length of the path. The causes add up to 1 - SPL, with failures.

Legend: L episodes, T steps of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.errors import UsageError
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.saved import SavedRun
from paceline.pretrained import folder_of
from paceline.sims.navigation.config import NavigationConfig
from paceline.sims.navigation.evaluation.episode_list import listed_episodes, play
from paceline.sims.navigation.evaluation.measures import binned
from paceline.sims.navigation.evaluation.oracle import Oracle
from paceline.sims.navigation.evaluation.policy_episodes import env_config, play_policy, split_config
from paceline.sims.navigation.evaluation.report_sizes import RATIOS
from paceline.sims.navigation.evaluation.routes import Recorder, Route
from paceline.sims.navigation.evaluation.task_evaluation import Agent
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation, load_bank

from .navigation_noise import shown
from .navigation_seen import UNLIMITED, SeenPlanner, WideMapper
from .report import Result, Table, command_line, context, make_result, print_context, print_table

AGENTS: dict[str, tuple[str, Callable[[Navigation], Agent]]] = {
    "map-90": ("map-and-plan, 90 degrees, 10 m", WideMapper),
    "map-90-far": ("map-and-plan, 90 degrees, any range", lambda sim: WideMapper(sim, max_depth=UNLIMITED)),
    "map-180": ("map-and-plan, 180 degrees, 10 m", lambda sim: WideMapper(sim, degrees=180)),
    "map-360": ("map-and-plan, 360 degrees, 10 m", lambda sim: WideMapper(sim, degrees=360)),
    "seen-90-brief": (
        "exact map of what it saw in 20 steps, 90 degrees",
        lambda sim: SeenPlanner(sim, degrees=90, memory=20),
    ),
    "seen-90": ("exact map of what it saw, 90 degrees", lambda sim: SeenPlanner(sim, degrees=90)),
    "seen-360": ("exact map of what it saw, 360 degrees", SeenPlanner),
    "rooms-360": (
        "exact map of the rooms that it saw a part of, 360 degrees",
        lambda sim: SeenPlanner(sim, whole_rooms=True),
    ),
    "oracle": ("oracle: exact map of everything", Oracle),
}
"""By name: what a table calls it, and how it is made. Knowledge grows down the list."""
SLIGHT = math.cos(math.radians(20.0))
"""Cosine of the angle that separates steering from walking sideways."""
CLOSER = 0.25
"""An agent has come closer than at its start if it gained so many metres."""
CAUSES = ("start", "wrong way", "sideways", "steering", "stop", "failures")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    agents: tuple[str, ...] = tuple(AGENTS)
    """Names of `AGENTS`."""
    runs: tuple[str, ...] = ()
    """Folders of runs, or names of pretrained policies. Each plays its own environment."""
    env: str = "pointnav:full"
    """The environment of the agents."""
    episodes: int = 256
    streams: int = 32
    name: str = "navigation_limits"
    """Of the result."""

    def __post_init__(self) -> None:
        if not self.runs and not self.agents:
            raise UsageError("nothing to evaluate: give --runs or --agents")
        unknown = [name for name in self.agents if name not in AGENTS]
        if unknown:
            raise UsageError(f"no agent {', '.join(map(repr, unknown))}; allowed: {', '.join(AGENTS)}")


class Played(NamedTuple):
    """What an agent did."""

    label: str
    success: np.ndarray
    spl: np.ndarray
    ratios: np.ndarray
    """[L]: the length of the shortest path over the straight line."""
    causes: np.ndarray
    """[L, causes]: lost SPL."""


def play_agent(name: str, plan: Plan, config: NavigationConfig, bank: SceneBank) -> Played:
    label, make = AGENTS[name]
    scenes, numbers = listed_episodes(config, bank, plan.episodes)
    simulator = Navigation(min(plan.streams, len(scenes)), "cpu", config, bank=bank)
    recorder = Recorder(simulator, make(simulator).act)
    measures = play(simulator, recorder.act, scenes, numbers)
    return _played(label, measures, recorder.routes(len(scenes)), _ratios(bank, scenes, numbers))


def play_run(folder: str, episodes: int) -> Played:
    run = SavedRun.load(folder_of(Path(folder)))
    found = play_policy(run, split_config(env_config(run.config.env)), EvaluationOptions(episodes=episodes))
    ratios = _ratios(found.bank, found.scenes, found.numbers)
    return _played(f"policy `{Path(folder).name}`", found.measures, found.routes, ratios)


def _played(label: str, measures: dict[str, np.ndarray], routes: list[Route], ratios: np.ndarray) -> Played:
    rows = [
        lost(route, *(float(measures[name][number]) for name in ("geodesic", "path_length", "spl", "success")))
        for number, route in enumerate(routes)
    ]
    return Played(label, measures["success"], measures["spl"], ratios, np.array(rows))


def _ratios(bank: SceneBank, scenes: list[int], numbers: list[int]) -> np.ndarray:
    episodes = bank.episodes.cpu().numpy()[scenes, numbers].astype(np.float64)
    straight = np.linalg.norm(episodes[:, 3:5] - episodes[:, :2], axis=1)
    return np.maximum(episodes[:, 5] / straight, 1.0)


def lost(route: Route, geodesic: float, path: float, spl: float, success: float) -> list[float]:
    """The lost SPL of an episode by cause, in the order of `CAUSES`. It adds up to 1 - `spl`."""
    if not success:
        return [0.0] * 5 + [1.0]
    distances = np.concatenate([[geodesic], route.distances]).astype(np.float64)
    lengths = np.linalg.norm(np.diff(route.poses[:, :2], axis=0), axis=1)
    gains = -np.diff(distances)[: len(lengths)]  # the last action is to stop
    waste, cosine = lengths - gains, gains / np.maximum(lengths, 1e-9)
    nearest = np.minimum.accumulate(distances)[: len(lengths)]
    away, slight = gains < 0.0, cosine >= SLIGHT
    at_start = nearest > geodesic - CLOSER
    parts = [waste[away & at_start].sum(), waste[away & ~at_start].sum(), waste[~away & ~slight].sum()]
    steering = path - (geodesic - distances[-1]) - sum(parts)
    shares = [float(part) / max(path, 1e-9) for part in (*parts, steering)]
    return [*shares, 1.0 - spl - sum(shares), 0.0]


def main_table(found: list[Played]) -> Table:
    *_, best = found
    rows = []
    for one in found:
        is_other = one is not best and np.array_equal(one.ratios, best.ratios)
        gap = shown(best.spl - one.spl) if is_other else ""
        rows.append([one.label, shown(one.success), shown(one.spl), gap])
    columns = ["agent", "success", "SPL", "SPL below the last agent's"]
    title = f"SPL by what an agent knows, {len(best.spl)} episodes of `val` (95 % interval)"
    note = "The last column is the mean difference of SPL in the same episodes."
    return print_table(title, columns, rows, name="knowledge", note=note)


def cause_table(found: list[Played]) -> Table:
    rows = [
        [one.label, *(f"{value:.3f}" for value in one.causes.mean(0)), f"{1 - one.spl.mean():.3f}"] for one in found
    ]
    note = (
        "`start`: steps of more than 90 degrees from the shortest path, before the agent was ever closer to the goal "
        "than at its start. `wrong way`: such steps later. `sideways`: steps of 20 to 90 degrees. `steering`: steps of "
        "less than 20 degrees, and contact with obstacles. `stop` is negative, because success begins 0.2 m before the "
        "goal. Turns cost nothing: SPL counts metres."
    )
    return print_table("Lost SPL by cause", ["agent", *CAUSES, "sum"], rows, name="causes", note=note)


def ratio_table(found: list[Played]) -> Table:
    """All agents play the same episodes, except runs in other environments; those have bins of their own."""
    parts = binned(RATIOS, {RATIOS.measure: found[-1].ratios})
    columns = [f"{low:g} to {high:g}" if math.isfinite(high) else f"over {low:g}" for low, high, _ in parts]
    rows = [["episodes", *(str(int(within.sum())) for *_, within in parts)]]
    for one in found:
        if np.array_equal(one.ratios, found[-1].ratios):
            rows.append([one.label, *(f"{one.spl[within].mean():.3f}" for *_, within in parts)])
    title = "SPL by the shortest path over the straight line"
    return print_table(title, ["agent", *columns], rows, name="ratios")


def run(quick: bool) -> Result:
    small = Plan(agents=("map-90", "seen-360", "oracle"), env="pointnav:small?scenes=4", episodes=8, streams=8)
    return measure(small if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    config = env_config(f"{plan.env}{'&' if '?' in plan.env else '?'}sensors=blind", "val")
    bank = load_bank(config) if plan.agents else None
    found = [play_run(folder, plan.episodes) for folder in plan.runs]
    seconds = {}
    for name in plan.agents:
        assert bank is not None
        began = time.perf_counter()
        found.append(play_agent(name, plan, config, bank))
        seconds[name] = time.perf_counter() - began
        print(f"{found[-1].label}: SPL {found[-1].spl.mean():.3f}, {seconds[name]:.0f} s", flush=True)
    tables = [main_table(found), cause_table(found), ratio_table(found)]
    episodes = {one.label: {"spl": one.spl.round(4).tolist(), "success": one.success.tolist()} for one in found}
    return make_result(plan.name, facts, tables, measurements={"seconds": seconds, "episodes": episodes})


if __name__ == "__main__":
    command_line("navigation_limits", Plan, measure, __doc__)
