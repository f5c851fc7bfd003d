"""`ScriptedSkill`: a skill as a script of phases. `RobotOracle`: an agent that plays a task by its script.

A robot that does not get on begins its script again, with another stand.

Legend: N robots, R robots in a phase, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.guide import Guide
from paceline.sims.rearrangement.actions import SIZES
from paceline.sims.rearrangement.evaluation.oracle.phases import Notes, RobotMove, RobotView
from paceline.sims.rearrangement.evaluation.oracle.scripts import SCRIPTS, Script
from paceline.sims.rearrangement.physics.world import arm_of
from paceline.sims.rearrangement.simulator import Rearrangement, Stream

STUCK = 12
"""A robot that does not move for so many steps gives up its phase."""
_MOTION = 2e-4


class RobotOracle:
    """Plays the task of `simulator`."""

    def __init__(self, simulator: Rearrangement, seed: int = 0) -> None:
        self._simulator = simulator
        self.skill = ScriptedSkill(simulator, simulator.task_name, simulator.actions.parts)

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        stream = self._simulator.stream
        return self.skill.act(stream, stream.columns, began, torch.ones_like(began))


class ScriptedSkill:
    """Plays the skill `task` in the streams of a simulator. `parts` are those of its actions, see `Actions`."""

    def __init__(self, simulator: Rearrangement, task: str, parts: Sequence[str]) -> None:
        self._simulator, self._parts = simulator, tuple(parts)
        num, device = simulator.num_envs, simulator.device
        self._guide = Guide(simulator.bank, num, device)
        self._script: Script = SCRIPTS[task](simulator, self._guide)
        self.phases = torch.zeros(num, dtype=torch.int64, device=device)
        """int64 [N]: numbers of phases in the script."""
        self._notes = Notes.empty(num, device)
        self._enters = torch.ones(num, dtype=torch.bool, device=device)
        self._last = torch.zeros(num, 10, device=device)

    @torch.no_grad()
    def act(self, stream: Stream, columns: Tensor, began: Tensor, playing: Tensor) -> Tensor:
        """[N, A]: the actions of the robots `playing` (bool [N]); zeros for others.

        `columns` [N, C] are those of the skill. `began` (bool [N]) are robots that begin it.
        """
        simulator = self._simulator
        self._begin(began, stream, columns)
        whole = view_of(simulator, stream, columns, self._notes)
        size = sum(SIZES[part] for part in self._parts)
        actions = torch.zeros(simulator.num_envs, size, device=simulator.device)
        finished, failed = torch.zeros_like(self._enters), torch.zeros_like(self._enters)
        for number, phase in enumerate(self._script.phases):
            rows = (playing & (self.phases == number)).nonzero()[:, 0]
            if not len(rows):
                continue
            entering = rows[self._enters[rows]]
            if len(entering):
                view = whole.part(entering)
                phase.enter(view)
                _write(self._notes, entering, view.notes)
            view = whole.part(rows)
            move = phase.move(view)
            _write(self._notes, rows, view.notes)
            actions[rows] = self._action(view, move)
            finished[rows] = move.done
            if move.fails is not None:
                failed[rows] = move.fails
            self._notes.steps[rows] += 1
        self._advance(finished, failed, playing)
        return actions

    def _begin(self, began: Tensor, stream: Stream, columns: Tensor) -> None:
        motion = torch.cat((stream.state.pose, stream.state.angles), 1)
        is_still = (motion - self._last).abs().amax(1) < _MOTION
        self._last.copy_(motion)
        self._notes.still.copy_(torch.where(is_still & ~began, self._notes.still + 1, 0))
        self.phases.masked_fill_(began, 0)
        self._enters |= began
        for counts in (self._notes.attempt, self._notes.steps):
            counts.masked_fill_(began, 0)
        self._notes.target.copy_(torch.where(began, columns[:, 0].long(), self._notes.target))

    def _advance(self, finished: Tensor, failed: Tensor, playing: Tensor) -> None:
        patience = torch.tensor([phase.patience for phase in self._script.phases], device=finished.device)
        is_late = (self._notes.steps >= patience[self.phases]) | (self._notes.still >= STUCK)
        gives_up = playing & ~finished & (is_late | failed)
        instead = torch.tensor(self._script.instead, device=finished.device)[self.phases]
        following = (self.phases + 1) % len(patience)
        after = torch.where(finished, following, torch.where(gives_up, instead, self.phases))
        self._notes.attempt.add_((finished | gives_up) & (after <= self.phases))
        self._enters = (after != self.phases) | gives_up
        self._notes.steps.masked_fill_(self._enters, 0)
        self._notes.still.masked_fill_(self._enters, 0)
        self.phases = after

    def _action(self, view: RobotView, move: RobotMove) -> Tensor:
        """[R, A]."""
        config = self._simulator.config
        turns = (move.angles - view.state.angles) / config.arm_step
        turns = turns / turns.abs().amax(1, keepdim=True).clamp(min=1.0)
        steps = torch.tensor([config.forward_step, config.turn_step], device=turns.device)
        stops = torch.zeros_like(move.done) if move.stops is None else move.stops
        values = {
            "arm": turns,
            "grip": move.closes[:, None].float() * 2.0 - 1.0,
            "base": (move.base / steps).clamp(-1.0, 1.0),
            "stop": stops[:, None].float() * 2.0 - 1.0,
        }
        return torch.cat([values[part] for part in self._parts], 1)


def view_of(simulator: Rearrangement, stream: Stream, columns: Tensor, notes: Notes) -> RobotView:
    """All robots of a simulator."""
    return RobotView(
        torch.arange(simulator.num_envs, device=simulator.device),
        stream.scenes,
        stream.episodes,
        stream.state,
        simulator.world_of(stream),
        arm_of(stream.state),
        columns,
        notes,
    )


def _write(notes: Notes, rows: Tensor, changed: Notes) -> None:
    for old, new in zip(notes, changed, strict=True):
        old[rows] = new
