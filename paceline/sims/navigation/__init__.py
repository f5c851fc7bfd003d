"""PointGoal navigation in procedural apartments: a batched simulator in PyTorch, on CPU or GPU from one source.

    scene, floorplan, furniture, scenes    apartments from seeds
    free_space, geometry, geodesic, episodes, bank     the tensors that simulators share: obstacles, shortest paths, episodes
    simulator, images, render              N agents at once, and what they see
    env                                    one agent, as a Gymnasium environment
    agents, oracle, map_and_plan, evaluate baselines, and how well anyone does
    maps                                   top-down images

Importing this package registers `paceline/PointNav-v0` with Gymnasium; nothing heavy is imported with it.
"""

from __future__ import annotations

import gymnasium

GYM_ID = "paceline/PointNav-v0"


def register() -> None:
    """Make `gymnasium.make("paceline/PointNav-v0", tier="small", ...)` work; doing it twice does no harm."""
    if GYM_ID not in gymnasium.registry:
        gymnasium.register(GYM_ID, entry_point="paceline.sims.navigation.env:PointNavEnv")


register()
