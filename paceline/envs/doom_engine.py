"""ViZDoom's engine: loading a scenario, and starting a headless game that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil
from gymnasium import spaces

from paceline.envs.factory import needs
from paceline.envs.options import Options
from paceline.errors import closest
from paceline.signals import signals_blocked

FIRST_GAMES = {"doom.wad", "doom1.wad", "doomu.wad", "freedoom1.wad"}
KILL_SECONDS = 3.0
"""Time for killed engines to disappear."""


def package() -> Any:
    with needs("doom"):
        import cv2  # noqa: F401
        import vizdoom
    return vizdoom


def load(config: str) -> Any:
    """A game with a scenario's configuration, not started."""
    game = package().DoomGame()
    game.load_config(config)
    # The maps of the first Doom and of its free version have other names, and the engine hangs if a map is missing.
    if os.path.basename(game.get_doom_game_path()) in FIRST_GAMES and game.get_doom_map() == "map01":
        game.set_doom_map("e1m1")
    return game


def native_resolutions() -> dict[tuple[int, int], Any]:
    members = package().ScreenResolution.__members__
    sizes = {name: name.removeprefix("RES_").split("X") for name in members}
    return {(int(width), int(height)): members[name] for name, (width, height) in sizes.items()}


def read_resolution(options: Options, default: tuple[int, int]) -> tuple[int, int]:
    """The option `resolution`: width and height of an observation."""
    width, height = options.sizes("resolution", default, count=2)
    if not any(width <= w and height <= h for w, h in native_resolutions()):
        largest = max(native_resolutions())
        raise options.error("resolution", f"at most {largest[0]}x{largest[1]}")
    return width, height


def read_measurements(options: Options, of_scenario: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """The option `measurements`: names of game variables, or `true` for those that `of_scenario` returns."""
    value = options.get("measurements", False)
    if value is False:
        return ()
    if value is True:
        if not (variables := of_scenario()):
            raise options.error("measurements", "names such as HEALTH,AMMO2, because the scenario lists none itself")
        return variables
    known = package().GameVariable.__members__
    variables = tuple(str(value).upper().split(","))
    for variable in variables:
        if variable not in known:
            raise options.error("measurements", f"true, false, or names of game variables{closest(variable, known)}")
    if len(set(variables)) < len(variables):
        raise options.error("measurements", "each game variable once")
    return variables


class Screen:
    """The screens of one game, rendered at the next larger resolution of the engine and resized to `size`."""

    def __init__(self, size: tuple[int, int]) -> None:
        import cv2

        # Otherwise OpenCV would start a thread pool in every worker.
        cv2.setNumThreads(1)
        self._resize = partial(cv2.resize, dsize=size, interpolation=cv2.INTER_LINEAR)
        width, height = size
        native = native_resolutions()
        rendered = min((w * h, (w, h)) for w, h in native if w >= width and h >= height)[1]
        self._resizes = rendered != size
        self._shape = (3, height, width)
        self.resolution = native[rendered]

    def fit(self, screen: np.ndarray) -> np.ndarray:
        """A screen of the engine, uint8 [3, height, width], in the size of an observation."""
        if not self._resizes:
            return screen
        resized = np.empty(self._shape, np.uint8)
        for channel in range(3):
            self._resize(screen[channel], dst=resized[channel])
        return resized


def observation_space(size: tuple[int, int], num_measurements: int) -> spaces.Space:
    """The screen, or with measurements a dict of `screen` and `measurements`."""
    width, height = size
    screen = spaces.Box(0, 255, (3, height, width), np.uint8)
    if not num_measurements:
        return screen
    return spaces.Dict(screen=screen, measurements=spaces.Box(-np.inf, np.inf, (num_measurements,), np.float32))


def observed(values: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Values of the game variables `names`, for observations and rewards.

    Health is at least 0. After a violent death the engine can report -999,900, which would spoil the normalisation of
    observations and outweigh all other rewards.
    """
    found = values.astype(np.float32)
    if "HEALTH" in names:
        index = names.index("HEALTH")
        found[index] = max(found[index], 0.0)
    return found


def configure(game: Any, resolution: Any, measurements: tuple[str, ...]) -> None:
    """Make a scenario headless and synchronous, without unused buffers."""
    vizdoom = package()
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_screen_resolution(resolution)
    game.set_screen_format(vizdoom.ScreenFormat.CRCGCB)
    game.set_audio_buffer_enabled(False)
    game.set_automap_buffer_enabled(False)
    game.set_depth_buffer_enabled(False)
    game.set_labels_buffer_enabled(False)
    game.set_notifications_buffer_enabled(False)
    if measurements:
        game.set_available_game_variables([vizdoom.GameVariable.__members__[name] for name in measurements])


def start(game: Any, wad: bytes | None = None) -> None:
    """Start the engine so that it shares no file with another instance and leaves no file behind.

    `wad` is the content of the scenario's file, if it has none. The engine keeps the deleted file open.

    By default it writes `_vizdoom.ini` and a folder `_vizdoom` to the current directory, and instances that start at
    the same moment crash each other. Here it reads and writes its settings at the null device, and starts in a
    temporary folder, which is deleted as soon as it runs.

    It inherits blocked signals. Schedulers and terminals send them to all processes of a job, and a run that saves a
    checkpoint on them must not lose its games first.
    """
    game.set_doom_config_path(os.devnull)
    with (
        signals_blocked(),
        tempfile.TemporaryDirectory(prefix="paceline-doom-") as folder,
        contextlib.chdir(folder),
    ):
        if wad is not None:
            path = os.path.join(folder, "scenario.wad")
            with open(path, "wb") as file:
                file.write(wad)
            game.set_doom_scenario_path(path)
        game.init()


def engines_of(pid: int) -> dict[int, str]:
    """The engines that the process `pid` has started: their process ids, and the names of their shared memory."""
    engines = {}
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error, ValueError, IndexError):
                command = process.cmdline()
                engines[process.pid] = command[command.index("+viz_instance_id") + 1]
    return engines


def end_engines(engines: dict[int, str]) -> None:
    """Kill `engines` (see `engines_of`), delete their shared memory, and wait for their end."""
    killed = []
    for pid, name in engines.items():
        # The id may belong to another process by now. A process that has ended has no command line.
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if name in process.cmdline():
                process.kill()
                killed.append(process)
        for kind in ("SM", "MQCtr", "MQDoom"):
            with contextlib.suppress(OSError):
                os.unlink(f"/dev/shm/ViZDoom{kind}{name}")
    deadline = time.monotonic() + KILL_SECONDS
    while any(map(_is_running, killed)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_running(process: psutil.Process) -> bool:
    """Whether a thread of it still runs. Its first thread is a zombie earlier, while others still hold its port."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.Error:
        return False
