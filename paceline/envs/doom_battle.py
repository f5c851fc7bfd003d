"""`doom:battle` and `doom:battle2`: kill monsters in a maze, and find medical kits and ammunition in time.

They stand in for Sample Factory's scenarios of these names, whose files are not in ViZDoom's package. The mazes are our
own (`doom_maze`), so scores cannot be compared with published ones. Rules, rewards and action heads are Sample
Factory's: one minute, a reward of 1 for a kill, and small ones for health and ammunition. `battle2` has a larger maze
with longer ways, and items that come back later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.envs.doom_maze import Maze

SCENARIOS = {
    "battle": Maze(rooms=7, open_share=0.6, monsters=20, medikits=12, ammo=16, respawn=350, walls=("STONE2",), seed=1),
    "battle2": Maze(
        rooms=12,
        open_share=0.2,
        monsters=28,
        medikits=12,
        ammo=14,
        respawn=700,
        walls=("STONE2", "BRICK7", "STARTAN3", "BROWN1"),
        seed=2,
    ),
}
BUTTONS = (
    "MOVE_FORWARD",
    "MOVE_BACKWARD",
    "MOVE_RIGHT",
    "MOVE_LEFT",
    "ATTACK",
    "SPEED",
    "TURN_LEFT_RIGHT_DELTA",
)
DELTAS = np.linspace(-10.0, 10.0, 11)
"""Degrees per frame that an agent can turn."""
FRAMES = 60 * 35
SKILL = 2

REWARDS: dict[str, tuple[float, float]] = {
    "KILLCOUNT": (1.0, 0.0),
    "HEALTH": (0.005, -0.003),
    "AMMO4": (0.001, -0.0005),
}
"""Reward for one point more, and for one point less, of a game variable. Slot 4 is the chaingun."""


def prepare(game: Any) -> None:
    """Set the rules of a game that is not started."""
    import vizdoom

    game.set_doom_map("map01")
    game.set_doom_skill(SKILL)
    game.set_episode_timeout(FRAMES)
    game.set_available_buttons([vizdoom.Button.__members__[name] for name in BUTTONS])
    game.set_available_game_variables([vizdoom.GameVariable.__members__[name] for name in REWARDS])


class Battle:
    """The rewards of one game."""

    def __init__(self, game: Any) -> None:
        import vizdoom

        self._game = game
        self._variables = [vizdoom.GameVariable.__members__[name] for name in REWARDS]

    def begin(self) -> None:
        self._before = self._now()

    def reward(self) -> float:
        """The reward for all changes since the last call."""
        now = self._now()
        changes = zip(now, self._before, REWARDS.values(), strict=True)
        self._before = now
        return sum(
            (after - before) * more if after > before else (before - after) * less
            for after, before, (more, less) in changes
        )

    def _now(self) -> list[float]:
        return [max(0.0, self._game.get_game_variable(variable)) for variable in self._variables]
