"""`doom:duel`, `doom:rocket_duel` and `doom:full_deathmatch`: matches between agents, each with an engine of its own.

`duel` (MAP03) and `full_deathmatch` (MAP04) play on large maps of ViZDoom's `cig_with_unknown.wad`, with all weapons.
`rocket_duel` plays in the one room of ViZDoom's `multi_duel.wad`, with rocket launchers. Sample Factory's maps, ssl2
and freedm, are not in ViZDoom's package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.envs import doom_actions, doom_bots, doom_rewards
from paceline.envs.doom_engine import observation_space, observed, read_measurements, read_resolution
from paceline.envs.doom_match_process import MatchFailed, MatchProcess, start_match
from paceline.envs.doom_players import MatchPlan, PlayerView
from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.envs.options import Options
from paceline.errors import UsageError

MOST = 16
"""Most players and bots together. The engine has no more places."""

MEASUREMENTS = (
    "HEALTH",
    "ARMOR",
    "FRAGCOUNT",
    "PLAYER_COUNT",
    "SELECTED_WEAPON",
    "SELECTED_WEAPON_AMMO",
    "ATTACK_READY",
    *(f"WEAPON{slot}" for slot in range(8)),
    *(f"AMMO{slot}" for slot in range(8)),
)
"""The numbers that `measurements=true` observes: what a player's screen shows (Sample Factory's appendix A.3)."""

BEGINNINGS = 10
"""Most attempts to begin a match in which everyone lives. A player who appears inside another one kills it."""

_SHAPED = slice(len(doom_rewards.VARIABLES))
_DEATHS = doom_rewards.VARIABLES.index("DEATHCOUNT")
_DEAD = doom_rewards.VARIABLES.index("DEAD")


@dataclass(frozen=True, kw_only=True)
class MatchSettings:
    """The options of a match's id, and their defaults."""

    map: str
    wad: str = "cig_with_unknown.wad"
    """A file in ViZDoom's folder of scenarios."""
    players: int
    """Agents. Each has an engine of its own."""
    bots: int
    """Opponents that the engine plays itself."""
    frames: int = doom_bots.FRAMES
    """Length of a match."""
    frameskip: int = 2
    """Frames for which an action is repeated."""
    resolution: tuple[int, int] = (128, 72)
    """Width and height of the observation."""
    measurements: tuple[str, ...] = ()
    """Game variables to observe."""
    timeout_seconds: float = 30.0
    """A start, step or new episode that takes longer has failed. Below the pool's time limit, so that the match fails
    and not its worker."""


SCENARIOS = {
    "duel": MatchSettings(map="map03", players=2, bots=0),
    "rocket_duel": MatchSettings(wad="multi_duel.wad", map="map01", players=2, bots=0),
    "full_deathmatch": MatchSettings(map="map04", players=4, bots=4),
}
OPTIONS = ("players", "bots", "frames", "frameskip", "resolution", "measurements", "timeout_seconds")


def resolve(env_id: EnvId) -> Factory:
    options, default = Options(env_id, OPTIONS), SCENARIOS[env_id.name]
    settings = MatchSettings(
        map=default.map,
        wad=default.wad,
        players=options.integer("players", default.players, minimum=1),
        bots=options.integer("bots", default.bots),
        frames=options.integer("frames", default.frames, minimum=1),
        frameskip=options.integer("frameskip", default.frameskip, minimum=1),
        resolution=read_resolution(options, default.resolution),
        measurements=read_measurements(options, lambda: MEASUREMENTS),
        timeout_seconds=options.number("timeout_seconds", default.timeout_seconds, minimum=0.1),
    )
    if not 2 <= settings.players + settings.bots <= MOST:
        raise UsageError(
            f"{str(env_id)!r} has {settings.players} players and {settings.bots} bots; allowed: 2 to {MOST} together"
        )
    return Factory(make=partial(_make, settings), frameskip=settings.frameskip, label=str(env_id))


def _make(settings: MatchSettings, env_index: int) -> DoomMatch:
    return DoomMatch(settings)


class DoomMatch:
    """A match with PettingZoo's parallel API. Its agents are `player_0`, `player_1` and so on.

    A match ends for all agents at once, by truncation, after `frames` frames. A dead agent respawns after two seconds.
    The last `info` of an agent has its `frags`, `deaths` and `win`: 1 if it has more frags than everyone else, 0.5 if
    others have as many, 0 if someone has more.

    `reward_weights` are the weights of the reward's parts (`doom_rewards.WEIGHTS`). They are read at every step, and
    can be replaced or changed at any time. `set_reward_weights(agent, weights)` gives one agent weights of its own.

    The engines start at the first `reset`, and again at every `reset` with a seed. Other resets start the next match
    in the same engines. The seed determines where players appear. It does not determine the whole course of a match,
    because inputs can take effect one frame late.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 35, "name": "doom_match"}  # noqa: RUF012
    render_mode = "rgb_array"
    measure_names = ("frags", "deaths", "win")
    """Numbers of the last `info`, whose means a run reports."""

    def __init__(self, settings: MatchSettings) -> None:
        self._settings = settings
        self._buttons = doom_actions.MultiDiscrete(doom_bots.BUTTONS)
        self._observation_space = observation_space(settings.resolution, len(settings.measurements))
        self._variables = tuple(dict.fromkeys((*doom_rewards.VARIABLES, *settings.measurements)))
        self._measured = [self._variables.index(name) for name in settings.measurements]
        self._shaping = [doom_rewards.Shaping() for _ in range(settings.players)]
        self._own_weights: dict[str, dict[str, float]] = {}
        self._match: MatchProcess | None = None
        self._frames = 0
        self._deaths_before = [0.0] * settings.players
        self._views: list[PlayerView] = []
        self.possible_agents = [f"player_{number}" for number in range(settings.players)]
        self.agents: list[str] = []
        self.reward_weights = dict(doom_rewards.WEIGHTS)

    @property
    def unwrapped(self) -> DoomMatch:
        return self

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        return len(self.possible_agents)

    def observation_space(self, agent: str) -> spaces.Space:
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space:
        return self._buttons.space

    def set_reward_weights(self, agent: str, weights: Mapping[str, float]) -> None:
        """Give `agent` weights of its own, in place of `reward_weights`."""
        if agent not in self.possible_agents:
            raise UsageError(f"agent {agent!r} does not exist; allowed: {', '.join(self.possible_agents)}")
        self._own_weights[agent] = doom_rewards.check_weights(weights)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        self.agents = []
        if seed is not None:
            self.close()
        if self._match is None:
            self._match = start_match(self._plan(seed), self._settings.timeout_seconds)
        for _ in range(BEGINNINGS):
            self._observe(self._ask("begin"))
            if not any(view.variables[_DEAD] for view in self._views):
                break
        self._frames = 0
        for shaping, view in zip(self._shaping, self._views, strict=True):
            shaping.begin(view.variables[_SHAPED])
        # The engine counts the deaths of all matches.
        self._deaths_before = [_deaths(view) for view in self._views]
        self.agents = list(self.possible_agents)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        agents = self.possible_agents
        self._observe(self._ask("step", [self._buttons.press(actions[agent]) for agent in agents]))
        self._frames += self._settings.frameskip
        rewards = {
            agent: shaping.reward(view.variables[_SHAPED], self._own_weights.get(agent, self.reward_weights))
            for agent, shaping, view in zip(agents, self._shaping, self._views, strict=True)
        }
        over = self._frames >= self._settings.frames
        infos: dict[str, dict[str, float]] = self._outcomes() if over else {agent: {} for agent in agents}
        self.agents = [] if over else list(agents)
        return self._observations(), rewards, dict.fromkeys(agents, False), dict.fromkeys(agents, over), infos

    def render(self) -> np.ndarray:
        """The screens of all players side by side."""
        return np.concatenate([view.screen for view in self._views], axis=2).transpose(1, 2, 0)

    def close(self) -> None:
        if self._match is not None:
            self._match.close()
            self._match = None

    def _plan(self, seed: int | None) -> MatchPlan:
        settings = self._settings
        return MatchPlan(
            wad=settings.wad,
            map=settings.map,
            players=settings.players,
            bots=settings.bots,
            port=0,
            seed=int(np.random.default_rng(seed).integers(2**32)),
            resolution=settings.resolution,
            frameskip=settings.frameskip,
            buttons=doom_bots.BUTTONS,
            variables=self._variables,
            # An engine that gives up while it starts takes its process down, so the environment's limit comes first.
            connect_seconds=int(settings.timeout_seconds) + 10,
        )

    def _ask(self, command: str, arguments: list[Any] | None = None) -> list[Any]:
        if self._match is None:
            raise RuntimeError("no match is running; call reset first")
        try:
            return self._match.ask(command, arguments)
        except BaseException:
            self._match = None  # it has ended itself
            raise

    def _observe(self, views: list[PlayerView]) -> None:
        frames = [view.frame for view in views]
        if len(set(frames)) > 1:
            self.close()
            raise MatchFailed(f"the engines of the Doom match are at different frames: {frames}")
        self._views = views

    def _observations(self) -> dict[str, Any]:
        return {agent: self._observation(view) for agent, view in zip(self.possible_agents, self._views, strict=True)}

    def _observation(self, view: PlayerView) -> Any:
        if not self._measured:
            return view.screen
        measurements = observed(view.variables[self._measured], self._settings.measurements)
        return {"screen": view.screen, "measurements": measurements}

    def _outcomes(self) -> dict[str, dict[str, float]]:
        """The `info` of every agent at the end of a match."""
        scores = self._ask("scores")[0]
        outcomes = {}
        for number, agent in enumerate(self.possible_agents):
            frags, best_other = scores[number], max(scores[:number] + scores[number + 1 :])
            outcomes[agent] = {
                "frags": float(frags),
                "deaths": _deaths(self._views[number]) - self._deaths_before[number],
                "win": 0.5 if frags == best_other else float(frags > best_other),
            }
        return outcomes


def _deaths(view: PlayerView) -> float:
    return float(view.variables[_DEATHS])
