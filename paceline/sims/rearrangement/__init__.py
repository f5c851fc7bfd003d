"""Rearrangement in procedural apartments: a mobile manipulator, batched in PyTorch, on CPU or GPU from one source.

    config, family   the options of the tasks, and their environment ids
    objects          the kinds of things that the robot can lift
    scenes/          apartments with kitchens from seeds; their episodes as tensors that simulators share
    robot/           the arm and the body
    physics/         contact without dynamics: motion, doors and drawers, suction, falls
    tasks/           starts, rewards, ends and measures of each task
    actions          what the policy commands
    simulator        N robots at once
    rendering/       camera images, maps and pictures
    env              one robot, as a Gymnasium environment
    planning/        task plans: skills in a row solve a scenario
    episode_record   what a robot did in one episode
    evaluation/      baselines, fixed episodes, measures and the sections of a report
    dynamics/        the same houses and tasks with masses and contacts, in MuJoCo

Importing this package registers `paceline/Rearrange-v0` and `paceline/RearrangeMuJoCo-v0` with Gymnasium. It imports
nothing heavy.
"""

from __future__ import annotations

import gymnasium

ENTRY_POINTS = {
    "paceline/Rearrange-v0": "paceline.sims.rearrangement.env:RearrangementEnv",
    "paceline/RearrangeMuJoCo-v0": "paceline.sims.rearrangement.dynamics.env:DynamicRearrangementEnv",
}


def register() -> None:
    """Make `gymnasium.make("paceline/Rearrange-v0", task="pick", ...)` work. It can be called repeatedly."""
    for name, entry_point in ENTRY_POINTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point)


register()
