"""`RobotRecorder`: records all episodes while a list of them is played."""

from __future__ import annotations

from torch import Tensor

from paceline.sims.navigation.evaluation.episode_list import Act
from paceline.sims.rearrangement.episode_record import EpisodeRecord, OngoingRecord, StreamSnapshot, happened
from paceline.sims.rearrangement.simulator import Rearrangement


class RobotRecorder:
    """Wraps an `Act`."""

    def __init__(self, simulator: Rearrangement, act: Act) -> None:
        self._simulator, self._act = simulator, act
        self._records: list[list[OngoingRecord]] = [[] for _ in range(simulator.num_envs)]

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        if self._records[0]:
            self._add_step()
        if rows := began.nonzero()[:, 0].tolist():
            start = StreamSnapshot.of(self._simulator, self._simulator.stream)
            for row in rows:
                self._records[row].append(OngoingRecord(row, start))
        return self._act(obs, began)

    def episodes(self, count: int) -> list[EpisodeRecord]:
        """The first `count` episodes of the list, when all have been played."""
        self._add_step()
        streams = len(self._records)  # see `Rearrangement.load_episodes`
        return [self._records[number % streams][number // streams].record() for number in range(count)]

    def _add_step(self) -> None:
        after, facts = self._simulator.last_stream, self._simulator.last_facts
        assert after is not None and facts is not None
        snapshot = StreamSnapshot.of(self._simulator, after)
        for records, one in zip(self._records, happened(facts), strict=True):
            records[-1].add(one, snapshot)
