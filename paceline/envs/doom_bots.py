"""Deathmatches of one agent against ViZDoom's own bots: how they start, and what they reward.

The buttons are those of Sample Factory's table A.4. With `actions=multi_discrete` they are its seven heads. Death does
not end an episode: the agent respawns at once, mostly in the step of its death. Only the time limit ends an episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.envs.doom_engine import observed

SCENARIOS = ("cig",)
"""Multiplayer maps that support bots."""

MOST = 15
"""Most bots in a match. The engine has 16 places."""

BUTTONS = (
    "MOVE_FORWARD",
    "MOVE_BACKWARD",
    "MOVE_RIGHT",
    "MOVE_LEFT",
    *(f"SELECT_WEAPON{number}" for number in range(1, 8)),
    "ATTACK",
    "SPEED",
    "USE",
    "TURN_LEFT_RIGHT_DELTA",
)
FRAMES = 4 * 60 * 35
"""Length of an episode: four minutes."""

ARGUMENTS = (
    f"-host 1 -deathmatch +timelimit {FRAMES / 35 / 60 + 1} +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 "
    "+sv_spawnfarthest 1 +sv_nocrouch 1 +viz_respawn_delay 0 +viz_nocheat 1 +name agent +colorset 0"
)

REWARDS: dict[str, tuple[float, float]] = {
    "FRAGCOUNT": (1.0, 1.0),
    "DEATHCOUNT": (-0.75, 0.0),
    "HITCOUNT": (0.01, 0.0),
    "DAMAGECOUNT": (0.003, 0.0),
    "HEALTH": (0.005, 0.003),
    "ARMOR": (0.005, 0.001),
    **{f"WEAPON{number}": (0.1, 0.0) for number in range(3, 8)},
}
"""Reward for one point more, and for one point less, of a game variable. Sample Factory's paper gives no values."""
_DEATHS, _HEALTH = (list(REWARDS).index(name) for name in ("DEATHCOUNT", "HEALTH"))
_BELONGINGS = slice(_HEALTH, None)

NO_WEAPON = -1
"""`SELECTED_WEAPON` of an agent that has just appeared."""
SWITCH_PENALTY = 0.01
"""An agent that changes weapons all the time never shoots."""


class Match:
    """One agent's match against `bots` bots."""

    def __init__(self, game: Any, bots: int) -> None:
        import vizdoom

        self._game, self._bots = game, bots
        self._variables = [(vizdoom.GameVariable.__members__[name], *worth) for name, worth in REWARDS.items()]
        self._weapon = vizdoom.GameVariable.SELECTED_WEAPON
        game.set_available_buttons([vizdoom.Button.__members__[name] for name in BUTTONS])
        game.set_episode_timeout(FRAMES)
        game.add_game_args(ARGUMENTS)

    def begin(self) -> None:
        """Start a new episode with `bots` bots."""
        self._game.send_game_command("removebots")
        for _ in range(self._bots):
            self._game.send_game_command("addbot")
        self._before, self._weapon_before = self._now()

    def reward(self) -> float:
        """The reward for all changes since the last call, or since the agent respawned.

        A death costs the health that the agent had. The health, armour and weapons of a respawn are no gain.
        """
        now, weapon = self._now()
        changes = [after - before for after, before in zip(now, self._before, strict=True)]
        died = changes[_DEATHS] > 0
        if died:
            changes[_BELONGINGS] = [min(change, 0.0) for change in changes[_BELONGINGS]]
            changes[_HEALTH] = -self._before[_HEALTH]
        total = sum(
            change * (more if change > 0 else less)
            for change, (_, more, less) in zip(changes, self._variables, strict=True)
        )
        if weapon != self._weapon_before and not died and NO_WEAPON not in (weapon, self._weapon_before):
            total -= SWITCH_PENALTY
        self._before, self._weapon_before = now, weapon
        return total

    def revive(self) -> None:
        """Respawn a dead agent. It gets no reward for the health and weapons of the respawn."""
        if self._game.is_player_dead():
            self._game.respawn_player()
            self._before, self._weapon_before = self._now()

    def _now(self) -> tuple[list[float], float]:
        values = np.array([self._game.get_game_variable(variable) for variable, _, _ in self._variables])
        return observed(values, tuple(REWARDS)).tolist(), self._game.get_game_variable(self._weapon)
