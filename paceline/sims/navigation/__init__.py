"""Navigation in procedural apartments: a batched simulator in PyTorch, on CPU or GPU from one source.

    config, family   the options of the tasks, and their environment ids
    tasks/           goal, reward and measures of each task
    layout           actions and columns of the state, which simulator and tasks share
    scenes/          apartments from seeds; obstacles, shortest paths and episodes as tensors that simulators share
    plans/           floor plans of the user's own: reading, checks, and a bank of them
    simulator        N agents at once
    rendering/       camera images and top-down maps
    env              one agent, as a Gymnasium environment
    evaluation/      baselines, fixed episodes, measures and the sections of a report

Importing this package registers `paceline/PointNav-v0` and the other tasks with Gymnasium. It imports nothing heavy.
"""

from __future__ import annotations

import gymnasium

from paceline.sims.navigation.tasks.table import TASKS


def register() -> None:
    """Make `gymnasium.make("paceline/PointNav-v0", tier="small", ...)` work. It can be called repeatedly."""
    for entry in TASKS.values():
        if entry.gym_id not in gymnasium.registry:
            gymnasium.register(
                entry.gym_id, entry_point="paceline.sims.navigation.env:NavigationEnv", kwargs={"task": entry.name}
            )


register()
