"""One episode of a trained policy, or of a baseline, as mp4 or gif.

Frames are what the environment renders or, if it cannot render, the images that the policy observes. mp4 files are
MPEG-4 part 2: OpenCV's packages cannot encode H.264, and their VP9 is far slower. Web browsers play gif, but not this.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled

from paceline.envs.classic_pictures import drawn
from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.envs.registry import resolve
from paceline.errors import MissingExtra, UsageError, extra_hint
from paceline.evaluation.saved import SavedRun
from paceline.evaluation.seated_players import Acts, make_player
from paceline.files import replacing
from paceline.nets.images import is_channels_last, is_image
from paceline.pool import Pool, make_pool
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec, StepBatch
from paceline.pool.spaces import Leaf

log = logging.getLogger(__name__)

Frame = np.ndarray
"""[height, width, 3] uint8, red first."""
MAX_FRAMES = 5000
"""The video of a longer episode ends here, with a warning."""
FRAMES_PER_SECOND = 30.0
"""For environments that do not state a rate."""
SMALLEST_SIDE = 256
"""Observed images are enlarged by a whole factor to about this many pixels."""


def film(run: SavedRun, path: Path, *, env: str, sampled: bool = False, seed: int = 0) -> int:
    """Write one episode in `env` to `path`, .mp4 or .gif; the number of frames."""

    def make(spec: PoolSpec, device: torch.device) -> Acts:
        return make_player(run, spec, device, sampled=sampled, seed=seed)

    return film_player(make, path, env=env, seed=seed, device=run.device())


def frames_of_episode(run: SavedRun, *, env: str, seed: int, every: int, most: int) -> tuple[list[Frame], float]:
    """Frames of one episode, one for `every` steps, `most` of them; and the seconds between two of them."""
    frames: list[Frame] = []
    device = run.device()
    camera, pool = open_camera(env, seed, str(device), every=every)
    with contextlib.closing(pool):
        player = make_player(run, pool.spec, device, sampled=False, seed=seed)
        _film_episode(pool, player, camera, frames.append, most)
    return frames, every / camera.frames_per_second


def film_player(
    make: Callable[[PoolSpec, torch.device], Acts], path: Path, *, env: str, seed: int, device: torch.device
) -> int:
    """Write one episode of a player that is made for the pool; the number of frames."""
    check_path(path)
    camera, pool = open_camera(env, seed, str(device))
    with contextlib.closing(pool):
        player = make(pool.spec, device)
        with replacing(path) as temporary, WRITERS[path.suffix](temporary, camera.frames_per_second) as write:
            return _film_episode(pool, player, camera, write)


def film_agent(env: gymnasium.Env, act: Callable[[Any, bool], Any], path: Path, *, seed: int) -> int:
    """Write one episode of an environment that renders, from `reset(seed)` on; the number of frames.

    `act` chooses actions from an observation, and from whether it is the first one.
    """
    check_path(path)
    rate = max(1.0, float(env.metadata.get("render_fps") or FRAMES_PER_SECOND))
    with contextlib.closing(env), replacing(path) as temporary, WRITERS[path.suffix](temporary, rate) as write:
        obs, _ = env.reset(seed=seed)
        write(as_frame(env.render()))
        count, is_over = 1, False
        while not is_over and count < MAX_FRAMES:
            obs, _, terminated, truncated, _ = env.step(act(obs, count == 1))
            write(as_frame(env.render()))
            count, is_over = count + 1, terminated or truncated
    if not is_over:
        _warn_of_cut()
    return count


def _warn_of_cut() -> None:
    log.warning("the episode did not end within %d frames: the video is cut there", MAX_FRAMES)


def check_path(path: Path) -> None:
    """Refuse, before anything is played, a video that cannot be written."""
    if path.suffix not in WRITERS:
        raise UsageError(f"video {str(path)!r} ends in {path.suffix!r}; allowed: {', '.join(WRITERS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"video {str(path)!r}: the folder {path.absolute().parent} does not exist")
    try:
        if path.suffix == ".mp4":
            import cv2  # noqa: F401
        else:
            import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"a {path.suffix} video", "video", error) from error


def _film_episode(
    pool: Pool,
    player: Acts,
    camera: RenderCamera | ObservationCamera,
    write: Callable[[Frame], None],
    most: int | None = None,
) -> int:
    """The number of frames. By default `MAX_FRAMES` end a video, with a warning."""
    count = 0
    while True:
        batch = pool.recv(min_slots=None)
        for frame in camera.look(batch):
            write(frame)
            count += 1
        if camera.is_over():
            return count
        if count >= (MAX_FRAMES if most is None else most):
            if most is None:
                _warn_of_cut()
            return count
        pool.send(player.act(batch, on_device=pool.spec.on_device), batch.slots)


def open_camera(
    env: str, seed: int, device: str = "cpu", *, every: int = 1
) -> tuple[RenderCamera | ObservationCamera, Pool]:
    """A pool of one environment, and a camera that takes one frame for `every` steps."""
    factory = resolve(env)
    factory = factory.single or factory  # the single environment of a batched simulator may render
    why = f"it runs only in the {factory.backend!r} pool"
    if factory.backend is None:
        made, why = _try_render(env, factory)
        if made is not None:
            camera = RenderCamera(made, factory.frameskip, every)
            rendered = Factory(make=lambda index: camera, frameskip=factory.frameskip, label=factory.label)
            return camera, make_pool(rendered, PoolConfig(kind="serial", num_envs=1), seed=seed)
    config = PoolConfig(kind="serial" if factory.backend is None else "auto", num_envs=1)
    pool = make_pool(factory, config, seed=seed, device=device)
    try:
        return ObservationCamera(env, pool.spec, why, every), pool
    except BaseException:
        pool.close()
        raise


def _try_render(env: str, factory: Factory) -> tuple[Any, str]:
    """An environment that renders, or None and the reason."""
    made = factory.make(0)
    if (drawing := drawn(made)) is not None:
        return drawing, ""
    modes = (getattr(made, "metadata", None) or {}).get("render_modes", ())
    if getattr(made, "render_mode", None) is None and "rgb_array" in modes:
        made.close()
        env_id = EnvId.parse(env)
        options = {**env_id.options, "render_mode": "rgb_array"}
        try:
            made = resolve(EnvId(env_id.family, env_id.name, options)).make(0)
        except UsageError:
            return None, "it has no option render_mode=rgb_array"
    try:
        made.reset()
        as_frame(made.render())
    except Exception as error:  # a renderer without display, driver or package may raise anything
        made.close()
        is_missing = isinstance(error, ImportError | DependencyNotInstalled)
        hint = "; without a display try MUJOCO_GL=egl or MUJOCO_GL=osmesa" if "GL" in f"{error}" else ""
        hint = extra_hint(error) if is_missing else hint
        return None, f"rendering it fails ({type(error).__name__}: {error}{hint})"
    return made, ""


class RenderCamera:
    """A wrapper that renders an environment of either API after each reset and step.

    It sits inside the pool, because the pool resets within the step that ends an episode: outside, the last frame is
    gone.
    """

    def __init__(self, env: Any, frameskip: int, every: int = 1) -> None:
        self._env, self._every, self._seen = env, every, 0
        rate = (getattr(env, "metadata", None) or {}).get("render_fps") or FRAMES_PER_SECOND
        # Our own environments state the rate of the simulator's frames, and are rendered once per step.
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
        if not self.is_over() and self._seen % self._every == 0:
            self._taken.append(as_frame(self._env.render()))
        self._seen += 1

    def look(self, batch: StepBatch) -> list[Frame]:
        """The frames since the last batch, of the first episode only."""
        taken, self._taken = self._taken, []
        return taken

    def is_over(self) -> bool:
        return self._num_resets > 1


class ObservationCamera:
    """The first image among the observations of slot 0."""

    def __init__(self, env: str, spec: PoolSpec, why: str, every: int = 1) -> None:
        images = [leaf for leaf in spec.obs if is_image(leaf)]
        if not images:
            raise UsageError(
                f"there is nothing to film in {env}: {why}, and none of its observations "
                f"({', '.join(leaf.name for leaf in spec.obs)}) is an image (three dimensions, and no board of 0 and 1)"
            )
        log.info("the video shows the observation %r of %s: %s", images[0].name, env, why)
        self.frames_per_second = max(1.0, FRAMES_PER_SECOND / spec.frameskip)
        self._leaf, self._over = images[0], False
        self._every, self._seen = every, 0

    def look(self, batch: StepBatch) -> list[Frame]:
        self._over = bool(batch.ended()[0])
        self._seen += 1
        if (self._seen - 1) % self._every and not self._over:
            return []
        # Row 0 is slot 0, because all slots are received together, in order. `final_obs` is indexed by slot.
        image = (batch.final_obs if self._over else batch.obs)[self._leaf.name][0]
        return [from_observation(np.asarray(image.cpu() if hasattr(image, "cpu") else image), self._leaf)]

    def is_over(self) -> bool:
        return self._over


def as_frame(picture: Any) -> Frame:
    """The result of `render`, checked."""
    frame = np.asarray(picture)
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise ValueError(f"render() gave {type(picture).__name__} {frame.dtype} {frame.shape}, not uint8 [H, W, 3]")
    return frame


def from_observation(image: np.ndarray, leaf: Leaf) -> Frame:
    """An observed image as a frame. Of a stack, the newest colours or grey values."""
    image = _as_bytes(image, leaf)
    image = np.moveaxis(image, -1, 0) if is_channels_last(leaf) else image
    num_channels, height, width = image.shape
    frame = image[-3:] if num_channels % 3 == 0 else np.repeat(image[-1:], 3, axis=0)
    scale = max(1, SMALLEST_SIDE // min(height, width))
    return frame.transpose(1, 2, 0).repeat(scale, axis=0).repeat(scale, axis=1)


def _as_bytes(image: np.ndarray, leaf: Leaf) -> np.ndarray:
    """The image as uint8. In other dtypes the bounds become 0 and 255, or else the numbers 0 and 1."""
    if image.dtype == np.uint8:
        return image
    assert isinstance(leaf.space, spaces.Box)
    low, high = leaf.space.low.astype(np.float64), leaf.space.high.astype(np.float64)
    bounded = np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()
    share = (image - low) / (high - low) if bounded else image
    return (np.clip(share, 0.0, 1.0) * 255).astype(np.uint8)


@contextlib.contextmanager
def write_mp4(path: Path, frames_per_second: float) -> Iterator[Callable[[Frame], None]]:
    import cv2

    writer = cv2.VideoWriter()
    size: tuple[int, int] | None = None

    def write(frame: Frame) -> None:
        nonlocal size
        if size is None:
            # The encoder stores colours for blocks of 2 x 2 pixels, so an odd row or column is left out.
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
    yield lambda frame: frames.append(Image.fromarray(frame).quantize())  # a palette takes a third of the memory
    # The format stores hundredths of a second. Players ignore delays below two of them.
    delay = max(20, round(100 / frames_per_second) * 10)
    frames[0].save(path, format="gif", save_all=True, append_images=frames[1:], duration=delay, loop=0)


WRITERS = {".mp4": write_mp4, ".gif": write_gif}
