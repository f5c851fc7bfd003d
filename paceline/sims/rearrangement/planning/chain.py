"""`Chain`: N robots carry out a plan, each stage by the policy of its skill.

A stage ends when its skill says so, or after its steps. After navigation, and after the return of the arm, the next
skill begins in any case. Any other skill has to succeed, or the episode has failed. Recurrent policies begin each stage
with an empty memory.

Legend: N robots, S stages, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.sims.rearrangement.actions import SIZES, Actions
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.planning.arm_return import ArmReturn, homewards, return_steps
from paceline.sims.rearrangement.planning.plans import IN_ITS_DRAWER, NAVIGATION, PASSING, RETURN, Stage
from paceline.sims.rearrangement.simulator import Rearrangement, Stream
from paceline.sims.rearrangement.tasks.protocol import Facts, Skill
from paceline.sims.rearrangement.tasks.starts import Starts
from paceline.sims.rearrangement.tasks.table import SKILLS

NAVIGATION_STEPS, OTHER_STEPS = 300, 300
"""Steps of a stage. In a plan without navigation, every stage has both."""
SHARED = ("forward_step", "turn_step", "arm_step", "behind", "slide")
"""Options that a skill and the scenario must have in common."""


class Turn(NamedTuple):
    """What a skill is told in a step."""

    obs: dict[str, Tensor]
    """The observations of its own task."""
    stream: Stream
    columns: Tensor
    """[N, C]: what its own task remembers."""
    began: Tensor
    """bool [N]: robots that begin the skill."""
    playing: Tensor
    """bool [N]: robots whose stage has this skill. Nothing comes of the actions of others."""


Decide = Callable[[Turn], Tensor]
"""From what N robots are told to their actions [N, A]."""


@dataclass
class SkillPolicy:
    """A skill in a chain."""

    config: RearrangementConfig
    """Of its training."""
    decide: Decide


class _Member:
    """A skill with what it remembers of each robot."""

    def __init__(self, name: str, policy: SkillPolicy, simulator: Rearrangement) -> None:
        self.name, self.decide = name, policy.decide
        self.skill = skill_of(name, Starts(simulator.bank, simulator.config))
        self.actions = Actions(self.skill.parts, policy.config)
        num, device = simulator.num_envs, simulator.device
        self.columns = torch.zeros(num, self.skill.num_columns, device=device)
        self.previous = torch.zeros(num, self.actions.size, device=device)
        self.stops = torch.zeros(num, dtype=torch.bool, device=device)

    def begin(self, which: Tensor, targets: Tensor, facts: Facts) -> None:
        fresh = torch.zeros_like(self.columns)
        fresh[:, 0] = torch.where(which, targets, 0).float()  # the targets of other robots are those of other skills
        self.columns = torch.where(which[:, None], self.skill.first(fresh, facts), self.columns)
        self.previous = torch.where(which[:, None], self.actions.first(facts.state.held), self.previous)

    def note_stops(self, actions: Tensor) -> None:
        """`actions` [N, A] are carried out now."""
        self.stops = self.actions.read(actions, actions.new_zeros(len(actions))).stops


class Chain:
    """Carries out `plan` in all streams of a simulator of a scenario."""

    def __init__(self, simulator: Rearrangement, plan: Sequence[Stage], policies: Mapping[str, SkillPolicy]) -> None:
        self._simulator, self._plan = simulator, list(plan)
        self._behind = simulator.config.behind
        policies = {**policies, RETURN: SkillPolicy(simulator.config, self._homewards)}
        for name, policy in policies.items():
            _check_options(name, policy.config, simulator.config)
        self._members = {
            name: _Member(name, policies[name], simulator) for name in dict.fromkeys(stage.skill for stage in plan)
        }
        self._names = list(self._members)
        device = simulator.device
        self._skills = torch.tensor([self._names.index(stage.skill) for stage in plan], device=device)
        self._targets = torch.tensor([stage.target for stage in plan], device=device)
        self._limits = torch.tensor(stage_steps(plan, simulator.config), device=device)

    @torch.no_grad()
    def play(self, obs: dict[str, Tensor], show: Callable[[int], None] = lambda done: None) -> Tensor:
        """int64 [N]: how many stages each robot completed in the episode whose first observations are `obs`."""
        simulator, device = self._simulator, self._simulator.device
        num = simulator.num_envs
        stage = torch.zeros(num, dtype=torch.int64, device=device)
        steps = torch.zeros_like(stage)
        is_active = torch.ones(num, dtype=torch.bool, device=device)
        began = is_active.clone()
        origin = simulator.stream.state.pose
        self._begin(began, stage, simulator.stream)
        for _ in range(simulator.num_steps):
            actions = self._act(obs, stage, origin, began, is_active)
            step = simulator.step(actions)
            facts, after = simulator.last_facts, simulator.last_stream
            assert facts is not None and after is not None
            steps = steps + 1
            over, success = self._judge(facts, stage, steps)
            was_active, passed = is_active, is_active & over & success
            is_active = is_active & ~(over & ~success) & ~(step.terminated | step.truncated)
            # The scenario ends with success as soon as the last object is at its goal.
            stage = torch.where(was_active & step.terminated, len(self._plan), stage + passed)
            is_active = is_active & (stage < len(self._plan))
            began = passed & is_active
            steps = torch.where(began, 0, steps)
            origin = torch.where(began[:, None], after.state.pose, origin)
            self._begin(began, stage, after)
            obs = step.final_obs
            show(int((~is_active).sum()))
            if not bool(is_active.any()):
                break
        return stage

    def _current(self, stage: Tensor) -> Tensor:
        return stage.clamp(max=len(self._plan) - 1)

    def _begin(self, began: Tensor, stage: Tensor, stream: Stream) -> None:
        facts = self._simulator.facts_of(stream)
        current = self._current(stage)
        targets = self._targets[current]
        drawer = self._simulator.bank.object_joint[stream.scenes, stream.episodes, 0].clamp(min=1)
        targets = torch.where(targets == IN_ITS_DRAWER, drawer, targets)
        for number, member in enumerate(self._members.values()):
            member.begin(began & (self._skills[current] == number), targets, facts)
        if self._behind and bool(began.any()):
            # The next command is not the last one of the stage before, but the first of an episode, as in training.
            now = self._simulator.stream
            first = self._simulator.actions.first(now.state.held)
            self._simulator.adopt(now._replace(previous=torch.where(began[:, None], first, now.previous)))

    def _homewards(self, turn: Turn) -> Tensor:
        """[N, 8]: the decision that returns the arm."""
        state, arm_step = turn.stream.state, self._simulator.config.arm_step
        if self._behind:  # the command before is carried out first
            command = self._simulator.actions.read(turn.stream.previous, state.held)
            state = state._replace(angles=state.angles + command.turns)
        return homewards(state, arm_step)

    def _act(self, obs: dict[str, Tensor], stage: Tensor, origin: Tensor, began: Tensor, is_active: Tensor) -> Tensor:
        """[N, 10]: the actions of the scenario (arm, grip and base), each robot's by its current skill."""
        simulator, current, stream = self._simulator, self._current(stage), self._simulator.stream
        result = torch.zeros(simulator.num_envs, simulator.actions.size, device=simulator.device)
        for number, member in enumerate(self._members.values()):
            mine = is_active & (self._skills[current] == number)
            if not bool(mine.any()):
                continue
            seen = {
                **obs,
                **simulator.vectors_of(stream, member.skill, member.columns, origin),
                "previous_action": member.previous,
            }
            chosen = member.decide(Turn(seen, stream, member.columns, began & mine, mine)).clamp(-1.0, 1.0)
            member.note_stops(member.previous if self._behind else chosen)
            member.previous = torch.where(mine[:, None], chosen, member.previous)
            result = torch.where(mine[:, None], self._as_scenario(member, chosen, stream), result)
        return result

    def _as_scenario(self, member: _Member, chosen: Tensor, stream: Stream) -> Tensor:
        """[N, 10]: the actions `chosen` by a skill, with nothing where it has no say."""
        sizes = [SIZES[part] for part in member.actions.parts]
        parts = dict(zip(member.actions.parts, chosen.split(sizes, 1), strict=True))
        usual = {part: chosen.new_zeros(len(chosen), SIZES[part]) for part in ("arm", "base")}
        usual["grip"] = torch.where(stream.state.held == NOTHING, -1.0, 1.0)[:, None]
        usual.update(parts)
        return torch.cat([usual[part] for part in self._simulator.actions.parts], 1)

    def _judge(self, facts: Facts, stage: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """bool [N] each: whether the current stage is over, and whether the next one may begin."""
        current = self._current(stage)
        over = steps >= self._limits[current]
        success = torch.zeros_like(over)
        for number, member in enumerate(self._members.values()):
            mine = self._skills[current] == number
            judged = member.skill.judge(member.columns, facts._replace(stopped=member.stops))
            member.columns = torch.where(mine[:, None], judged.columns, member.columns)
            over = over | (mine & judged.terminated)
            done = mine if member.name in PASSING else mine & (judged.measures["success"] > 0.5)
            success = success | done
        return over, success


def skill_of(name: str, starts: Starts) -> Skill:
    """A skill of a plan by its name."""
    return ArmReturn() if name == RETURN else SKILLS[name].load(starts)


def stage_steps(plan: Sequence[Stage], config: RearrangementConfig) -> list[int]:
    """The steps of each stage."""
    skills = [stage.skill for stage in plan]
    others = OTHER_STEPS if NAVIGATION in skills else NAVIGATION_STEPS + OTHER_STEPS
    steps = {NAVIGATION: NAVIGATION_STEPS, RETURN: return_steps(config)}
    return [steps.get(skill, others) for skill in skills]


def _check_options(skill: str, trained: RearrangementConfig, played: RearrangementConfig) -> None:
    for option in SHARED:
        one, other = getattr(trained, option), getattr(played, option)
        if one != other:
            raise UsageError(f"{skill} was trained with {option} {one}; the scenario has {other}; allowed: the same")
