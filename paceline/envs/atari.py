"""`atari:Game`: Atari games by ale-py with the standard DQN preprocessing, built into one environment.

For the same seed and actions it gives the same frames as Gymnasium's AtariEnv + AtariPreprocessing +
FrameStackObservation. In addition it can clip rewards, press FIRE at the start, and end an episode at a lost life. It
is faster because it drives the emulator directly; Gymnasium's wrappers also fetch an unused RGB screen on every frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from paceline.envs.factory import Factory, needs
from paceline.envs.ids import EnvId
from paceline.envs.options import Options
from paceline.errors import UsageError, closest

TWO_PLAYERS_ONLY = {"combat", "joust", "maze_craze", "warlords"}


@dataclass(frozen=True, kw_only=True)
class AtariSettings:
    """The options of an `atari:` id, and their defaults."""

    rom: str
    """ale-py's name of the game: "space_invaders"."""
    frameskip: int = 4
    """Frames for which an action is repeated; the observation is the pixelwise maximum of the last two."""
    stack: int = 4
    """Number of stacked observations, oldest first."""
    resolution: tuple[int, int] = (84, 84)
    """Width and height."""
    grayscale: bool = True
    """If false, every frame of the stack has three channels."""
    noop: int = 30
    """A game starts with 1 to this many no-op frames; 0 for none."""
    fire_reset: bool = True
    """Press FIRE for one frame at the start, in games that have it. Some games wait for it."""
    episodic_life: bool = False
    """A lost life terminates the agent's episode. The game itself continues at the next reset."""
    clip_rewards: bool = True
    """Rewards are -1, 0 or 1. The game's own score is `info["score"]` at its end."""
    repeat_action_probability: float = 0.0
    """Probability, in every frame, that the emulator repeats the last action ("sticky actions")."""
    full_action_space: bool = False
    """All 18 actions of the console instead of the game's own."""
    max_frames: int = 108_000
    """Frames after which a game is truncated (half an hour); 0 for never."""


def names() -> list[str]:
    return sorted(_roms())


def resolve(env_id: EnvId) -> Factory:
    roms = _roms()
    # Games are known both as "SpaceInvaders" and as "space_invaders".
    by_key = {_key(name): rom for name, rom in roms.items()}
    rom = by_key.get(_key(env_id.name))
    if rom is None:
        raise UsageError(
            f"game {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, roms)}; "
            "`paceline envs` lists all"
        )
    fields = [name for name in AtariSettings.__dataclass_fields__ if name != "rom"]
    options = Options(env_id, fields)
    width, height = options.sizes("resolution", AtariSettings.resolution, count=2)
    settings = AtariSettings(
        rom=rom,
        frameskip=options.integer("frameskip", AtariSettings.frameskip, minimum=1),
        stack=options.integer("stack", AtariSettings.stack, minimum=1),
        resolution=(width, height),
        grayscale=options.flag("grayscale", AtariSettings.grayscale),
        noop=options.integer("noop", AtariSettings.noop),
        fire_reset=options.flag("fire_reset", AtariSettings.fire_reset),
        episodic_life=options.flag("episodic_life", AtariSettings.episodic_life),
        clip_rewards=options.flag("clip_rewards", AtariSettings.clip_rewards),
        repeat_action_probability=options.number("repeat_action_probability", 0.0, maximum=1.0),
        full_action_space=options.flag("full_action_space", AtariSettings.full_action_space),
        max_frames=options.integer("max_frames", AtariSettings.max_frames),
    )
    return Factory(make=partial(_make, settings), frameskip=settings.frameskip, label=str(env_id))


def _make(settings: AtariSettings, env_index: int) -> AtariGame:
    return AtariGame(settings)


def _key(name: str) -> str:
    return name.replace("_", "").lower()


def _roms() -> dict[str, str]:
    """ale-py's names of all single-player games, by Gymnasium's names."""
    with needs("atari"):
        import cv2  # noqa: F401
        from ale_py import roms
    return {rom.title().replace("_", ""): rom for rom in roms.get_all_rom_ids() if rom not in TWO_PLAYERS_ONLY}


class AtariGame(gymnasium.Env):
    """One game. Observations are uint8 [stack, height, width], or [stack * 3, height, width] in colour.

    When a game ends within a step, its last observation repeats the one before, because the remaining frames do not
    run.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 - as Gymnasium declares it
    render_mode = "rgb_array"

    def __init__(self, settings: AtariSettings) -> None:
        import ale_py
        import cv2
        from ale_py import roms

        # Otherwise OpenCV would start a thread pool in every worker.
        cv2.setNumThreads(1)
        self._resize = partial(cv2.resize, dsize=settings.resolution, interpolation=cv2.INTER_AREA)
        self._settings = settings
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)  # see `_act`
        self._ale.setInt("max_num_frames_per_episode", settings.max_frames)
        self._rom_path: Any = roms.get_rom_path(settings.rom)
        self._noop = self._held = ale_py.Action.NOOP
        self._sticky: Any = np.random.MT19937()
        self._seed(None)

        ale, minimal = self._ale, self._ale.getMinimalActionSet()
        self._actions = ale.getLegalActionSet() if settings.full_action_space else minimal
        self._fire = ale_py.Action.FIRE if settings.fire_reset and ale_py.Action.FIRE in minimal else None
        self.action_space = spaces.Discrete(len(self._actions))

        channels = () if settings.grayscale else (3,)
        self._read_screen = ale.getScreenGrayscale if settings.grayscale else ale.getScreenRGB
        self._newer = np.empty((*ale.getScreenDims(), *channels), np.uint8)
        self._older = np.empty_like(self._newer)
        width, height = settings.resolution
        self._depth = 1 if settings.grayscale else 3
        self._stack = np.zeros((settings.stack * self._depth, height, width), np.uint8)
        self.observation_space = spaces.Box(0, 255, self._stack.shape, np.uint8)
        self._lives, self._score = 0, 0
        self._between_lives = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            super().reset(seed=seed)
            self._seed(seed)
        # Only the reset after a lost life continues the game.
        if not (self._between_lives and seed is None and self._go_on()):
            self._start_game()
        self._between_lives = False
        self._lives = self._ale.lives()
        self._read_screen(self._newer)
        self._older.fill(0)
        stack = np.empty_like(self._stack)
        self._write_frame(stack)
        for start in range(0, len(stack) - self._depth, self._depth):
            stack[start : start + self._depth] = stack[-self._depth :]
        self._stack = stack
        return stack, {"lives": self._lives}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward, life_lost = self._advance(self._actions[action])
        # A new array costs no more than shifting the old one, and the caller may keep it.
        stack = np.empty_like(self._stack)
        stack[: -self._depth] = self._stack[self._depth :]
        self._write_frame(stack)
        self._stack = stack
        self._score += reward

        ale = self._ale
        info: dict[str, Any] = {"lives": self._lives}
        game_over = ale.game_over()
        # A life lost in the frame of the time limit terminates: there is nothing to bootstrap.
        terminated = life_lost or ale.game_over(with_truncation=False)
        if game_over:
            info["score"] = self._score
        self._between_lives = life_lost and not game_over
        if self._settings.clip_rewards:
            reward = (reward > 0) - (reward < 0)
        return stack, float(reward), terminated, game_over and not terminated, info

    def render(self) -> np.ndarray:
        return self._ale.getScreenRGB()

    def get_state(self) -> dict[str, Any]:
        return {
            "made_for": self._made_for(),
            "emulator": self._ale.cloneState(include_rng=True),
            "random": self.np_random.bit_generator.state,
            "sticky": (self._sticky.state, self._held),
            "screens": (self._newer.copy(), self._older.copy()),
            "stack": self._stack,
            "game": (self._lives, self._score, self._between_lives),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        if (made_for := state["made_for"]) != self._made_for():
            raise ValueError(f"the state is of {made_for}; allowed: {self._made_for()}")
        self._ale.restoreState(state["emulator"])
        self.np_random.bit_generator.state = state["random"]
        self._sticky.state, self._held = state["sticky"]
        self._newer[:], self._older[:] = state["screens"]
        self._stack = state["stack"]
        self._lives, self._score, self._between_lives = state["game"]

    def _made_for(self) -> str:
        """What a state must agree with. The emulator's own errors do not say what is wrong."""
        import ale_py

        frames, screen = ("x".join(map(str, array.shape)) for array in (self._stack, self._newer))
        return f"{self._settings.rom} {frames} of {screen} in ale-py {ale_py.__version__}"

    def _advance(self, action: Any) -> tuple[int, bool]:
        """Repeat an action. Returns the reward, and whether a lost life ended the episode."""
        ale, last = self._ale, self._settings.frameskip - 1
        reward = 0
        for frame in range(last + 1):
            reward += self._act(action)
            lives, before = ale.lives(), self._lives
            self._lives = lives
            # Some games show zero lives for a while before they are over. Then the game's own end counts.
            if self._settings.episodic_life and 0 < lives < before:
                return reward, True
            if ale.game_over():
                break
            if frame == last - 1:
                self._read_screen(self._older)
            elif frame == last:
                self._read_screen(self._newer)
        return reward, False

    def _write_frame(self, stack: np.ndarray) -> None:
        """Preprocess the last two screens into the newest frame of `stack`."""
        if self._settings.frameskip > 1:
            np.maximum(self._newer, self._older, out=self._newer)
        if self._depth == 1:
            self._resize(self._newer, dst=stack[-1])
        else:
            stack[-3:] = self._resize(self._newer).transpose(2, 0, 1)

    def _start_game(self) -> None:
        self._reset_game()
        noops = int(self.np_random.integers(1, self._settings.noop + 1)) if self._settings.noop else 0
        for _ in range(noops):
            self._press(self._noop)
        if self._fire is not None:
            self._press(self._fire)

    def _press(self, action: Any) -> None:
        self._score += self._act(action)
        if self._ale.game_over():
            self._reset_game()

    def _reset_game(self) -> None:
        self._ale.reset_game()
        self._held, self._score = self._noop, 0

    def _act(self, action: Any) -> int:
        """Run one frame. Returns its reward.

        Sticky actions are those of the emulator, bit by bit. Its own cannot be saved: its state lacks the last action.
        """
        if probability := self._settings.repeat_action_probability:
            repeats = self._sticky.random_raw() < probability * 2**32
            self._sticky.random_raw()  # of the second player
            self._held = action = self._held if repeats else action
        return self._ale.act(action)

    def _go_on(self) -> bool:
        """Continue the game after a lost life. Returns False if that ended it."""
        self._score += self._act(self._noop)
        if self._fire is not None and not self._ale.game_over():
            self._score += self._act(self._fire)
        return not self._ale.game_over()

    def _seed(self, seed: int | None) -> None:
        # Like ale-py's own environment, so that the same seed gives the same game. The emulator takes a seed only when
        # it loads a game.
        np_seed, ale_seed = np.random.SeedSequence(seed).generate_state(2)
        self._np_random, self._np_random_seed = seeding.np_random(int(np_seed))
        self._ale.setInt("random_seed", int(ale_seed.astype(np.int32)))
        self._sticky.state = np.random.RandomState(ale_seed).get_state(legacy=False)
        self._ale.loadROM(self._rom_path)
