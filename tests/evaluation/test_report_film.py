"""The animation of an episode in a report."""

from __future__ import annotations

import base64
import io
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from paceline.evaluation import report_film
from paceline.evaluation.report import write_report
from tests.evaluation.runs import make_run


@pytest.fixture(scope="module")
def painted(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "painted", "tests.evaluation.runs:Painted")


def animation(text: str) -> Image.Image:
    (data,) = re.findall(r"data:image/gif;base64,([^\"]+)", text)
    return Image.open(io.BytesIO(base64.b64decode(data)))


def reds(image: Image.Image) -> list[int]:
    found = []
    for number in range(image.n_frames):
        image.seek(number)
        found.append(int(np.asarray(image.convert("RGB"))[0, 0, 0]))
    return found


def test_every_step_of_a_short_episode_is_shown(painted):
    shown = reds(animation(write_report(painted).read_text()))
    assert len(shown) == 7 and shown == sorted(set(shown)), "a reset and six steps, redder and redder"


def test_of_a_long_episode_only_some_steps_are_rendered(painted, monkeypatch):
    every_step = reds(animation(write_report(painted).read_text()))
    monkeypatch.setattr(report_film, "FRAMES", 3)  # the mean length is 6 steps
    text = write_report(painted).read_text()
    assert reds(animation(text)) == every_step[::2] and "Every 2 steps are one picture." in text


def test_large_frames_are_reduced(painted, monkeypatch):
    monkeypatch.setattr(report_film, "SIDE", 10)
    assert max(animation(write_report(painted).read_text()).size) == 10


def test_observed_images_are_shown_where_nothing_renders(tmp_path):
    run = make_run(tmp_path / "blank", "tests.evaluation.runs:Blank")
    assert len(reds(animation(write_report(run).read_text()))) == 7


def test_a_report_does_not_fail_for_its_pictures(painted, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no display\nand more")

    monkeypatch.setattr(report_film, "frames_of_episode", fail)
    assert "There are no pictures: no display.</p>" in write_report(painted).read_text()


def test_another_users_run_is_not_played_without_trust(painted, tmp_path):
    folder = tmp_path / "theirs"
    shutil.copytree(painted, folder)
    (folder / "config.json.sig").unlink()
    text = write_report(folder).read_text()
    assert "the run may be another user&#x27;s" in text and "image/gif" not in text
    assert len(reds(animation(write_report(folder, trust=True).read_text()))) == 7
