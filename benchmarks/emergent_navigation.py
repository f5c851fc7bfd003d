"""Emergent navigation: does a skill that was trained near its target find its way from afar (section 6.2 of VER)?

    python -m benchmarks.emergent_navigation --runs RUN RUN ...

Each run plays the episodes of its task in unseen houses twice: from near starts, and from anywhere in the house.
Success, the way of the base and the time are by the length of the shortest way from the start to a place where the arm
reaches the target. For doors and drawers it is the place where the scripted robot would take the handle. Where
furniture leaves no such place, the episode counts in `all` only. A run with `base=false` plays near starts only.
Without runs, the script plays, for comparison.
`python -m benchmarks.emergent_navigation --help` lists the options.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.evaluation.evaluate import progress_bar
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.saved import SavedRun
from paceline.sims.navigation.evaluation.episode_list import Act, fixed_episodes, play
from paceline.sims.navigation.evaluation.guide import Guide
from paceline.sims.navigation.evaluation.policy_episodes import policy_act
from paceline.sims.rearrangement.evaluation.evaluator import Setting
from paceline.sims.rearrangement.evaluation.oracle.agent import RobotOracle, view_of
from paceline.sims.rearrangement.evaluation.oracle.handles import handle_stands
from paceline.sims.rearrangement.evaluation.oracle.phases import Notes
from paceline.sims.rearrangement.evaluation.oracle.scripts import JOINT_GOALS
from paceline.sims.rearrangement.simulator import Rearrangement, Stream, load_bank

from .rearrangement_plans import cell, wilson
from .report import Result, Table, command_line, context, make_result, print_context, print_table

PLOT = Path("emergent_navigation.png")
EDGES = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0, np.inf)
"""Of the classes of start distances, in metres."""
RATE = 30
"""Steps per second."""
NEAR, FAR = "near", "far"
TASKS = ("pick", "place", *JOINT_GOALS)

Measures = dict[str, np.ndarray]
"""[L] each, L episodes: success, path_length (metres), steps, and distance (metres; NaN where no place is known)."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    runs: tuple[Path, ...] = ()
    """Run folders of pick, place, open or close. None: the scripted robot plays `tasks`."""
    tasks: tuple[str, ...] = ("pick", "open_fridge")
    """Of the scripted robot."""
    scenes: int = 64
    """Houses of the scripted robot."""
    episodes: int = 500
    """From near starts, and as many from far starts."""
    split: str = "val"
    far_steps: int = 600
    """Steps of an episode with a far start, as in a plan without navigation."""
    num_envs: int = 256
    """Robots at a time."""
    checkpoint: str = "latest"
    sampled: bool = False
    """Sample actions, instead of taking the most likely ones."""
    plot: Path = PLOT


def run(quick: bool) -> Result:
    short = Plan(tasks=("pick",), scenes=1, episodes=2, far_steps=60)
    return measure(short if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    names = [folder.name for folder in plan.runs]
    if len(set(names)) < len(names):
        raise UsageError(f"runs are named {', '.join(names)}; allowed: folders with different names")
    print_context(facts)
    found: dict[str, dict[str, Measures]] = {}
    for folder in plan.runs:
        found[folder.name] = of_run(folder, plan)
    for task in () if plan.runs else plan.tasks:
        setting = Setting.of(f"rearrange:{task}?sensors=blind&scenes={plan.scenes}", plan.split)
        found[f"script of {task}"] = of_setting(setting, None, plan)
    table = show(found)
    draw(found, plan.plot)
    print(f"\nplot: {plan.plot}")
    kept = {
        label: {start: {name: listed(values) for name, values in one.items()} for start, one in starts.items()}
        for label, starts in found.items()
    }
    note = f"{plan.episodes} episodes from each kind of start, houses of {plan.split}. Intervals are 95 % (Wilson)."
    return make_result("emergent_navigation", facts, [table], measurements=kept, note=note)


def listed(values: np.ndarray) -> list[float | None]:
    """For JSON, which has no NaN."""
    return [None if np.isnan(value) else value for value in values.tolist()]


def of_run(folder: Path, plan: Plan) -> dict[str, Measures]:
    """Near and far starts of a run."""
    loaded = SavedRun.load(folder, plan.checkpoint)
    setting = Setting.of_run(loaded, EvaluationOptions(split=plan.split))
    return of_setting(setting, loaded, plan)


def of_setting(setting: Setting, loaded: SavedRun | None, plan: Plan) -> dict[str, Measures]:
    if setting.task not in TASKS:
        raise UsageError(f"rearrange:{setting.task} has no near starts; allowed: {', '.join(TASKS)}")
    near = replace(setting.config, start=NEAR)
    found = {NEAR: play_starts(replace(setting, config=near), loaded, plan)}
    if setting.config.base:
        far = replace(setting.config, start=FAR, max_episode_steps=plan.far_steps)
        found[FAR] = play_starts(replace(setting, config=far), loaded, plan)
    return found


def play_starts(setting: Setting, loaded: SavedRun | None, plan: Plan) -> Measures:
    """Play the episodes of a list."""
    bank = load_bank(setting.config)
    scenes, numbers = fixed_episodes(bank, plan.episodes)
    device = torch.device("cpu") if loaded is None else loaded.device()
    simulator = Rearrangement(min(plan.num_envs, len(scenes)), device, setting.task, setting.config, bank=bank)
    act: Act
    if loaded is None:
        act = RobotOracle(simulator).act
    else:
        act = policy_act(loaded, simulator, EvaluationOptions(sampled=plan.sampled))
    starts = StartDistances(simulator, act)
    with progress_bar(len(scenes)) as bar:
        played = play(simulator, starts.act, scenes, numbers, bar)
    return {**{name: played[name] for name in ("success", "path_length", "steps")}, "distance": starts.of(len(scenes))}


class StartDistances:
    """An agent's actions. It notes how far each episode starts from the place where its task is done."""

    def __init__(self, simulator: Rearrangement, act: Act) -> None:
        self._simulator, self._act = simulator, act
        self._guide = Guide(simulator.bank, simulator.num_envs, simulator.device)
        self._found: list[list[float]] = [[] for _ in range(simulator.num_envs)]

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        if bool(began.any()):
            stream, rows = self._simulator.stream, began.nonzero()[:, 0]
            places, reaches = places_of(self._simulator, stream, rows)
            targets = places.cpu().numpy()
            for row, scene, target in zip(rows.tolist(), stream.scenes[rows].tolist(), targets, strict=True):
                self._guide.lead(row, scene, target)
            left = self._guide.distances(stream.state.pose[rows, :2], rows)
            left = torch.where(reaches, left, torch.nan)
            for row, length in zip(rows.tolist(), left.tolist(), strict=True):
                self._found[row].append(length)
        return self._act(obs, began)

    def of(self, count: int) -> np.ndarray:
        """[L]: of the first `count` episodes of the list."""
        num = len(self._found)
        return np.array([self._found[number % num][number // num] for number in range(count)])


def places_of(simulator: Rearrangement, stream: Stream, rows: Tensor) -> tuple[Tensor, Tensor]:
    """For the robots `rows` (int64 [R]): where the base stands for the target [R, 2], and whether the arm then reaches
    it (bool [R])."""
    bank, target = simulator.bank, stream.columns[:, 0].long()
    if simulator.task_name in JOINT_GOALS:
        notes = Notes.empty(simulator.num_envs, simulator.device)._replace(target=target)
        view = view_of(simulator, stream, stream.columns, notes).part(rows)
        stands = handle_stands(view, JOINT_GOALS[simulator.task_name])
        return stands.poses[:, :2], stands.takes
    number = target + bank.goals.shape[2] * (simulator.task_name == "place")
    places = bank.stands[stream.scenes, stream.episodes, number, :2][rows]
    return places, torch.ones_like(rows, dtype=torch.bool)


def classes(one: Measures) -> list[tuple[str, np.ndarray]]:
    """The classes of start distances that have episodes, and which these are (bool [L])."""
    found = []
    for low, high in pairwise(EDGES):
        within = (one["distance"] >= low) & (one["distance"] < high)
        if within.any():
            found.append((f"{low:g} to {high:g} m" if np.isfinite(high) else f"over {low:g} m", within))
    return found


def show(found: dict[str, dict[str, Measures]]) -> Table:
    rows = []
    for label, starts in found.items():
        for start, one in starts.items():
            everything = np.ones(len(one["success"]), bool)
            for name, within in [("all", everything), *classes(one)]:
                success, path, steps = (one[key][within] for key in ("success", "path_length", "steps"))
                figures = [str(len(success)), cell(success.mean(), len(success))]
                rows.append([label, start, name, *figures, f"{path.mean():.2f}", f"{steps.mean() / RATE:.1f}"])
    columns = ["run", "starts", "way to the target", "episodes", "success", "way of the base (m)", "time (s)"]
    return print_table("Success by the distance of the start", columns, rows, name="distances")


def draw(found: dict[str, dict[str, Measures]], path: Path) -> None:
    """Success over the distance of the start, with 95 % intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for number, (label, starts) in enumerate(found.items()):
        for start, one in starts.items():
            parts = [within for _, within in classes(one)]
            at = [one["distance"][within].mean() for within in parts]
            shares = [float(one["success"][within].mean()) for within in parts]
            bounds = [wilson(share, int(within.sum())) for share, within in zip(shares, parts, strict=True)]
            errors = [
                [max(0.0, share - low) for share, (low, _) in zip(shares, bounds, strict=True)],
                [max(0.0, high - share) for share, (_, high) in zip(shares, bounds, strict=True)],
            ]
            style: dict[str, Any] = {
                "linestyle": "-" if start == NEAR else "--",
                "marker": "o" if start == NEAR else "s",
            }
            axis.errorbar(at, shares, errors, color=f"C{number}", label=f"{label}, {start}", capsize=2, **style)
    axis.set(xlabel="shortest way from the start to the target (m)", ylabel="success", ylim=(0, 1.02))
    axis.set_xlim(left=0)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    command_line("emergent_navigation", Plan, measure, __doc__)
