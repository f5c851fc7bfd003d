"""`ReplaySampler`: acts with noise and fills a replay. It owns the explorer, the replay and the saved state of both."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.accel.stream_lock import StreamLock
from paceline.collect.explorer import Explorer, as_rows
from paceline.collect.remote import RemoteActors
from paceline.experience.archive import Archive
from paceline.experience.limiter import Limiter
from paceline.experience.replay_protocol import TransitionReplay
from paceline.experience.return_range import ReturnRange
from paceline.nets.config import ValueConfig
from paceline.pool.protocol import Episode, StepBatch

log = logging.getLogger(__name__)

EVALUATION_WINDOW = 10
"""Episodes without noise whose returns are averaged."""


class ReplaySampler:
    """Its methods are for the thread that collects, except `take_collected` and `evaluation`."""

    def __init__(
        self,
        explorer: Explorer,
        replay: TransitionReplay,
        limiter: Limiter,
        archive: Archive,
        value: ValueConfig,
        *,
        refresh_weights: Callable[[], int],
        minimum: int,
    ) -> None:
        """`refresh_weights` gives the explorer the latest weights, and returns the number of their publication.
        `minimum` transitions are needed before learning begins. `value` says which returns the critic can represent."""
        self.explorer, self.replay, self.limiter, self._archive = explorer, replay, limiter, archive
        self.refresh_weights, self._minimum, self._value = refresh_weights, minimum, value
        self.remote: RemoteActors | None = None
        """Actors elsewhere that insert transitions, too."""
        self.replay_lock = StreamLock(replay.device)
        """Held while the replay is read or written."""
        self.networks_lock = threading.Lock()
        """Held while actions are chosen and while an update compiles: tracing patches `nn.Module` for all threads."""
        self.collected = 0
        """Exploration steps collected so far, on all actors of this rank."""
        self._counted = 0
        """Those of them that were counted as steps of the run."""
        self._restored = limiter.state_dict()
        """The draws and insertions at the beginning of the run, or of its resumption."""
        self._evaluated: deque[float] = deque(maxlen=EVALUATION_WINDOW)
        self._has_warned = value.kind != "categorical"

    def act(self, batch: StepBatch) -> dict[str, Any]:
        """Actions for a batch, as its pool takes them, by the latest weights."""
        with self.networks_lock:
            self.refresh_weights()
            return self.explorer.act(batch)

    def observe(self, batch: StepBatch) -> None:
        """Put the transitions that the outcomes of a batch complete into the replay."""
        before = self.explorer.collected
        found = self.explorer.complete(batch)
        if found is not None:
            self.insert(as_rows(found), self.explorer.collected - before, self.explorer.returns)

    observe_stopped = observe

    def insert(self, rows: dict[str, np.ndarray], steps: int, returns: ReturnRange) -> None:
        """Insert transitions of `steps` steps of the explorer or a remote actor. `returns` is the range that it saw."""
        self.collected += steps
        self._warn_of_bounds(returns)
        count = len(rows["reward"])
        if count == 0:
            return
        with self.replay_lock:
            self.replay.add(rows)
            self._archive.note()
        if self.replay.inserted == count:  # the first ones: now their size is known
            size, capacity = self.replay.bytes, self.replay.capacity
            log.info("replay: %s transitions of %d bytes, %.2f GiB", f"{capacity:,}", size // capacity, size / 2**30)
        self.limiter.insert(count)

    def take_collected(self) -> int:
        """Steps since the last call, for the learner thread."""
        collected = self.collected
        steps, self._counted = collected - self._counted, collected
        return steps

    def _warn_of_bounds(self, returns: ReturnRange) -> None:
        """Once, if the critic cannot represent returns that were seen."""
        low, high = self._value.low, self._value.high
        if self._has_warned or not returns.exceeds(low, high):
            return
        self._has_warned = True
        log.warning(
            "discounted returns between %.4g and %.4g were seen, but the critic's atoms are between %.4g and %.4g: "
            "returns beyond are cut off. --control.value.low and --control.value.high set them",
            returns.low,
            returns.high,
            low,
            high,
        )

    def count_evaluated(self, episodes: list[Episode]) -> None:
        """Count episodes without noise."""
        self._evaluated.extend(episode.episode_return for episode in episodes)

    def evaluation(self) -> dict[str, float]:
        """The mean return of the latest episodes without noise, once there are any."""
        returns = list(self._evaluated)  # another thread adds to them
        return {"evaluation_return": sum(returns) / len(returns)} if returns else {}

    @property
    def has_advanced(self) -> bool:
        """Every transition and every update is kept."""
        return self.limiter.state_dict() != self._restored

    def rank_state(self, *, stopped: bool) -> dict[str, Any]:
        return {
            "replay": self._archive.state(),
            "limiter": self.limiter.state_dict(),
            "uncounted": self.collected - self._counted,
            "explorer": self.explorer.state_dict(),
        }

    def load_rank_state(self, state: dict[str, Any]) -> None:
        self._archive.load(state["replay"])
        self.limiter.load_state_dict(state["limiter"])
        if len(self.replay) < min(self._minimum, self.replay.capacity):  # not all of it was restored
            self.limiter.load_state_dict({"inserted": len(self.replay), "drawn": 0})
        self._restored = self.limiter.state_dict()
        self.collected, self._counted = state["uncounted"], 0
        self.explorer.load_generator(state["explorer"])

    def restore_episodes(self, state: dict[str, Any], anew: np.ndarray) -> None:
        self.explorer.load_transitions(state["explorer"], anew)

    def saved(self, state: dict[str, Any]) -> None:
        self._archive.checkpointed(state["replay"])

    def close(self) -> None:
        try:
            if self.remote is not None:
                self.remote.close()
        finally:
            self._archive.close()
