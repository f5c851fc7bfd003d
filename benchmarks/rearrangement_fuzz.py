"""Random actions in all rearrangement tasks: no number that is not finite, nothing lost, nothing inside something else.

Every robot keeps a random action for some steps, so that it also drives far and runs into things. After each step,
the state is checked against the geometry. Depths are those of the worst penetration, in millimetres. A hand is not
stopped by what it holds, so it may be inside what it has just let go. For the rest of such an episode, only the base
and the objects are checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.physics.contact import depths
from paceline.sims.rearrangement.physics.shapes import gaps
from paceline.sims.rearrangement.physics.world import NOTHING, arm_of, is_object, moving_boxes, object_boxes
from paceline.sims.rearrangement.simulator import Rearrangement, Stream
from paceline.sims.rearrangement.tasks.table import SKILLS

from .report import Result, command_line, context, make_result, print_context, print_table, progress

KEEPS = 12
"""Mean number of steps for which a robot keeps an action."""
TOLERANCE = 2e-3
"""Allowed depth of a penetration, in metres. Contact itself has a tolerance of 1e-4."""
OBJECTS_EVERY = 4
"""Steps between two checks of all objects."""
PARTS = ("robot", "object", "base")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    tasks: tuple[str, ...] = tuple(SKILLS)
    steps: int = 1_000_000
    """Of all tasks together."""
    num_envs: int = 64
    scenes: int = 16
    tier: str = "small"
    split: str = "train"
    resolution: int = 0
    """Of the images; 0: without images."""
    seed: int = 1


@dataclass
class Findings:
    """What was seen in a task."""

    steps: int = 0
    episodes: int = 0
    taken: int = 0
    """Objects and handles."""
    worst: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    """Depths in metres: of the robot with what it holds, of objects that lie, and of the base in walls."""
    problems: dict[str, int] = field(default_factory=dict)
    """How often each was seen."""
    examples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, problem: str, rows: Tensor, stream: Stream) -> None:
        """Note a problem of the robots `rows` (bool [N])."""
        found = rows.nonzero()[:, 0].tolist()
        if not found:
            return
        self.problems[problem] = self.problems.get(problem, 0) + len(found)
        if len(self.examples) < 10:
            row = found[0]
            state = {name: value[row].tolist() for name, value in stream.state._asdict().items()}
            where = {"scene": int(stream.scenes[row]), "episode": int(stream.episodes[row])}
            self.examples.append({"problem": problem, "robot": row, "step": self.steps, **where, **state})


def run(quick: bool) -> Result:
    return measure(Plan(steps=10_000, scenes=2, num_envs=32) if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    found = {}
    for task in plan.tasks:
        found[task] = fuzz(task, plan, plan.steps // len(plan.tasks))
        print(f"{task}: {found[task].problems or 'no problem'}", flush=True)
    columns = ["task", "steps", "episodes", "taken", "deepest robot", "object", "base", "problems"]
    rows = [
        [
            f"`{task}`",
            *(f"{number:,}" for number in (one.steps, one.episodes, one.taken)),
            *(f"{1000 * one.worst[part]:.2f} mm" for part in PARTS),
            ", ".join(f"{count} {name}" for name, count in one.problems.items()) or "none",
        ]
        for task, one in found.items()
    ]
    table = print_table("Random actions in rearrangement", columns, rows, name="fuzz")
    return make_result("rearrangement_fuzz", facts, [table], measurements={t: one.__dict__ for t, one in found.items()})


def fuzz(task: str, plan: Plan, steps: int) -> Findings:
    """Play `steps` steps of a task with random actions."""
    config = RearrangementConfig(
        tier=plan.tier,
        split=plan.split,
        scenes=plan.scenes,
        scenario=SKILLS[task].scenario or "tidy_house",
        sensors="depth" if plan.resolution else "blind",
        resolution=plan.resolution or 64,
    )
    simulator = Rearrangement(plan.num_envs, "cpu", task, config)
    generator = torch.Generator().manual_seed(plan.seed)
    obs, found = simulator.reset(plan.seed), Findings()
    shape = (plan.num_envs, simulator.actions.size)
    actions = torch.zeros(shape)
    exempt = torch.zeros(plan.num_envs, dtype=torch.bool)
    while found.steps < steps:
        fresh = torch.rand(plan.num_envs, generator=generator) < 1.0 / KEEPS
        actions = torch.where(fresh[:, None], torch.rand(shape, generator=generator) * 2.0 - 1.0, actions)
        step = simulator.step(actions)
        stream = simulator.last_stream
        assert stream is not None and simulator.last_facts is not None
        is_pulling = stream.state.held >= stream.state.objects.shape[1]
        exempt |= is_pulling | (simulator.last_facts.dropped != NOTHING)
        found.steps += plan.num_envs
        found.taken += int((simulator.last_facts.taken != NOTHING).sum())
        _check_numbers(found, stream, {**step.final_obs, "reward": step.reward})
        _check_robot(found, simulator, stream, exempt)
        if found.steps // plan.num_envs % OBJECTS_EVERY == 0:
            _check_objects(found, simulator, stream)
        ended = step.terminated | step.truncated
        found.episodes += int(ended.sum())
        exempt &= ~ended
        obs = step.obs
        progress(f"{task}: {found.steps:,} steps")
    _check_numbers(found, simulator.stream, obs)
    return found


def _check_numbers(found: Findings, stream: Stream, others: dict[str, Tensor]) -> None:
    named = {**stream.state._asdict(), **others}
    for name, values in named.items():
        if values.is_floating_point():
            found.add(f"{name} not finite", ~values.isfinite().view(len(values), -1).all(1), stream)


def _check_robot(found: Findings, simulator: Rearrangement, stream: Stream, exempt: Tensor) -> None:
    world, state = simulator.world_of(stream), stream.state
    deep = depths(world, state, arm_of(state)).masked_fill(exempt, 0.0)
    found.worst["robot"] = max(found.worst["robot"], float(deep.amax()))
    found.add("robot inside something", deep > TOLERANCE, stream)
    cx, cy, ex, ey = world.contact.unbind(2)
    x, y = state.pose[:, :1], state.pose[:, 1:2]
    inside = torch.minimum(ex - (x - cx).abs(), ey - (y - cy).abs()).amax(1)
    found.worst["base"] = max(found.worst["base"], float(inside.amax().clamp(min=0.0)))
    found.add("base inside something", inside > TOLERANCE, stream)
    x0, y0, x1, y1 = simulator.bank.interior[stream.scenes].unbind(1)
    x, y = state.pose[:, 0], state.pose[:, 1]
    found.add("robot outside of the house", (x < x0) | (x > x1) | (y < y0) | (y > y1), stream)
    wrong = (state.values < -1e-6) | (state.values > world.joints[..., 5] + 1e-6)
    found.add("joint beyond its limits", wrong.any(1), stream)


def _check_objects(found: Findings, simulator: Rearrangement, stream: Stream) -> None:
    world, state = simulator.world_of(stream), stream.state
    objects = object_boxes(world, state)
    num = objects.shape[1]
    x0, y0, x1, y1 = simulator.bank.interior[stream.scenes][:, None].unbind(2)
    cx, cy, cz = objects[..., :3].unbind(2)
    outside = (cx < x0) | (cx > x1) | (cy < y0) | (cy > y1)
    found.add("object outside of the house", outside.any(1), stream)
    held = torch.arange(num) == state.held[:, None]
    found.add("object below the floor", ((cz - objects[..., 5] < -TOLERANCE) & ~held).any(1), stream)
    around = torch.cat((world.static, moving_boxes(world, state.values), objects), 1)
    others = is_object(state.held, num)[:, None] & held
    first = around.shape[1] - num
    for number in range(num):
        apart = gaps(objects[:, number], around)
        apart[:, first + number] = 1.0
        apart[:, first:].masked_fill_(others, 1.0)  # what is held is checked with the robot
        deep = (-apart.amin(1)).masked_fill(held[:, number], 0.0).clamp(min=0.0)
        found.worst["object"] = max(found.worst["object"], float(deep.amax()))
        found.add("object inside something", deep > TOLERANCE, stream)


if __name__ == "__main__":
    command_line("rearrangement_fuzz", Plan, measure, __doc__)
