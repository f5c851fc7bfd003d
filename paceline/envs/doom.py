"""`doom:scenario`: ViZDoom's scenarios by the vizdoom package, without its Gymnasium wrapper.

A scenario's own time-out is a truncation; death and a reached goal are terminations. Defaults follow Sample Factory:
rendered at 160x120, resized to 128x72, four frames a step.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from paceline.envs import doom_actions, doom_battle, doom_bots, doom_matches, doom_maze
from paceline.envs.doom_engine import (
    Screen,
    configure,
    load,
    observation_space,
    observed,
    package,
    read_measurements,
    read_resolution,
    start,
)
from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.envs.options import Options
from paceline.errors import UsageError, closest

MULTIPLAYER = {"cig", "multi", "multi_duel"}


@dataclass(frozen=True, kw_only=True)
class DoomSettings:
    """The options of a `doom:` id, and their defaults."""

    config: str
    """The scenario's file, or the name of one of our own."""
    resolution: tuple[int, int] = (128, 72)
    """Width and height of the observation."""
    frameskip: int = 4
    """Frames for which an action is repeated."""
    actions: str = "discrete"
    """"discrete": one button at a time; "multi_discrete": independent heads of exclusive buttons."""
    measurements: tuple[str, ...] = ()
    """Game variables to observe. `measurements=true` takes those of the scenario, `HEALTH,AMMO2` any."""
    reward_scale: float = 1.0
    """Factor of the scenario's rewards, whose scales differ by up to 100."""
    bots: int = 0
    """Bots as opponents in a deathmatch; 0 for a single-player scenario."""


def names() -> list[str]:
    """The package's single-player scenarios whose game files it ships, and our own."""
    vizdoom = package()
    found = []
    for config in vizdoom.configs:
        name = config.removesuffix(".cfg")
        game_file = load(os.path.join(vizdoom.scenarios_path, config)).get_doom_game_path()
        # The engine looks next to the scenario first, and then in its own folder, which has the free games.
        places = [game_file, os.path.join(vizdoom.root_path, os.path.basename(game_file))]
        if name not in MULTIPLAYER and any(map(os.path.exists, places)):
            found.append(name)
    return [*found, *doom_battle.SCENARIOS, *doom_matches.SCENARIOS]


def resolve(env_id: EnvId) -> Factory:
    if env_id.name in doom_matches.SCENARIOS:
        return doom_matches.resolve(env_id)
    options = Options(env_id, ["resolution", "frameskip", "actions", "measurements", "reward_scale", "bots"])
    bots = options.integer("bots", DoomSettings.bots)
    if bots > doom_bots.MOST:
        raise options.error("bots", f"at most {doom_bots.MOST}")
    config = _config(env_id, bots)
    settings = DoomSettings(
        config=config,
        resolution=read_resolution(options, DoomSettings.resolution),
        frameskip=options.integer("frameskip", DoomSettings.frameskip, minimum=1),
        actions=options.choice("actions", DoomSettings.actions, doom_actions.KINDS),
        measurements=read_measurements(options, partial(_variables, config)),
        reward_scale=options.number("reward_scale", DoomSettings.reward_scale),
        bots=bots,
    )
    return Factory(make=partial(_make, settings), frameskip=settings.frameskip, label=str(env_id))


def named_code(env_id: EnvId) -> str | None:
    """A scenario's file can name the program of the engine (`vizdoom_path`)."""
    return f"start the program that {env_id.name!r} names" if env_id.name.endswith(".cfg") else None


def _make(settings: DoomSettings, env_index: int) -> Doom:
    return Doom(settings)


def _config(env_id: EnvId, bots: int) -> str:
    """The scenario file of an id. A path that ends in .cfg is the user's own. Our own scenarios have no file."""
    name = env_id.name
    if bots and name not in doom_bots.SCENARIOS:
        raise UsageError(f"option 'bots' of {str(env_id)!r} is for deathmatches: {', '.join(doom_bots.SCENARIOS)}")
    if name in doom_bots.SCENARIOS and bots:
        return os.path.join(package().scenarios_path, f"{name}.cfg")
    if name in doom_battle.SCENARIOS:
        return name
    if name.endswith(".cfg"):
        if not os.path.isfile(name):
            raise UsageError(f"scenario file {name!r} of {str(env_id)!r} does not exist")
        return os.path.abspath(name)
    if name in MULTIPLAYER:
        against = f", or doom:{name}?bots=8" if name in doom_bots.SCENARIOS else ""
        raise UsageError(
            f"scenario {name!r} of {str(env_id)!r} needs several players; allowed: {', '.join(names())}{against}"
        )
    allowed = names()
    if name not in allowed:
        raise UsageError(
            f"scenario {name!r} of {str(env_id)!r} does not exist{closest(name, allowed)}; "
            f"allowed: {', '.join(allowed)}, or the path of a .cfg file"
        )
    return os.path.join(package().scenarios_path, f"{name}.cfg")


def _game(config: str) -> Any:
    """The game of a scenario, not started."""
    if config not in doom_battle.SCENARIOS:
        return load(config)
    game = package().DoomGame()
    doom_battle.prepare(game)
    return game


def _variables(config: str) -> tuple[str, ...]:
    return tuple(variable.name for variable in _game(config).get_available_game_variables())


class Doom(gymnasium.Env):
    """One game in a process of ViZDoom's own, which `close` ends.

    Observations are the screen, uint8 [3, height, width], or with measurements a dict of `screen` and `measurements`.
    ViZDoom has no screen once an episode is over, so the last observation of an episode repeats the one before. The
    last `info` of an episode has the scenario's variables by lower-case name.

    The engine of a match takes a seed only when it starts. So it starts at the first `reset`, and again at every
    `reset` with a seed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 35}  # noqa: RUF012 - as Gymnasium declares it
    render_mode = "rgb_array"

    def __init__(self, settings: DoomSettings) -> None:
        self._screen = Screen(settings.resolution)
        self._frameskip, self._reward_scale = settings.frameskip, settings.reward_scale
        self._game = _game(settings.config)
        self._match = doom_bots.Match(self._game, settings.bots) if settings.bots else None
        maze = doom_battle.SCENARIOS.get(settings.config)
        self._battle = doom_battle.Battle(self._game) if maze else None
        self._variables = self._game.get_available_game_variables()
        self._measurements = settings.measurements
        configure(self._game, self._screen.resolution, settings.measurements)
        buttons = [button.name for button in self._game.get_available_buttons()]
        deltas = doom_battle.DELTAS if maze else doom_actions.DELTAS
        self._buttons = doom_actions.KINDS[settings.actions](buttons, deltas)
        self.action_space = self._buttons.space
        self.observation_space = observation_space(settings.resolution, len(settings.measurements))
        self._observation: Any = None
        if self._match is None:
            start(self._game, doom_maze.wad(maze) if maze else None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        restarts = self._match is not None and (seed is not None or not self._game.is_running())
        if restarts:
            self._game.close()
        # With a seed of its own an episode does not depend on earlier ones.
        self._game.set_seed(int(self.np_random.integers(2**32)))
        if restarts:
            start(self._game)
        self._game.new_episode()
        if (rules := self._match or self._battle) is not None:
            rules.begin()
        self._observation = self._observe(self._game.get_state())
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        game = self._game
        if self._match is not None:
            self._match.revive()
        reward = game.make_action(self._buttons.press(action), self._frameskip)
        if (rules := self._match or self._battle) is not None:
            reward = rules.reward()
        reward *= self._reward_scale
        if not game.is_episode_finished():
            self._observation = self._observe(game.get_state())
            return self._observation, reward, False, False, {}
        # Death ends an episode, but not a match.
        truncated = self._match is not None or (game.is_episode_timeout_reached() and not game.is_player_dead())
        info = {variable.name.lower(): game.get_game_variable(variable) for variable in self._variables}
        return self._observation, reward, not truncated, truncated, info

    def render(self) -> np.ndarray:
        screen = self._observation["screen"] if self._measurements else self._observation
        return screen.transpose(1, 2, 0)

    def close(self) -> None:
        self._game.close()

    def _observe(self, state: Any) -> Any:
        screen = self._screen.fit(state.screen_buffer)
        if not self._measurements:
            return screen
        return {"screen": screen, "measurements": observed(state.game_variables, self._measurements)}
