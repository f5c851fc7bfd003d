"""`OngoingPictures`: pictures of the episode that one robot is playing."""

from __future__ import annotations

import numpy as np

from paceline.sims.rearrangement.episode_record import OngoingRecord, StreamSnapshot, happened
from paceline.sims.rearrangement.rendering.painter import HousePainter
from paceline.sims.rearrangement.rendering.pictures import EpisodePictures
from paceline.sims.rearrangement.simulator import Rearrangement, Stream
from paceline.sims.rearrangement.tasks.protocol import Facts


class OngoingPictures:
    """Pictures of the first robot of `simulator`. Steps before the first picture are not recorded: most environments
    never show one."""

    def __init__(self, simulator: Rearrangement) -> None:
        self._simulator = simulator
        self._now: Stream | None = None
        self._painter: HousePainter | None = None
        self._record: OngoingRecord | None = None
        self._pictures: EpisodePictures | None = None

    def begin(self) -> None:
        """The simulator is in another episode than before, or has loaded a state."""
        was_recording, self._now = self._record is not None, self._simulator.stream
        self._record = self._pictures = None
        if was_recording:
            self._begin_record()

    def step(self, facts: Facts, after: Stream) -> None:
        """A step was done. `after` is the stream before any reset."""
        self._now = after
        if self._record is not None:
            self._record.add(happened(facts)[0], StreamSnapshot.of(self._simulator, after))

    def picture(self) -> np.ndarray | None:
        """uint8 [H, W, 3]: see `EpisodePictures`. None before the first episode."""
        if self._now is None:
            return None
        episode = (self._record or self._begin_record()).record()
        if self._pictures is None:
            self._painter = self._painter or HousePainter(self._simulator.bank)
            config, task = self._simulator.config, self._simulator.task_name
            self._pictures = EpisodePictures(self._painter, task, episode.scene, config.resolution)
        return self._pictures.picture(episode)

    def _begin_record(self) -> OngoingRecord:
        assert self._now is not None
        self._record = OngoingRecord(0, StreamSnapshot.of(self._simulator, self._now))
        return self._record
