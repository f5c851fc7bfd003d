"""One episode of a trained policy as mp4 or gif.

Pictures are what the environment renders, or, where it cannot render, the images that the policy itself sees.
mp4 files are MPEG-4 part 2: of what OpenCV's packages encode, VP9 took 60 times as long (480x480: 8 frames a second
instead of 475), and H.264 is not among it. Web browsers do not play it; they do play gif.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from paceline.envs.ids import EnvId
from paceline.envs.registry import Factory, resolve
from paceline.errors import MissingExtra, UsageError
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.files import replacing
from paceline.pool import Pool, make_pool
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec, StepBatch
from paceline.pool.spaces import Leaf

log = logging.getLogger(__name__)

Frame = np.ndarray
"""[height, width, 3] uint8, red first."""
MAX_FRAMES = 5000
"""A longer episode is cut, and said to be."""
FRAMES_PER_SECOND = 30.0
"""Where an environment does not say what it is."""
SMALLEST_SIDE = 256
"""Observations are enlarged by a whole number to about this."""


def film(run: SavedRun, path: Path, *, env: str, sampled: bool = False, seed: int = 0) -> int:
    """Write one episode in `env` to `path`, .mp4 or .gif; the number of frames."""
    check_path(path)
    device = run.device()
    camera, pool = set_up(env, seed, str(device))
    with contextlib.closing(pool):
        player = Player(run.policy(pool.spec, device), pool.spec.num_slots, device, sampled=sampled, seed=seed)
        with replacing(path) as temporary, WRITERS[path.suffix](temporary, camera.frames_per_second) as write:
            count = _roll(pool, player, camera, write)
    return count


def check_path(path: Path) -> None:
    """Refuse, before anything is played, a video that could not be written."""
    if path.suffix not in WRITERS:
        raise UsageError(f"video {str(path)!r} ends in {path.suffix!r}; allowed: {', '.join(WRITERS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"video {str(path)!r}: the folder {path.absolute().parent} does not exist")
    with _needs_packages(path.suffix):
        if path.suffix == ".mp4":
            import cv2  # noqa: F401
        else:
            import PIL.Image  # noqa: F401


@contextlib.contextmanager
def _needs_packages(suffix: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"a {suffix} video", "video", error) from error


class Camera(Protocol):
    """Where frames come from."""

    frames_per_second: float

    def look(self, batch: StepBatch) -> list[Frame]:
        """The frames since the last batch, of the first episode only."""
        ...

    def is_over(self) -> bool:
        """Whether the first episode has ended."""
        ...


def _roll(pool: Pool, player: Player, camera: Camera, write: Callable[[Frame], None]) -> int:
    """Play the first episode; the number of frames written."""
    count = 0
    while True:
        batch = pool.recv(min_slots=None)
        for frame in camera.look(batch):
            write(frame)
            count += 1
        if camera.is_over():
            return count
        if count >= MAX_FRAMES:
            log.warning("the episode did not end within %d frames: the video is cut there", MAX_FRAMES)
            return count
        pool.send(player.act(batch), batch.slots)


def set_up(env: str, seed: int, device: str = "cpu") -> tuple[Camera, Pool]:
    """One environment with a camera on it."""
    factory = resolve(env)
    factory = factory.single or factory  # a batched simulator may have a class for one environment, which renders
    why = f"it runs only in the {factory.backend!r} pool"
    if factory.backend is None:
        try:
            stage = Stage(_renderable(env, factory), factory.frameskip)
        except CannotRender as error:
            why = str(error)
        else:
            on_stage = Factory(make=lambda index: stage, frameskip=factory.frameskip, label=factory.label)
            return stage, make_pool(on_stage, PoolConfig(kind="serial", num_envs=1), seed=seed)
    config = PoolConfig(kind="serial" if factory.backend is None else "auto", num_envs=1)
    pool = make_pool(factory, config, seed=seed, device=device)
    try:
        return ObservationCamera(env, pool.spec, why), pool
    except BaseException:
        pool.close()
        raise


class CannotRender(Exception):
    """An environment that gives no pictures, and why."""


def _renderable(env: str, factory: Factory) -> Any:
    """An environment of which `render` is known to work."""
    made = factory.make(0)
    modes = (getattr(made, "metadata", None) or {}).get("render_modes", ())
    if getattr(made, "render_mode", None) is None and "rgb_array" in modes:
        made.close()
        made = _with_render_mode(env)
    try:
        made.reset()
        as_frame(made.render())
    # Whatever a renderer that finds no display, driver or package raises.
    except Exception as error:
        made.close()
        hint = "; without a display try MUJOCO_GL=egl or MUJOCO_GL=osmesa" if "GL" in f"{error}" else ""
        raise CannotRender(f"rendering it fails ({type(error).__name__}: {error}{hint})") from error
    return made


def _with_render_mode(env: str) -> Any:
    env_id = EnvId.parse(env)
    options = {**env_id.options, "render_mode": "rgb_array"}
    try:
        return resolve(EnvId(env_id.family, env_id.name, options)).make(0)
    except UsageError as error:
        raise CannotRender("it has no option render_mode=rgb_array") from error


class Stage:
    """An environment, of either API, that is rendered whenever it has moved.

    The pool starts the next episode within the step that ends one: from outside, the last picture would be missed.
    """

    def __init__(self, env: Any, frameskip: int) -> None:
        self._env = env
        rate = (getattr(env, "metadata", None) or {}).get("render_fps") or FRAMES_PER_SECOND
        # Our own environments say how fast the simulator's frames follow each other, and are looked at every step.
        self.frames_per_second = max(1.0, rate / frameskip)
        self._taken: list[Frame] = []
        self._num_resets = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **options: Any) -> Any:
        result = self._env.reset(**options)
        self._num_resets += 1
        self._shoot()
        return result

    def step(self, action: Any) -> Any:
        result = self._env.step(action)
        self._shoot()
        return result

    def _shoot(self) -> None:
        if not self.is_over():
            self._taken.append(as_frame(self._env.render()))

    def look(self, batch: StepBatch) -> list[Frame]:
        taken, self._taken = self._taken, []
        return taken

    def is_over(self) -> bool:
        return self._num_resets > 1


class ObservationCamera:
    """The first image among the observations of the first slot."""

    def __init__(self, env: str, spec: PoolSpec, why: str) -> None:
        images = [leaf for leaf in spec.obs if len(leaf.shape) == 3]
        if not images:
            raise UsageError(
                f"there is nothing to film in {env}: {why}, and none of its observations "
                f"({', '.join(leaf.name for leaf in spec.obs)}) is an image (three dimensions)"
            )
        log.info("the video shows the observation %r of %s: %s", images[0].name, env, why)
        self.frames_per_second = max(1.0, FRAMES_PER_SECOND / spec.frameskip)
        self._leaf, self._over = images[0], False

    def look(self, batch: StepBatch) -> list[Frame]:
        self._over = bool(batch.ended()[0])
        # Row 0 is slot 0, by which `final_obs` is indexed: all slots are received together, in order.
        image = (batch.final_obs if self._over else batch.obs)[self._leaf.name][0]
        return [from_observation(np.asarray(image.cpu() if hasattr(image, "cpu") else image), self._leaf)]

    def is_over(self) -> bool:
        return self._over


def as_frame(picture: Any) -> Frame:
    """What `render` returned, if it is a picture."""
    frame = np.asarray(picture)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise ValueError(f"render() gave {type(picture).__name__} {frame.dtype} {frame.shape}, not uint8 [H, W, 3]")
    return frame


def from_observation(image: np.ndarray, leaf: Leaf) -> Frame:
    """An image as policies see it, channels first, as a frame: the newest colours, or the newest grey, of a stack."""
    if image.dtype != np.uint8:
        assert isinstance(leaf.space, spaces.Box)
        low, high = leaf.space.low.astype(np.float64), leaf.space.high.astype(np.float64)
        bounded = np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()
        share = (image - low) / (high - low) if bounded else image
        image = (np.clip(share, 0.0, 1.0) * 255).astype(np.uint8)
    num_channels, height, width = image.shape
    grey = num_channels % 3 != 0
    frame = np.repeat(image[-1:], 3, axis=0) if grey else image[-3:]
    scale = max(1, SMALLEST_SIDE // min(height, width))
    return frame.transpose(1, 2, 0).repeat(scale, axis=0).repeat(scale, axis=1)


@contextlib.contextmanager
def write_mp4(path: Path, frames_per_second: float) -> Iterator[Callable[[Frame], None]]:
    import cv2

    writer = cv2.VideoWriter()
    size: tuple[int, int] | None = None

    def write(frame: Frame) -> None:
        nonlocal size
        if size is None:
            # Encoders store colours for blocks of two by two: an odd row or column is left out.
            size = frame.shape[1] // 2 * 2, frame.shape[0] // 2 * 2
            writer.open(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"mp4v"), frames_per_second, size)
            if not writer.isOpened():
                raise UsageError("this installation of OpenCV cannot write mp4 files; allowed: .gif")
        writer.write(np.ascontiguousarray(frame[: size[1], : size[0], ::-1]))

    try:
        yield write
    finally:
        writer.release()


@contextlib.contextmanager
def write_gif(path: Path, frames_per_second: float) -> Iterator[Callable[[Frame], None]]:
    from PIL import Image

    frames: list[Image.Image] = []
    # With a palette each, a third of the memory.
    yield lambda frame: frames.append(Image.fromarray(frame).quantize())
    # Delays are stored in hundredths of a second, and players do not believe anything below two.
    delay = max(20, round(100 / frames_per_second) * 10)
    frames[0].save(path, format="gif", save_all=True, append_images=frames[1:], duration=delay, loop=0)


WRITERS = {".mp4": write_mp4, ".gif": write_gif}
