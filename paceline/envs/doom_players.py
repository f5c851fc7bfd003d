"""The players of one Doom match: a process with one engine and one thread per player.

The engines have a process of their own for two reasons. If an engine ends while it starts, ViZDoom crashes the Python
process that started it. And an engine whose neighbour is gone waits forever in native code.

An engine runs a frame when it has the inputs of all players for that frame. So the engines run in lock-step, however
their threads are scheduled. The input of a player who is not the host can take effect one frame late, depending on when
packets arrive.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from paceline.envs.doom_engine import Screen, configure, end_engines, engines_of, package

RULES = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 "
    "+sv_nojump 1 +sv_nofreelook 1 +sv_noexit 1 +viz_respawn_delay 2 +viz_nocheat 1"
)
"""Sample Factory's. Players respawn two seconds after their death."""

FRAMES_AT_ONCE = 2
"""Most frames that engines run before their players wait for each other. With more they hang: an engine that is done
does not answer its neighbours, and they need its answers to go on."""


@dataclass(frozen=True, kw_only=True)
class MatchPlan:
    """What the engines of a match need to start."""

    wad: str
    """A file in ViZDoom's folder of scenarios."""
    map: str
    players: int
    bots: int
    port: int
    """The host's UDP port."""
    seed: int
    resolution: tuple[int, int]
    frameskip: int
    buttons: tuple[str, ...]
    variables: tuple[str, ...]
    """The game variables of a `PlayerView`."""
    connect_seconds: int
    """How long engines wait for each other before they give up."""


class PlayerView(NamedTuple):
    """What one player sees and has."""

    screen: np.ndarray
    variables: np.ndarray
    frame: int
    """Frames since the map was loaded. Equal for all players."""


class MatchPlayer:
    """One engine, and the thread that runs it. The methods `start` to `scores` are commands."""

    def __init__(self, plan: MatchPlan, number: int, everyone: threading.Barrier) -> None:
        """`everyone` is where the players of the match wait for each other."""
        self.number, self._everyone = number, everyone
        self._plan, self._screen = plan, Screen(plan.resolution)
        self._game = _game(plan, number, self._screen.resolution)
        self.tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def start(self, _: None) -> None:
        self._game.init()
        # The engine numbers the players in the order of their connection. The host is 0.
        self.number = int(self._game.get_game_variable(package().GameVariable.PLAYER_NUMBER))

    def begin(self, _: None) -> PlayerView:
        """Start a new match. The host restarts the map for all players and adds the bots."""
        self._game.new_episode()
        if self.number == 0:
            self._game.send_game_command("removebots")
            for _bot in range(self._plan.bots):
                self._game.send_game_command("addbot")
        return self._view()

    def step(self, buttons: list[float]) -> PlayerView:
        self._game.set_action(buttons)
        left = self._plan.frameskip
        while left > FRAMES_AT_ONCE:
            self._game.advance_action(FRAMES_AT_ONCE, False)
            left -= FRAMES_AT_ONCE
            self._everyone.wait()
        self._game.advance_action(left)
        return self._view()

    def scores(self, _: None) -> list[int]:
        """The frags of all players, and of the bots after them."""
        server = self._game.get_server_state()
        pairs = zip(server.players_in_game, server.players_frags, strict=True)
        return [int(frags) for playing, frags in pairs if playing]

    def close(self, _: None) -> None:
        self._game.close()

    def _view(self) -> PlayerView:
        state = self._game.get_state()
        if state is None:
            raise RuntimeError("the engine has ended the map")
        return PlayerView(self._screen.fit(state.screen_buffer), state.game_variables, state.tic)

    def _run(self) -> None:
        while True:
            self.tasks.get()()


class MatchPlayers:
    """All players of a match. Replies to a command when all players have executed it.

    A reply is ("done", results in the order of the players' numbers), or ("failed", cause) as soon as one player fails.
    """

    def __init__(self, plan: MatchPlan, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        everyone = threading.Barrier(plan.players)
        self._players = [MatchPlayer(plan, number, everyone) for number in range(plan.players)]

    def command(self, name: str, arguments: list[Any] | None) -> None:
        self._players.sort(key=lambda player: player.number)
        results: dict[int, Any] = {}
        for player, argument in zip(self._players, arguments or [None] * len(self._players), strict=True):
            player.tasks.put(partial(self._execute, player, name, argument, results))

    def _execute(self, player: MatchPlayer, name: str, argument: Any, results: dict[int, Any]) -> None:
        try:
            result = getattr(player, name)(argument)
        except Exception as error:
            self._reply("failed", f"player {player.number}: {type(error).__name__}: {error}")
            return
        with self._lock:
            results[player.number] = result
            finished = len(results) == len(self._players)
        if finished:
            self._reply("done", [results[number] for number in sorted(results)])

    def _reply(self, kind: str, content: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._connection.send((kind, content))


def _game(plan: MatchPlan, number: int, resolution: Any) -> Any:
    vizdoom = package()
    game = vizdoom.DoomGame()
    game.set_doom_scenario_path(os.path.join(vizdoom.scenarios_path, plan.wad))
    game.set_doom_map(plan.map)
    game.set_doom_config_path(os.devnull)
    game.set_seed(plan.seed)
    game.set_episode_timeout(0)
    game.set_available_buttons([vizdoom.Button.__members__[name] for name in plan.buttons])
    configure(game, resolution, plan.variables)
    name = f"+viz_connect_timeout {plan.connect_seconds} +name player{number} +colorset {number % 8}"
    if number == 0:
        game.add_game_args(f"-host {plan.players} -port {plan.port} {RULES} {name}")
    else:
        game.add_game_args(f"-join 127.0.0.1:{plan.port} {name}")
    return game


def main(fd: int) -> None:
    """Serve the process at the other end of `fd` until it closes its end or dies."""
    os.set_inheritable(fd, False)  # an engine that had it would hide the end of this process
    connection = Connection(fd)
    with contextlib.suppress(EOFError, OSError):
        players = MatchPlayers(connection.recv(), connection)
        while True:
            players.command(*connection.recv())
    end_engines(engines_of(os.getpid()))
    os._exit(0)
