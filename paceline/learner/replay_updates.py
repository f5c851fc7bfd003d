"""`ReplayUpdates`: one D4PG update after another, from batches that are drawn from a replay."""

from __future__ import annotations

import contextlib
import threading

from torch import Tensor

from paceline.accel.cuda_graph import CudaGraph
from paceline.accel.stream_lock import StreamLock
from paceline.experience.limiter import Limiter
from paceline.experience.replay_protocol import TransitionReplay
from paceline.learner.d4pg import D4PGLearner


class ReplayUpdates:
    """All ranks call `update` together. The collecting thread may use the replay and the acting weights meanwhile."""

    def __init__(
        self,
        learner: D4PGLearner,
        replay: TransitionReplay,
        limiter: Limiter,
        *,
        replay_lock: StreamLock,
        networks_lock: threading.Lock,
        batch: int,
        recorded: bool,
    ) -> None:
        """`recorded`: record a whole update on the GPU. Only for one rank, because ranks average gradients in it."""
        self._learner, self._replay, self._limiter, self._batch = learner, replay, limiter, batch
        self._replay_lock, self._networks_lock = replay_lock, networks_lock
        self._recorded = CudaGraph(self._draw_and_step) if recorded else None

    def update(self) -> dict[str, Tensor]:
        """Metrics on the device. They hold until the next update."""
        learner = self._learner
        self._limiter.draw(self._batch)
        learner.apply_hyperparameters()
        if self._recorded is not None:
            with self._replay_lock:
                losses = self._recorded.run()
        else:
            with self._replay_lock:
                drawn = self._replay.draw(self._batch)
            with self._networks_lock if learner.compiles_next else contextlib.nullcontext():
                losses, errors = learner.step(drawn)
            with self._replay_lock:
                self._replay.set_priorities(drawn, errors)
        learner.count()
        return losses

    def _draw_and_step(self) -> dict[str, Tensor]:
        drawn = self._replay.draw(self._batch)
        losses, errors = self._learner.step(drawn)
        self._replay.set_priorities(drawn, errors)
        return losses
