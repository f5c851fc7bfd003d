"""One episode of a run as an animation in its report."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

from paceline.config import Config
from paceline.evaluation import report_page
from paceline.evaluation.evaluators import SEED
from paceline.evaluation.history import History
from paceline.evaluation.report_images import gif
from paceline.evaluation.saved import SavedRun
from paceline.evaluation.video import Frame, frames_of_episode
from paceline.signatures import why_foreign

FRAMES = 100
"""About how many an animation has."""
SIDE = 320
"""Pixels of the larger side of a frame, at most."""


def section(folder: Path, config: Config, history: History, *, trust: bool) -> str:
    """An episode without sampling. Where nothing can be shown, the reason; a report never fails for its pictures."""
    if not trust and why_foreign(folder / "config.json") is not None:
        return _without("the run may be another user's, and its files can name code. --trust shows an episode")
    every = max(1, math.ceil((history.last("episode_length") or 1.0) / FRAMES))
    try:
        run = SavedRun.load(folder, trust=trust)
        frames, seconds = frames_of_episode(run, env=run.env(), seed=SEED, every=every, most=2 * FRAMES)
    except Exception as error:  # of a simulator or a renderer, which may raise anything
        return _without(f"{error}".strip().partition("\n")[0] or type(error).__name__)
    left_out = "" if every == 1 else f" Every {every} steps are one picture."
    uri = gif([_small(frame) for frame in frames], milliseconds=min(200, max(20, round(1000 * seconds))))
    picture = report_page.figure(uri, f"an episode in {config.env}")
    return report_page.section(
        "episode", "One episode", f"With the most likely actions.{left_out}", report_page.grid([picture])
    )


def _without(why: str) -> str:
    return report_page.section("episode", "One episode", f"There are no pictures: {why}.")


def _small(frame: Frame) -> Frame:
    height, width = frame.shape[:2]
    scale = SIDE / max(height, width)
    if scale >= 1.0:
        return frame
    size = max(1, round(scale * width)), max(1, round(scale * height))
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BOX))
