"""Task plans in a fixed list of episodes. Each skill is the policy of a run, or its script.

Legend: L episodes, N robots, S interactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.envs.ids import EnvId
from paceline.errors import UsageError
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.evaluation.oracle.agent import ScriptedSkill
from paceline.sims.rearrangement.evaluation.oracle.scripts import SCRIPTS
from paceline.sims.rearrangement.family import parsed
from paceline.sims.rearrangement.planning.chain import SHARED, Chain, SkillPolicy, Turn
from paceline.sims.rearrangement.planning.plans import RETURN, interactions, plan_of
from paceline.sims.rearrangement.simulator import Rearrangement
from paceline.sims.rearrangement.tasks.starts import Starts
from paceline.sims.rearrangement.tasks.table import SKILLS

SEEN = ("tier", "resolution", "sensors", "depth_dtype")
"""Options that a scenario takes from the runs of its skills, beside `SHARED`."""
FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class PlanAgent:
    """An agent that carries out the plan of a scenario."""

    skills: Mapping[str, Path] = field(default_factory=dict)
    """The run of each skill. A skill without a run is scripted."""
    navigation: bool = True
    """Whether the navigation skill plays between the others. Without, they find their own way."""
    checkpoint: str = "latest"
    """Of the runs: latest, best or step_N."""
    sampled: bool = False
    """Sample the actions of the runs, instead of taking the most likely ones."""
    seed: int = 0
    """Of sampled actions."""
    trust: bool = False
    """See `SavedRun`."""

    @classmethod
    def parse(cls, text: str) -> PlanAgent:
        """Of `plan?pick=RUN&place=RUN&navigate=RUN&navigation=false&sampled=true`, or of a part of these."""
        name, _, query = text.partition("?")
        # Folders may contain + and %, which have a meaning in URLs.
        parts = (part.partition("=") for part in query.split("&") if part)
        given = {key: value for key, _, value in parts}
        flags = {flag: given.pop(flag) for flag in ("navigation", "sampled") if flag in given}
        wrong = [f"{key}={value}" for key, value in given.items() if key not in SCRIPTS or not value]
        wrong += [f"{flag}={value}" for flag, value in flags.items() if value not in FLAGS]
        if wrong:
            problem = f"agent {text!r} has {', '.join(wrong)}"
            skills = ", ".join(f"{skill}=RUN" for skill in SCRIPTS)
            raise UsageError(f"{problem}; allowed: {name}?SKILL=RUN&..., with {skills}, navigation=false, sampled=true")
        runs = {skill: Path(folder) for skill, folder in given.items()}
        return cls(
            skills=runs,
            navigation=FLAGS[flags.get("navigation", "true")],
            sampled=FLAGS[flags.get("sampled", "false")],
        )

    def loaded(self) -> dict[str, SavedRun]:
        """The runs by skill. A run of another task is refused."""
        runs = {}
        for skill, folder in self.skills.items():
            run = SavedRun.load(folder, self.checkpoint, trust=self.trust)
            env_id = EnvId.parse(run.config.env)
            if (env_id.family, env_id.name) != ("rearrange", skill):
                raise UsageError(f"{folder} was trained in {run.config.env}; allowed as {skill}: rearrange:{skill}")
            runs[skill] = run
        return runs


def config_of_runs(env: str, runs: Mapping[str, SavedRun]) -> RearrangementConfig:
    """The options of a scenario. Images, houses and motions that `env` does not name are those of the runs."""
    env_id = EnvId.parse(env)
    _, config = parsed(env_id)
    first = next(iter(runs), None)
    for skill, run in runs.items():
        trained = trained_config(run)
        own = {name: getattr(trained, name) for name in (*SEEN, *SHARED) if name not in env_id.options}
        if skill == first:
            config = replace(config, **own)
        for name in ("resolution", "sensors", "depth_dtype"):
            one, other = getattr(trained, name), getattr(config, name)
            if one != other:
                raise UsageError(f"{skill} was trained with {name} {one}; the scenario has {other}; allowed: the same")
        if "tier" not in env_id.options and trained.tier != config.tier:
            problem = f"{skill} was trained in tier {trained.tier}, {first} in {config.tier}"
            raise UsageError(f"{problem}; allowed: the same, or a tier in --env")
    return config if runs else replace(config, sensors="blind")


def trained_config(run: SavedRun) -> RearrangementConfig:
    return parsed(EnvId.parse(run.config.env))[1]


def play_plan(
    simulator: Rearrangement,
    agent: PlanAgent,
    runs: Mapping[str, SavedRun],
    scenes: list[int],
    numbers: list[int],
    show: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """[L] each: whether all interactions of an episode succeeded (`success`), and all up to a certain one (`pick_1`,
    `place_1` and so on). `show` is called with the number of finished episodes."""
    plan = plan_of(simulator.config.scenario, simulator.bank.goals.shape[2], navigation=agent.navigation)
    skills = dict.fromkeys(stage.skill for stage in plan if stage.skill != RETURN)
    policies = {skill: _policy(skill, simulator, runs.get(skill), agent) for skill in skills}
    unused = [skill for skill in runs if skill not in skills]
    if unused:
        raise UsageError(f"the plan has no {', '.join(unused)}; allowed: {', '.join(skills)}")
    chain, num, count = Chain(simulator, plan, policies), simulator.num_envs, len(scenes)
    completed = np.zeros(count, np.int64)
    for first in range(0, count, num):
        # The last robots of the last round play an episode twice. Their results are not kept.
        places = [min(place, count - 1) for place in range(first, first + num)]
        obs = simulator.load_episodes([scenes[p] for p in places], [numbers[p] for p in places], first)
        kept = min(num, count - first)
        found = chain.play(obs, _counted(show, first, count))
        completed[first : first + kept] = found.cpu().numpy()[:kept]
    stages = interactions(plan)
    reached = {name: (completed > place).astype(float) for name, place in stages.items()}
    return {"success": (completed == len(plan)).astype(float), **reached}


def _counted(show: Callable[[int], None] | None, before: int, most: int) -> Callable[[int], None]:
    """A `show` for one round: `before` episodes were finished before it."""

    def shown(done: int) -> None:
        if show is not None:
            show(min(before + done, most))

    return shown


def _policy(skill: str, simulator: Rearrangement, run: SavedRun | None, agent: PlanAgent) -> SkillPolicy:
    if run is None:
        parts = SKILLS[skill].load(Starts(simulator.bank, simulator.config)).parts
        script = ScriptedSkill(simulator, skill, parts)
        return SkillPolicy(
            simulator.config, lambda turn: script.act(turn.stream, turn.columns, turn.began, turn.playing)
        )
    policy = run.policy(run.spec(), simulator.device)
    player = Player(policy, simulator.num_envs, simulator.device, sampled=agent.sampled, seed=agent.seed)
    return SkillPolicy(trained_config(run), _Learned(player))


class _Learned:
    """The decisions of a policy, for the robots that play its skill."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def __call__(self, turn: Turn) -> Tensor:
        rows = turn.playing.nonzero()[:, 0]
        obs = {name: values[rows] for name, values in turn.obs.items()}
        chosen = next(iter(self._player.decide(obs, turn.began[rows], rows).values()))
        actions = torch.zeros(len(turn.playing), chosen.shape[1], device=chosen.device)
        actions[rows] = chosen.to(actions.dtype)
        return actions
