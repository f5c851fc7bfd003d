"""Videos of trained policies: their frames, and errors where none can be made."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from paceline.errors import MissingExtra, UsageError
from paceline.evaluation import video
from paceline.evaluation.saved import SavedRun
from paceline.evaluation.video import ObservationCamera, film, from_observation
from paceline.nets.config import PolicyConfig
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import leaves
from tests.evaluation.runs import make_run

cv2 = pytest.importorskip("cv2")

SMALL = PolicyConfig(encoder_size=8)
BLANK, PAINTED = "tests.evaluation.runs:Blank", "tests.evaluation.runs:Painted"


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return SavedRun.load(make_run(tmp_path_factory.mktemp("runs") / "blank", BLANK, SMALL))


def read_mp4(path) -> tuple[list[np.ndarray], float]:
    reader, frames = cv2.VideoCapture(str(path)), []
    while True:
        there, frame = reader.read()
        if not there:
            return frames, reader.get(cv2.CAP_PROP_FPS)
        frames.append(frame[..., ::-1])


def test_an_episode_is_filmed_from_first_to_last_frame(run, tmp_path):
    path = tmp_path / "film.mp4"
    assert film(run, path, env=PAINTED) == 7
    frames, rate = read_mp4(path)
    assert rate == 10
    assert [frame.shape for frame in frames] == [(60, 80, 3)] * 7
    for time, frame in enumerate(frames):
        red, green, blue = frame.reshape(-1, 3).mean(0)
        assert red == pytest.approx(40 * time, abs=12) and green < 25 and blue < 25
    assert list(tmp_path.iterdir()) == [path]


def test_gif(run, tmp_path):
    path = tmp_path / "film.gif"
    assert film(run, path, env=PAINTED) == 7
    with Image.open(path) as gif:
        assert gif.n_frames == 7 and gif.info["duration"] == 100
        gif.seek(6)
        assert gif.convert("RGB").getpixel((5, 5)) == (240, 0, 0)


def test_without_rendering_the_observations_are_shown(run, tmp_path):
    path = tmp_path / "film.gif"
    assert film(run, path, env=BLANK) == 7
    with Image.open(path) as gif:
        assert gif.size == (240, 240)
        gif.seek(6)
        assert gif.convert("RGB").getpixel((5, 5)) == (240, 240, 240)


def test_gymnasium_environments_are_asked_to_render(tmp_path):
    pytest.importorskip("pygame")
    run = SavedRun.load(make_run(tmp_path / "run", "gym:MountainCar-v0"))
    path = tmp_path / "film.mp4"
    count = film(run, path, env=run.config.env)
    frames, rate = read_mp4(path)
    assert len(frames) == count and frames[0].shape == (400, 600, 3) and rate == 30


def test_cartpole_is_drawn_at_its_own_rate(tmp_path):
    run = SavedRun.load(make_run(tmp_path / "run", "gym:CartPole-v1"))
    path = tmp_path / "film.mp4"
    count = film(run, path, env=run.config.env)
    frames, rate = read_mp4(path)
    assert len(frames) == count and frames[0].shape == (200, 300, 3) and rate == 50


def test_an_environment_without_images_is_refused(tmp_path):
    env = "paceline.envs.memory:Memory?length=4"
    run = SavedRun.load(make_run(tmp_path / "run", env))
    with pytest.raises(UsageError, match="nothing to film .* rendering it fails .* is an image"):
        film(run, tmp_path / "film.mp4", env=env)
    assert not list(tmp_path.glob("*film*"))


def test_a_renderer_that_fails_is_replaced_by_observations(run, tmp_path, monkeypatch):
    def fail(self):
        raise RuntimeError("no display")

    monkeypatch.setattr("tests.evaluation.runs.Painted.render", fail)
    assert film(run, tmp_path / "film.gif", env=PAINTED) == 7


def test_the_video_of_an_endless_episode_is_cut(run, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(video, "MAX_FRAMES", 3)
    assert film(run, tmp_path / "film.gif", env=PAINTED) == 3
    assert "cut" in caplog.text


def test_other_endings_and_missing_folders_are_refused_before_anything_is_played(run, tmp_path):
    with pytest.raises(UsageError, match="allowed: .mp4, .gif"):
        video.check_path(tmp_path / "film.avi")
    with pytest.raises(UsageError, match="does not exist"):
        video.check_path(tmp_path / "nowhere" / "film.mp4")


@pytest.mark.parametrize(("name", "package"), [("film.mp4", "cv2"), ("film.gif", "PIL.Image")])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"paceline\[video\]"):
        video.check_path(tmp_path / name)


def test_observations_of_every_kind_become_frames():
    def frame(image, low=0, high=255):
        (leaf,) = leaves(spaces.Box(low, high, image.shape, image.dtype), "obs")
        return from_observation(image, leaf)[0, 0].tolist()

    def layers(*values, dtype=np.uint8):
        return np.stack([np.full((300, 300), value, dtype) for value in values])

    assert frame(layers(1, 2, 3, 4)) == [4, 4, 4]  # a stack of greys
    assert frame(layers(1, 2, 3, 4, 5, 6)) == [4, 5, 6]  # a stack of colours
    assert frame(layers(0.0, 0.5, 1.0, dtype=np.float32), 0.0, 1.0) == [0, 127, 255]
    assert frame(layers(-1.0, 0.0, 1.0, dtype=np.float32), -1.0, 1.0) == [0, 127, 255]
    assert frame(layers(-9.0, 0.0, 9.0, dtype=np.float32), -np.inf, np.inf) == [0, 0, 255]


def test_images_with_channels_last_become_the_same_frames():
    """Policies take both layouts. Each number has bounds of its own, which lie in the layout of the image."""

    def frame(image, low=0, high=255):
        (leaf,) = leaves(spaces.Box(low, high, image.shape, image.dtype), "obs")
        return from_observation(image, leaf)

    rng = np.random.default_rng(1)
    for channels in (1, 3):
        image = rng.integers(0, 256, (40, 60, channels)).astype(np.uint8)
        found = frame(image)
        assert found.shape == (240, 360, 3) and (found[::6, ::6] == image).all()
        assert (found == frame(image.transpose(2, 0, 1))).all()
    low = rng.uniform(-2, -1, (40, 60, 3)).astype(np.float32)
    found = frame(0.5 * low, low, np.zeros_like(low))
    assert found.shape == (240, 360, 3) and (found == 127).all()


def test_images_are_filmed_and_boards_are_not():
    def filmed(**obs):
        spec = PoolSpec(observation_space=spaces.Dict(obs), action_space=spaces.Discrete(2), num_envs=1)
        return ObservationCamera("env", spec, "why")._leaf.name

    planes, image = spaces.Box(0, 1, (2, 8, 8), np.int8), spaces.Box(0, 255, (36, 36, 3), np.uint8)
    assert filmed(board=planes, screen=image) == "screen"
    with pytest.raises(UsageError, match="is an image .three dimensions, and no board"):
        filmed(board=planes)
