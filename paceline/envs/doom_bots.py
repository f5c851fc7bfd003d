"""Deathmatches of one agent against ViZDoom's own bots: how they are started, and what they are rewarded for.

Buttons are those of Sample Factory's table A.4; with `actions=multi_discrete` they are its seven heads. Dying is no end: the
agent comes back at once, and an episode ends with its time.
"""

from __future__ import annotations

from typing import Any

SCENARIOS = ("cig",)
"""Maps for several players that hold a match with bots."""

MOST = 15
"""Bots in a match: the engine has places for 16."""

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
"""Of an episode: four minutes."""

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
"""What a point more and a point less of a game variable are worth. Sample Factory names what is rewarded, not how much."""

SWITCH_PENALTY = 0.01
"""Changing weapons all the time keeps an agent from ever shooting."""


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
        """A new episode: as many bots as there are to be, whoever was there before."""
        self._game.send_game_command("removebots")
        for _ in range(self._bots):
            self._game.send_game_command("addbot")
        self._before, self._weapon_before = self._now()

    def reward(self) -> float:
        """What has changed since the last call, or since the agent came back."""
        now, weapon = self._now()
        changes = [after - before for after, before in zip(now, self._before, strict=True)]
        total = sum(
            change * (more if change > 0 else less)
            for change, (_, more, less) in zip(changes, self._variables, strict=True)
        )
        if weapon != self._weapon_before:
            total -= SWITCH_PENALTY
        self._before, self._weapon_before = now, weapon
        return total

    def revive(self) -> None:
        """Bring the agent back if it is dead; health and weapons that it comes back with are nobody's merit."""
        if self._game.is_player_dead():
            self._game.respawn_player()
            self._before, self._weapon_before = self._now()

    def _now(self) -> tuple[list[float], float]:
        return [self._game.get_game_variable(v) for v, _, _ in self._variables], self._game.get_game_variable(
            self._weapon
        )
