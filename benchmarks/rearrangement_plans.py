"""Task plans of rearrangement: success after each interaction, as in figure 6 of VER.

| agent | the way to the next object or goal |
|---|---|
| TP-SRL | by the navigation skill |
| TP-SRL(NoNav) | by the skills for objects themselves |
| TP-SRL, skills without base motion | by the navigation skill; the base stands still during the other skills |

`--pick RUN`, `--place RUN` and so on name the run folder of each skill. A skill without a run is scripted. The last
agent plays only if it has runs: `--pick-without-base RUN` and `--place-without-base RUN`, trained with `base=false`.
All agents play the same episodes. An interaction succeeds if it and all before it do.
`python -m benchmarks.rearrangement_plans --help` lists the options.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.envs.ids import EnvId
from paceline.errors import UsageError
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.saved import SavedRun
from paceline.sims.rearrangement.evaluation.evaluator import evaluate_plan
from paceline.sims.rearrangement.evaluation.plan_episodes import SEEN, PlanAgent, config_of_runs
from paceline.sims.rearrangement.planning.chain import SHARED

from .report import Result, Table, command_line, context, make_result, print_context, print_table

PLOT = Path("rearrangement_plans.png")
WITH, WITHOUT, STILL = "TP-SRL", "TP-SRL(NoNav)", "TP-SRL, skills without base motion"
NORMAL_97_5 = 1.96
SKILLS = ("pick", "place", "navigate", "open_drawer", "open_fridge")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    env: str = "rearrange:tidy_house"
    """A scenario. Options that it does not name (tier, resolution, steps of motion) are those of the runs."""
    pick: Path | None = None
    """The run of `rearrange:pick`. None: the script."""
    place: Path | None = None
    navigate: Path | None = None
    open_drawer: Path | None = None
    open_fridge: Path | None = None
    pick_without_base: Path | None = None
    """The run of `rearrange:pick?base=false`."""
    place_without_base: Path | None = None
    agents: tuple[str, ...] = (WITH, WITHOUT, STILL)
    episodes: int = 500
    split: str = "val"
    """Of the houses: val and test are not seen in training."""
    num_envs: int = 256
    """Robots at a time."""
    checkpoint: str = "latest"
    """latest, best or step_N."""
    sampled: bool = False
    """Sample actions, instead of taking the most likely ones."""
    plot: Path = PLOT


def run(quick: bool) -> Result:
    # The first interactions in two houses.
    short = Plan(env="rearrange:tidy_house?scenes=2&max_episode_steps=300", episodes=4)
    return measure(short if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    found, players = {}, agents(plan)
    env = shared_env(plan.env, players)
    for label, agent in players.items():
        options = EvaluationOptions(
            env=env, split=plan.split, episodes=plan.episodes, num_envs=plan.num_envs, checkpoint=plan.checkpoint
        )
        found[label] = evaluate_plan(agent, options)
        print(f"{label}: success {cell(found[label]['success'], plan.episodes)}", flush=True)
    table = show(plan, found)
    draw(found, plan.plot)
    print(f"\nplot: {plan.plot}")
    return make_result("rearrangement_plans", facts, [table], measurements=found, note=note(plan, found))


def agents(plan: Plan) -> dict[str, PlanAgent]:
    """The agents that play, by label."""
    unknown = [label for label in plan.agents if label not in (WITH, WITHOUT, STILL)]
    if unknown:
        raise UsageError(f"agents has {unknown}; allowed: {WITH!r}, {WITHOUT!r}, {STILL!r}")
    given = {skill: getattr(plan, skill) for skill in SKILLS}
    runs = {skill: folder for skill, folder in given.items() if folder is not None}
    given = {"pick": plan.pick_without_base, "place": plan.place_without_base}
    still = {skill: folder for skill, folder in given.items() if folder is not None}
    usual = PlanAgent(skills=runs, checkpoint=plan.checkpoint, sampled=plan.sampled)
    without = {skill: folder for skill, folder in runs.items() if skill != "navigate"}
    found = {
        WITH: usual,
        WITHOUT: replace(usual, skills=without, navigation=False),
        STILL: replace(usual, skills={**runs, **still}),
    }
    return {label: found[label] for label in plan.agents if label != STILL or still}


def shared_env(env: str, players: dict[str, PlanAgent]) -> str:
    """`env` with the options of all runs, so that agents with other runs, or with none, play the same episodes."""
    runs: dict[str, SavedRun] = {}
    for agent in players.values():
        runs = {**agent.loaded(), **runs}
    env_id, config = EnvId.parse(env), config_of_runs(env, runs)
    options = {name: getattr(config, name) for name in (*SEEN, *SHARED)}
    return str(replace(env_id, options={**env_id.options, **options}))


def show(plan: Plan, found: dict[str, dict[str, Any]]) -> Table:
    interactions = interactions_of(found)
    rows = [
        [name.replace("_", " "), *(cell(result[name], result["episodes"]) for result in found.values())]
        for name in interactions
    ]
    rows.append(["scenario", *(cell(result["success"], result["episodes"]) for result in found.values())])
    title = f"Success after each interaction of {plan.env.partition(':')[2].partition('?')[0]}"
    return print_table(title, ["interaction", *found], rows, name="interactions")


def interactions_of(found: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name in next(iter(found.values()))["measures"] if name != "success"]


def note(plan: Plan, found: dict[str, dict[str, Any]]) -> str:
    about = next(iter(found.values()))
    scripted = [skill for skill in SKILLS if getattr(plan, skill) is None]
    houses = f"{plan.episodes} episodes in {about['scenes']} houses of {about['split']} ({about['tier']})"
    return f"{houses}. Intervals are 95 % over episodes (Wilson). Scripted skills: {', '.join(scripted) or 'none'}."


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` episodes."""
    z = NORMAL_97_5
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def cell(share: float, count: int) -> str:
    low, high = wilson(share, count)
    return f"{share:.2f} ({low:.2f} to {high:.2f})"


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """One group of bars for each interaction, one bar for each agent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    interactions = interactions_of(found)
    figure, axis = pyplot.subplots(figsize=(7.4, 3.4), layout="constrained")
    width = 0.8 / len(found)
    for number, (label, result) in enumerate(found.items()):
        places = [place + (number - (len(found) - 1) / 2) * width for place in range(len(interactions))]
        shares = [result[name] for name in interactions]
        bounds = [wilson(share, result["episodes"]) for share in shares]
        below = [max(0.0, share - low) for share, (low, _) in zip(shares, bounds, strict=True)]
        above = [max(0.0, high - share) for share, (_, high) in zip(shares, bounds, strict=True)]
        axis.bar(places, shares, width, label=label, yerr=[below, above], capsize=2, error_kw={"linewidth": 0.8})
    axis.set_xticks(range(len(interactions)), [name.replace("_", " ") for name in interactions], rotation=30)
    axis.set(ylabel="success", ylim=(0, 1))
    axis.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(found), fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    command_line("rearrangement_plans", Plan, measure, __doc__)
