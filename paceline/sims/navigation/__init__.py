"""PointGoal navigation in procedural apartments: a batched simulator in PyTorch, on CPU or GPU from one source.

    config, family   the options of a task, and its environment ids
    scenes/          apartments from seeds; obstacles, shortest paths and episodes as tensors that simulators share
    simulator        N agents at once
    rendering/       camera images and top-down maps
    env              one agent, as a Gymnasium environment
    evaluation/      baselines, fixed episodes, measures and the sections of a report

Importing this package registers `paceline/PointNav-v0` with Gymnasium. It imports nothing heavy.
"""

from __future__ import annotations

import gymnasium

GYM_ID = "paceline/PointNav-v0"


def register() -> None:
    """Make `gymnasium.make("paceline/PointNav-v0", tier="small", ...)` work. It can be called repeatedly."""
    if GYM_ID not in gymnasium.registry:
        gymnasium.register(GYM_ID, entry_point="paceline.sims.navigation.env:PointNavEnv")


register()
