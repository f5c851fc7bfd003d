"""The evaluator of rearrangement: policies and baselines play the same fixed list of episodes.

Every task has its own measures; see `Skill.measure_names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Group

from paceline.envs.ids import EnvId
from paceline.errors import UsageError
from paceline.evaluation.evaluate import progress_bar
from paceline.evaluation.evaluators import EvaluationOptions, Evaluator
from paceline.evaluation.report_page import ReportPart
from paceline.evaluation.saved import SavedRun
from paceline.sims.baseline_video import film_baseline
from paceline.sims.navigation.evaluation.episode_list import fixed_episodes, play
from paceline.sims.navigation.evaluation.measures import summarize
from paceline.sims.navigation.evaluation.measures import table as measures_table
from paceline.sims.navigation.evaluation.policy_episodes import (
    NUM_STREAMS,
    SPLIT,
    play_samples,
    policy_act,
    policy_result,
)
from paceline.sims.navigation.evaluation.task_evaluation import Measure
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.env import RearrangementEnv
from paceline.sims.rearrangement.evaluation.baselines import BASELINES
from paceline.sims.rearrangement.evaluation.plan_episodes import PlanAgent, config_of_runs, play_plan
from paceline.sims.rearrangement.family import parsed
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.simulator import Rearrangement, load_bank
from paceline.sims.rearrangement.tasks.table import SKILLS

FAMILY = "rearrange"
PLAN = "plan"
"""The agent that carries out the plan of a scenario; see `PlanAgent.parse`."""
RATES = ("mistake", "picked", "placed", "grasped", "reached", "success")
"""Measures between 0 and 1, the most important last."""


@dataclass(frozen=True)
class SkillMeasures:
    """A `Measured`: the measures of a task."""

    names: tuple[str, ...]
    bins: None = None

    @property
    def measures(self) -> Mapping[str, Measure]:
        return {name: Measure(name) for name in self.names}


@dataclass(frozen=True)
class Setting:
    """A task and its options."""

    task: str
    config: RearrangementConfig

    @classmethod
    def of(cls, env: str, split: str | None = None) -> Setting:
        """The split is `split`, or the id's own, or that of evaluation."""
        env_id = EnvId.parse(env)
        if env_id.family != FAMILY:
            raise UsageError(
                f"{env} is no rearrangement task; allowed: {', '.join(f'{FAMILY}:{name}' for name in SKILLS)}"
            )
        task, config = parsed(env_id)
        return cls(task, replace(config, split=split or env_id.options.get("split", SPLIT)))

    @classmethod
    def of_run(cls, run: SavedRun, options: EvaluationOptions) -> Setting:
        """The task of training in the default houses of a split, which are the same for all runs.

        `options.env` replaces both.
        """
        if options.env is not None:
            return cls.of(options.env, options.split)
        env_id = EnvId.parse(run.config.env)
        if env_id.family != FAMILY:
            raise UsageError(
                f"{run.folder} was trained in {run.config.env}; allowed: a run of {FAMILY}, or in `paceline eval` an "
                f"--env such as {FAMILY}:open_fridge"
            )
        task, config = parsed(env_id)
        usual = RearrangementConfig()
        split = options.split or SPLIT
        return cls(task, replace(config, split=split, scenes=usual.scenes, bank_seed=usual.bank_seed))

    @property
    def env(self) -> str:
        """The environment id."""
        return str(EnvId(FAMILY, self.task, self.config.options()))

    def about(self, bank: HouseBank) -> dict[str, Any]:
        """What a result says about the houses that were played in."""
        where = {"tier": bank.tier, "split": self.config.split, "scenes": bank.num_scenes}
        return {"task": self.task, **where, "plans": None, "bank_file": None}


def evaluate_policy(folder: Path, options: EvaluationOptions) -> dict[str, Any]:
    """Play the first episodes of the split's list, or all, with the policy of the run in `folder`."""
    run = SavedRun.load(folder, options.checkpoint, policy=options.policy, trust=options.trust)
    setting = Setting.of_run(run, options)
    if options.video is not None:
        from paceline.evaluation.video import film

        film(run, options.video, env=setting.env, sampled=options.sampled, seed=options.seed)
    bank = load_bank(setting.config)
    scenes, numbers = fixed_episodes(bank, options.episodes)
    streams = options.num_envs or max(run.config.pool.num_envs, NUM_STREAMS)
    num = min(streams, options.samples * len(scenes))
    simulator = Rearrangement(num, run.device(), setting.task, setting.config, bank=bank)
    measures = play_samples(simulator, policy_act(run, simulator, options), scenes, numbers, options.samples)
    summary = summarize(SkillMeasures(simulator.measure_names), measures)
    return policy_result(run, options, setting.about(bank), {**summary, "measures": list(simulator.measure_names)})


def evaluate_baseline(name: str, options: EvaluationOptions, *, bank: HouseBank | None = None) -> dict[str, Any]:
    """Play the same episodes with a baseline. `bank` replaces the houses of `options.env`."""
    setting = Setting.of(options.env or FAMILY, options.split)
    if name.partition("?")[0] in (PLAN, "oracle") and SKILLS[setting.task].scenario:
        agent = replace(PlanAgent.parse(name), checkpoint=options.checkpoint, seed=options.seed, trust=options.trust)
        return {"agent": name, **evaluate_plan(agent, options, bank=bank)}
    if name not in BASELINES:
        raise UsageError(f"agent {name!r} does not play {setting.task}; allowed: {', '.join(BASELINES)}")
    baseline = BASELINES[name]
    baseline.check(setting.task)
    bank = bank or load_bank(setting.config)
    if options.video is not None:
        env = RearrangementEnv(setting.task, render_mode="rgb_array", bank=bank, **setting.config.options())
        film_baseline(env, baseline.make(env.simulator, options.seed), options.video, seed=options.seed)
    scenes, numbers = fixed_episodes(bank, options.episodes)
    num = min(options.num_envs or NUM_STREAMS, len(scenes))
    config = replace(setting.config, sensors="blind")
    simulator = Rearrangement(num, "cpu", setting.task, config, bank=bank)
    measures = play(simulator, baseline.make(simulator, options.seed).act, scenes, numbers)
    return {
        "agent": name,
        "env": setting.env,
        **setting.about(bank),
        **summarize(SkillMeasures(simulator.measure_names), measures),
        "measures": list(simulator.measure_names),
        "video": None if options.video is None else str(options.video),
    }


def evaluate_plan(agent: PlanAgent, options: EvaluationOptions, *, bank: HouseBank | None = None) -> dict[str, Any]:
    """Play the same episodes of the scenario `options.env` by its plan. `bank` replaces the houses of `options.env`."""
    if options.video is not None:
        raise UsageError(f"--video does not film plans; allowed: --agent {', '.join(BASELINES)} in skills, or a run")
    runs = agent.loaded()
    setting = Setting.of(options.env or FAMILY, options.split)
    setting = replace(setting, config=replace(config_of_runs(options.env or FAMILY, runs), split=setting.config.split))
    bank = bank or load_bank(setting.config)
    scenes, numbers = fixed_episodes(bank, options.episodes)
    device = next((run.device() for run in runs.values()), "cpu")
    num = min(options.num_envs or NUM_STREAMS, len(scenes))
    simulator = Rearrangement(num, device, setting.task, setting.config, bank=bank)
    with progress_bar(len(scenes)) as show:
        measures = play_plan(simulator, agent, runs, scenes, numbers, show)
    return {
        "env": setting.env,
        **setting.about(bank),
        "skills": {skill: str(folder) for skill, folder in agent.skills.items()},
        "navigation": agent.navigation,
        "sampled": agent.sampled,
        **summarize(SkillMeasures(tuple(measures)), measures),
        "measures": list(measures),
        "video": None,
    }


def report(folder: Path, episodes: int | None) -> ReportPart:
    """Tiles and sections of the run's report. Matplotlib is imported only here."""
    from paceline.sims.rearrangement.evaluation.report import policy_part

    run = SavedRun.load(folder)
    setting = Setting.of_run(run, EvaluationOptions())
    return policy_part(run, setting.task, setting.config, episodes)


def report_baseline(name: str, env: str, episodes: int | None) -> ReportPart:
    """The same for a baseline."""
    from paceline.sims.rearrangement.evaluation.report import baseline_part

    if name not in BASELINES:
        raise UsageError(f"agent {name!r} has no report; allowed: {', '.join(BASELINES)}")
    setting = Setting.of(env)
    BASELINES[name].check(setting.task)
    return baseline_part(name, setting.task, setting.config, episodes)


def table(result: dict[str, Any]) -> Group:
    """The result of an evaluation for the terminal."""
    return measures_table(SkillMeasures(tuple(result["measures"])), result)


EVALUATOR = Evaluator(
    evaluate_policy=evaluate_policy,
    table=table,
    options=("split", "samples"),
    baselines=(*BASELINES, PLAN),
    baselines_of_runs=(PLAN,),
    evaluate_baseline=evaluate_baseline,
    rates=RATES,
    report=report,
    report_baseline=report_baseline,
)
