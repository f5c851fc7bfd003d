"""The other navigation tasks in PointNav's apartments, with the agents of the recipes `pointnav` and `pointnav-small`.

Stopping ends the episode in every task. So a policy of one task has the actions of the others.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.config import Config
from paceline.learner.config import AuxiliaryConfig
from paceline.recipes.pointnav import pointnav, pointnav_small


def flee_small() -> Config:
    """Get as far as possible from the start, in unseen flats of one or two rooms. Ten minutes on a laptop (with --ranks
    2)."""
    return replace(pointnav_small(), env="flee:small?resolution=32&scenes=256", seconds=600.0, steps=3_000_000)


def flee() -> Config:
    """Get as far as possible from the start, in unseen apartments. DD-PPO's agent with a ResNet18, on a GPU."""
    return replace(pointnav(), env="flee:full?resolution=64&scenes=4096&depth_dtype=float16")


def explore_small() -> Config:
    """Visit as many places as possible, in unseen flats of one or two rooms. Ten minutes on a laptop (with --ranks
    2)."""
    return replace(pointnav_small(), env="explore:small?resolution=32&scenes=256", seconds=600.0, steps=3_000_000)


def explore() -> Config:
    """Visit as many places as possible, in unseen apartments. DD-PPO's agent with a ResNet18, on a GPU."""
    return replace(pointnav(), env="explore:full?resolution=64&scenes=4096&depth_dtype=float16")


def objectnav_small() -> Config:
    """Find a piece of furniture, in unseen flats of one or two rooms, from depth. Ten minutes on a laptop (with --ranks
    2)."""
    env = "objectnav:small?resolution=32&scenes=256&sensors=depth"
    return replace(pointnav_small(), env=env, seconds=600.0, steps=3_000_000)


def objectnav() -> Config:
    """Find a piece of furniture, in unseen apartments, from depth and colours. VER with CPC|A and a ResNet18, on a
    GPU."""
    base = pointnav()
    return replace(
        base,
        system="ver",
        env="objectnav:full?resolution=64&scenes=4096&depth_dtype=float16",
        ppo=replace(base.ppo, auxiliary=AuxiliaryConfig(kind="cpca")),
    )
