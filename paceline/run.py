"""`Run`: one rank's share of a training run. It counts steps, reports, and decides when the training loop ends."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from paceline.callbacks import Callbacks
from paceline.collect.policy_assignment import Finished
from paceline.collect.protocol import Collection
from paceline.config import Config
from paceline.distributed.ownership import Ownership
from paceline.distributed.runtime import Group
from paceline.learner.hyperparameters import digest_sums, require_same
from paceline.learner.protocol import Learner
from paceline.pool import Pool
from paceline.pool.protocol import StepBatch
from paceline.stop import Stop
from paceline.telemetry.clock import Clock
from paceline.telemetry.episodes import LatestEpisodes
from paceline.telemetry.metrics import MetricsWriter
from paceline.telemetry.phases import Phases
from paceline.telemetry.progress import Progress

log = logging.getLogger(__name__)

REPORT_SECONDS = 2.0
CLOCK_SECONDS = 5.0
"""By how much the clocks of ranks differ at most: they begin to train at slightly different times."""
WARM_ITERATIONS = 4
"""After these nearly everything is allocated, compiled and recorded."""


class PopulationStatistics(Protocol):
    """What a run needs of its population."""

    def sums_of(self, finished: Finished) -> list[float]:
        """Statistics of one rank that can be added up over ranks."""
        ...

    def add(self, sums: Sequence[float]) -> None:
        """Count those of all ranks."""
        ...

    def after_iteration(self, step: int) -> None:
        """Change what has to change at this step. All ranks call it together."""
        ...

    def metrics(self) -> dict[str, float | None]: ...

    def saved(self) -> None:
        """A checkpoint was written."""
        ...

    def merit(self, num_slots: int) -> float | None: ...

    @property
    def merit_name(self) -> str: ...

    def state_dict(self) -> dict[str, Any]:
        """What all ranks share. All ranks call it together."""
        ...

    def load_state_dict(self, state: dict[str, Any] | None, step: int) -> None: ...


class Run:
    """Progress and reports of one rank. A training loop calls `begin_iteration` and `report` once per iteration."""

    def __init__(
        self,
        config: Config,
        group: Group,
        pool: Pool,
        folder: Path,
        learners: Sequence[Learner],
        *,
        ownership: Ownership,
        clock: Clock,
        stop: Stop,
        phases: Phases,
        display: Progress | None,
        callbacks: Callbacks,
    ) -> None:
        self.config, self.group, self.pool, self.folder, self.learners = config, group, pool, folder, learners
        self.clock, self.stop, self.phases, self._display = clock, stop, phases, display
        self.ownership = ownership
        self.callbacks = callbacks
        self.is_stopped_by_callback = False
        self.threads = torch.get_num_threads()
        """PyTorch's threads. The learner thread has to set them for itself."""
        self.step = 0
        """Agent steps trained on so far, over all ranks."""
        self.until = config.steps
        """The training loop ends at this step."""
        self.checkpoint_due = False
        """Whether to save before the next iteration. All ranks agree on it in a report."""
        self.before_iteration: Callable[[], None]
        """Saves what is due. All ranks call it together before each iteration."""
        self.save: Callable[[], None]
        """Writes a checkpoint. All ranks call it together, with all slots held."""
        self.keep_state: Callable[[], None]
        """With all slots held: a deterministic run that is stopped in this iteration goes on from here. A rank calls it
        alone. The run has no population."""
        self.collection: Collection
        self.iterations = 0
        self.has_begun = False
        """Whether every slot has had its first observation."""
        self.seconds_before = 0.0
        """Seconds of training before a resume, and before the present part of a session."""
        self.agreed_seconds = 0.0
        """`seconds` at the last report, averaged over the ranks. Their clocks differ, their decisions must not."""
        self.episodes = LatestEpisodes(pool.spec.measures)
        self.population: PopulationStatistics | None = None
        """None for a run with one policy and no opponents."""
        self.last_checkpoint_at = time.monotonic()
        self.last_report = (time.monotonic(), 0)
        """Time and step of the last report."""
        self.metrics: MetricsWriter | None = None
        self._running_since: float | None = None
        self._restarts = 0.0
        """Simulators that were replaced, over all ranks, since this process began."""
        self.losses: dict[str, float] = {}
        """Of the latest update."""

    @property
    def policy(self) -> torch.nn.Module:
        """The policy of the first learner."""
        return self.learners[0].policy

    @property
    def interrupted(self) -> bool:
        """Whether the user, and not the deadline, has stopped the run."""
        if not self.stop.is_requested or self.step >= self.config.steps:
            return False
        return self.stop.reason == "signal" or (self.stop.reason == "rank" and not self._is_out_of_time)

    @property
    def _is_out_of_time(self) -> bool:
        """Whether the deadline is reached. Another rank may have reached it a moment earlier, and stopped this one."""
        return self.config.seconds is not None and self.seconds >= self.config.seconds - CLOCK_SECONDS

    @property
    def merit(self) -> float | None:
        """What the checkpoint `best` has most of. None as long as too few episodes have ended.

        It is the mean return of the latest episodes; with several policies, the objective of the best one; against past
        selves and other opponents, the Elo rating.
        """
        num_slots = self.pool.spec.num_slots * self.group.size
        return self.episodes.mean_return(num_slots) if self.population is None else self.population.merit(num_slots)

    @property
    def merit_name(self) -> str:
        """What `merit` is. Different ones cannot be compared."""
        return "return" if self.population is None else self.population.merit_name

    @property
    def checkpoint_is_late(self) -> bool:
        """Whether the last checkpoint is as old as the next one may be."""
        return time.monotonic() - self.last_checkpoint_at >= self.config.checkpoint.seconds

    @property
    def progress(self) -> float:
        """The share of the run that is done: of its steps, or of its seconds where those will end it first.

        It is the same on all ranks. In a deterministic run only steps count.
        """
        share = self.step / self.config.steps
        if self.config.seconds is not None and not self.config.deterministic:
            share = max(share, self.agreed_seconds / self.config.seconds)
        return min(1.0, share)

    @property
    def seconds(self) -> float:
        """Seconds of training, those before a resume included. Time between two parts of a session does not count."""
        running = 0.0 if self._running_since is None else time.monotonic() - self._running_since
        return self.seconds_before + running

    @contextlib.contextmanager
    def counting_seconds(self) -> Iterator[None]:
        """Within the context the run is training. Speed and time shares are measured from here on."""
        self._running_since = time.monotonic()
        self.last_report = (self._running_since, self.last_report[1])
        self.clock.take_shares()
        try:
            yield
        finally:
            self.seconds_before, self._running_since = self.seconds, None

    def finished(self) -> bool:
        """Whether the training loop ends. It is the same on all ranks."""
        return self.step >= self.until

    def receive_all(self) -> StepBatch:
        """The first observations of all slots. All ranks call it together, before the first iteration."""
        self.phases.show("first observations", 0, 0)
        with self.clock.time("simulation"):
            batch = self.pool.recv(min_slots=None)
        self.stop.raise_if_agreed()
        self.phases.clear()
        self.has_begun = True
        return batch

    def begin_iteration(self) -> bool:
        """Save if a checkpoint is due. Returns whether the training loop continues.

        All ranks call it together, before each iteration. The caller must hold all slots if a checkpoint is due,
        and always in a deterministic run.
        """
        if self.finished():
            return False
        self.before_iteration()
        return True

    def rollout_is_complete(self) -> None:
        """The experience for an update is there."""
        self.callbacks.rollout()

    def report(self, steps: int, losses: dict[str, float], finished: Finished) -> None:
        """Count an iteration of `steps` steps, and report from time to time. All ranks call it together.

        `finished` has ended since the last report.
        """
        # Opponents that do not learn have higher numbers.
        learned = [episode for episode in finished.episodes if episode.policy < len(self.learners)]
        mine = [float(steps), float(self.checkpoint_is_late), *self.episodes.sums_of(learned)]
        mine += [float(self.pool.restarts), self.seconds / self.group.size, float(self.callbacks.wants_stop)]
        mine += digest_sums(learner.hyperparameters for learner in self.learners)
        mine += self.population.sums_of(finished) if self.population is not None else []
        with self.clock.time("communication"):
            total = self.group.sum_(torch.tensor(mine, dtype=torch.float64, device=self.group.device)).tolist()
        all_steps, due, *rest = total
        count = self.episodes.num_sums
        sums, of_policies = rest[:count], rest[count + 5 :]
        self._restarts, self.agreed_seconds, stops, digests, of_squares = rest[count : count + 5]
        require_same(digests, of_squares, self.group.size)
        self.step += int(all_steps)
        self.checkpoint_due = due > 0
        self.iterations += 1
        self.episodes.add(sums)
        if self.population is not None:
            self.population.add(of_policies)
            self.population.after_iteration(self.step)
        self._log_memory()
        self.losses = losses
        self.callbacks.update(finished.episodes)
        if stops or (self.callbacks.wants_stop and self.group.size == 1):
            self.is_stopped_by_callback, self.until = True, self.step
        now = time.monotonic()
        if self.group.is_first and (now - self.last_report[0] >= REPORT_SECONDS or self.finished()):
            self._write_report(now)

    def report_end(self) -> None:
        """The last iteration is always reported."""
        if self.group.is_first and self.losses and self.step > self.last_report[1]:
            self._write_report(time.monotonic())

    def _log_memory(self) -> None:
        if self.iterations == WARM_ITERATIONS and self.group.is_first and self.group.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.group.device).total_memory
            log.info("GPU memory: %.1f of %.0f GiB", torch.cuda.max_memory_reserved() / 2**30, total / 2**30)

    def _write_report(self, now: float) -> None:
        then, step_then = self.last_report
        sps = (self.step - step_then) / max(now - then, 1e-9)
        self.last_report = (now, self.step)
        frameskip = self.pool.spec.frameskip
        report: dict[str, Any] = {
            "step": self.step,
            "frames": self.step * frameskip,
            "seconds": self.seconds,
            "sps": sps,
            "fps": sps * frameskip,
            **self.episodes.means(),
            "simulator_restarts": self._restarts,
            "learning_rate": self.learners[0].learning_rate(self.progress),
            **(self.population.metrics() if self.population is not None else {}),
            **self.losses,
            **{f"time/{name}": share for name, share in self.clock.take_shares().items()},
        }
        assert self.metrics is not None and self._display is not None
        self.metrics.write(report)
        self._display.show(report, self.progress, self._seconds_left(sps))

    def _seconds_left(self, sps: float) -> float | None:
        """About how long the run still takes, at this rate."""
        left = [] if sps <= 0 else [(self.config.steps - self.step) / sps]
        left += [] if self.config.seconds is None else [self.config.seconds - self.seconds]
        return max(0.0, min(left)) if left else None
