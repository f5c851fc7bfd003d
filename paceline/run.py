"""A training run: the parts put together, its progress, its reports and its checkpoints."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from paceline.accel.allocator import keep_freed_memory
from paceline.agent.protocol import Agent
from paceline.checkpoint import Checkpoint, CheckpointFolder
from paceline.config import Config
from paceline.distributed.failures import last_checkpoint
from paceline.distributed.gather import gather
from paceline.distributed.place import Place
from paceline.distributed.runtime import Group
from paceline.envs.registry import resolve
from paceline.errors import PacelineError, UsageError
from paceline.files import DiskFull
from paceline.learner.finite import NonFiniteError, require_finite
from paceline.pool import Pool, PoolConfig, make_pool
from paceline.pool.protocol import Episode, StepBatch
from paceline.pool.tensor import TensorPool
from paceline.process_settings import restored_settings
from paceline.resume import require_same_network, require_same_spaces, require_unfinished
from paceline.run_folder import open_run_folder, remove_leftovers
from paceline.stop import Stop, StopRun
from paceline.telemetry.clock import Clock
from paceline.telemetry.metrics import MetricsWriter
from paceline.telemetry.phases import Phases
from paceline.telemetry.progress import Progress
from paceline.trust import may_unpickle

log = logging.getLogger(__name__)

REPORT_SECONDS = 2.0
DRAIN_SECONDS = 1.0
"""How long a run that stops waits for simulators to finish their steps ..."""
STATE_SECONDS = 1.0
"""... and then for their states. Streams whose state is not there in time start anew when the run is resumed."""
CLOCK_SECONDS = 5.0
"""By how much the clocks of ranks differ at most: they begin to train at slightly different times."""
WARM_ITERATIONS = 4
"""After these nearly everything is allocated, compiled and recorded."""
AgentT = TypeVar("AgentT", bound=Agent)
EPISODE_WINDOW = 100
"""Episode statistics are means over at least this many of the latest episodes."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one rank adds to a checkpoint."""

    step: int
    weights: dict[str, Tensor]
    shared: dict[str, Any]
    """What is the same on all ranks."""
    mine: dict[str, Any]
    """What is this rank's own."""
    pool: bytes | None
    """The state of its simulators; None where it cannot be had."""
    best: bool
    problem: str | None
    """Why this rank's own part is not there."""


class Run(Generic[AgentT]):
    """One rank's share of a run: progress, reports and checkpoints. A schedule is the training loop over its pool and its agent; it
    calls `begin_iteration` and `report` once per iteration."""

    def __init__(
        self,
        config: Config,
        group: Group,
        pool: Pool,
        folder: Path,
        agent: AgentT,
        *,
        clock: Clock,
        stop: Stop,
        phases: Phases,
        progress: Progress | None,
    ) -> None:
        self.config, self.group, self.pool, self.folder, self.agent = config, group, pool, folder, agent
        self.clock, self.stop, self.phases, self._progress = clock, stop, phases, progress
        self.threads = torch.get_num_threads()
        """PyTorch's threads; another thread has to be told."""
        self.step = 0
        """Agent steps trained on so far, over all ranks."""
        self.checkpoint_due = False
        """Whether to save between this iteration and the next, which all ranks agree on in a report."""
        self._iterations = 0
        self._restarts = 0.0
        """Simulators that were replaced, of all ranks, since this process began."""
        self._is_restored = False
        self._has_begun = False
        """Whether every slot has had its first observation."""
        self._snapshot: Snapshot | None = None
        """The state before the present iteration, of a deterministic run: if it is stopped, it repeats that iteration on resume."""
        self._seconds_before = 0.0
        self._started = time.monotonic()
        self._agreed_seconds = 0.0
        """`seconds` at the last report, averaged over the ranks: their clocks differ, their decisions must not."""
        self._episodes: deque[tuple[float, ...]] = deque()
        self._best = -float("inf")
        self._checkpoints = CheckpointFolder(folder / "checkpoints", config.checkpoint.keep)
        self._last_checkpoint = time.monotonic()
        self._last_report = (time.monotonic(), 0)
        self._losses: dict[str, float] = {}
        self._metrics: MetricsWriter | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the user, and not the deadline, has stopped the run."""
        if not self.stop.is_requested or self.finished():
            return False
        return self.stop.reason == "signal" or (self.stop.reason == "rank" and not self._is_out_of_time)

    @property
    def _is_out_of_time(self) -> bool:
        """Whether the deadline is reached. Another rank may have reached it a moment earlier, and stopped this one."""
        return self.config.seconds is not None and self.seconds >= self.config.seconds - CLOCK_SECONDS

    @property
    def policy(self) -> nn.Module:
        return self.agent.policy

    @property
    def progress(self) -> float:
        """The share of the run that is done: of its steps, or of its seconds where those will end it first.

        The same on all ranks. A deterministic run goes by its steps alone.
        """
        share = self.step / self.config.steps
        if self.config.seconds is not None and not self.config.deterministic:
            share = max(share, self._agreed_seconds / self.config.seconds)
        return min(1.0, share)

    @property
    def seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._seconds_before + time.monotonic() - self._started

    def finished(self) -> bool:
        """Whether all steps are done; the same on all ranks."""
        return self.step >= self.config.steps

    def receive_all(self) -> StepBatch:
        """The first observations of all slots. Called by all ranks together, before the first iteration."""
        self.phases.show("first observations", 0, 0)
        with self.clock.time("simulation"):
            batch = self.pool.recv(min_slots=None)
        self.stop.raise_if_agreed()
        self.phases.clear()
        self._has_begun = True
        return batch

    def begin_iteration(self) -> bool:
        """Save if it is time to; whether the run goes on. Called by all ranks together, before each iteration. All slots are held
        where a checkpoint is due, and always in a deterministic run."""
        if self.finished():
            return False
        if self.config.deterministic:
            self.stop.raise_if_agreed()
            self._snapshot = copy.deepcopy(self._take_snapshot())
        if self.checkpoint_due:
            self._write(self._snapshot) if self._snapshot is not None else self.save()
        return True

    def report(self, steps: int, losses: dict[str, float], episodes: list[Episode] | None = None) -> None:
        """Count an iteration of so many steps, and tell the world of it now and then. `episodes` are those that have
        finished since the last one, where another thread has the pool."""
        finished = self.pool.take_episodes() if episodes is None else episodes
        is_due = time.monotonic() - self._last_checkpoint >= self.config.checkpoint.seconds
        sums = [
            float(steps),
            float(is_due),
            float(len(finished)),
            sum(episode.episode_return for episode in finished),
            float(sum(episode.length for episode in finished)),
            *(sum(episode.info[name] for episode in finished) for name in self.pool.spec.measures),
            float(self.pool.restarts),
            self.seconds / self.group.size,
        ]
        with self.clock.time("communication"):
            all_steps, due, *sums, self._restarts, self._agreed_seconds = self.group.sum_(
                torch.tensor(sums, dtype=torch.float64, device=self.group.device)
            ).tolist()
        self.step += int(all_steps)
        self.checkpoint_due = due > 0
        self._iterations += 1
        self._count_episodes(tuple(sums))
        self._tell_of_memory()
        now = time.monotonic()
        self._losses = losses
        if self.group.is_first and (now - self._last_report[0] >= REPORT_SECONDS or self.step >= self.config.steps):
            self._tell(now, losses)

    def _tell_of_memory(self) -> None:
        if self._iterations == WARM_ITERATIONS and self.group.is_first and self.group.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.group.device).total_memory
            log.info("GPU memory: %.1f of %.0f GiB", torch.cuda.max_memory_reserved() / 2**30, total / 2**30)

    def _count_episodes(self, sums: tuple[float, ...]) -> None:
        """Note the number of episodes of an iteration, and the sums of what `episode_means` gives."""
        if sums[0]:
            self._episodes.append(sums)
        while len(self._episodes) > 1 and sum(e[0] for e in self._episodes) - self._episodes[0][0] >= EPISODE_WINDOW:
            self._episodes.popleft()

    def episode_means(self) -> dict[str, float | None]:
        """Mean return, length and measures of the latest episodes of all ranks, each episode weighing the same."""
        names = [f"episode_{name}" for name in ("return", "length", *self.pool.spec.measures)]
        if not self._episodes:
            return dict.fromkeys(names)
        count, *totals = (sum(column) for column in zip(*self._episodes, strict=True))
        return {name: total / count for name, total in zip(names, totals, strict=True)}

    def _tell(self, now: float, losses: dict[str, float]) -> None:
        then, step_then = self._last_report
        sps = (self.step - step_then) / max(now - then, 1e-9)
        self._last_report = (now, self.step)
        frameskip = self.pool.spec.frameskip
        report: dict[str, Any] = {
            "step": self.step,
            "frames": self.step * frameskip,
            "seconds": self.seconds,
            "sps": sps,
            "fps": sps * frameskip,
            **self.episode_means(),
            "simulator_restarts": self._restarts,
            "learning_rate": self.agent.learning_rate(self.progress),
            **losses,
            **{f"time/{name}": share for name, share in self.clock.take_shares().items()},
        }
        assert self._metrics is not None and self._progress is not None
        self._metrics.write(report)
        self._progress.show(report, self.progress, self._seconds_left(sps))

    def _seconds_left(self, sps: float) -> float | None:
        """About how long the run still takes, at this rate."""
        left = [] if sps <= 0 else [(self.config.steps - self.step) / sps]
        left += [] if self.config.seconds is None else [self.config.seconds - self.seconds]
        return max(0.0, min(left)) if left else None

    def save(self, *, final: bool = False) -> None:
        """Write a checkpoint; called by all ranks together, between two iterations."""
        seconds = STATE_SECONDS if self.stop.is_requested else None
        self._write(self._take_snapshot(state_seconds=seconds), final=final)

    def _take_snapshot(self, *, stopped: bool = False, state_seconds: float | None = None) -> Snapshot:
        """What this rank adds to a checkpoint; `stopped` in the middle of an iteration. The states of simulators are waited for no
        longer than `state_seconds`."""
        require_finite(self.policy)
        try:
            pool_state: bytes | None = self.pool.state(state_seconds)
        except UsageError as error:
            pool_state = None
            log.debug("simulators are not in the checkpoint: %s", error)
        mean = self.episode_means()["episode_return"]
        agent, problem = None, None
        try:
            agent = self.agent.rank_state(stopped=stopped or self.pool.num_in_flight > 0)
        except DiskFull as error:  # the other ranks have to be told
            problem = str(error)
        return Snapshot(
            step=self.step,
            weights=self.policy.state_dict(),
            shared={
                "step": self.step,
                "seconds": self.seconds,
                "best": self._best if mean is None else max(self._best, mean),
                "episodes": list(self._episodes),
                "agent": self.agent.state(),
            },
            mine={
                "rng": torch.get_rng_state(),
                "cuda_rng": torch.cuda.get_rng_state() if self.group.device.type == "cuda" else None,
                "agent": agent,
            },
            pool=pool_state,
            best=mean is not None and mean > self._best,
            problem=problem,
        )

    def _write(self, snapshot: Snapshot, *, final: bool = False) -> None:
        """Write a checkpoint of all ranks' snapshots. Where the disk is full, only the `final` one is an error; any other is tried
        again when the next is due."""
        self.phases.show("saving a checkpoint", 0, 0)
        ranks = gather(self.group, (snapshot.mine, snapshot.pool, snapshot.problem))
        self._last_checkpoint, self.checkpoint_due = time.monotonic(), False
        problem = self._write_files(snapshot, ranks) if self.group.is_first else None
        if not self.group.any(problem is not None):
            self._best = snapshot.shared["best"]
            self.agent.checkpointed(snapshot.mine["agent"])
        self.phases.over("saving a checkpoint")
        if problem is not None and final:
            raise DiskFull(f"{problem}; {last_checkpoint(self.folder)}")
        if problem is not None:
            seconds = self.config.checkpoint.seconds
            log.warning("%s; %s. The next attempt is in %g s", problem, last_checkpoint(self.folder), seconds)

    def _write_files(self, snapshot: Snapshot, ranks: list[tuple[Any, Any, Any]]) -> str | None:
        """What was wrong with it, if the disk is full."""
        problems = [problem for *_, problem in ranks if problem is not None]
        if problems:
            return problems[0]
        state = snapshot.shared | {"ranks": [mine for mine, *_ in ranks]}
        pools = {rank: pool for rank, (_, pool, _) in enumerate(ranks) if pool is not None}
        try:
            self._checkpoints.save(snapshot.step, snapshot.weights, state, pools, best=snapshot.best)
        except DiskFull as error:
            return str(error)
        return None

    def _save_stopped(self) -> None:
        """A checkpoint after the training loop was stopped in the middle of an iteration."""
        if self._is_restored and self._iterations == 0:
            return  # nothing was trained since the checkpoint that the run continued from, which is exact
        if self._snapshot is not None:
            self._write(self._snapshot, final=True)
            return
        if self._has_begun:
            self._drain()
        self._write(self._take_snapshot(stopped=True, state_seconds=STATE_SECONDS), final=True)

    def _drain(self) -> None:
        """Receive what simulators finish soon, so that the checkpoint has their states."""
        deadline = time.monotonic() + DRAIN_SECONDS
        waker = threading.Timer(DRAIN_SECONDS, self.pool.wake)  # a serial pool knows no time-out
        waker.daemon = True
        waker.start()
        while self.pool.can_restore and self.pool.num_in_flight > 0 and (left := deadline - time.monotonic()) > 0:
            try:
                batch = self.pool.recv(min_slots=self.pool.num_in_flight, timeout=left)
            except (
                PacelineError
            ) as error:  # it must not cost the checkpoint: a job-wide signal may have ended simulators, too
                log.warning("a simulator failed while the run stopped: %s", error)
                break
            if len(batch):
                self.agent.observe(batch)
        waker.cancel()

    def restore(self, checkpoint: Checkpoint, *, may_unpickle: bool = True) -> None:
        """Continue from a checkpoint: exactly if it has this rank's simulators, and their pickles may be loaded where they are
        such; with fresh episodes otherwise."""
        state = checkpoint.state
        self._is_restored = True
        ranks = state["ranks"]
        own, mine = self.group.rank < len(ranks), ranks[min(self.group.rank, len(ranks) - 1)]
        self.agent.load(checkpoint.weights, state["agent"], mine["agent"], own=own)
        self.step, self._seconds_before, self._best = state["step"], state["seconds"], state["best"]
        self._agreed_seconds = self._seconds_before
        self._episodes = deque(tuple(entry) for entry in state["episodes"])
        self._last_report = (time.monotonic(), self.step)
        if not own:
            log.warning("rank %d was not part of the saved run: it starts with fresh simulators", self.group.rank)
            return
        torch.set_rng_state(mine["rng"])
        if mine["cuda_rng"] is not None and self.group.device.type == "cuda":
            torch.cuda.set_rng_state(mine["cuda_rng"])
        pool_state = checkpoint.pool_state(self.group.rank)
        if pool_state is None:
            log.warning("the checkpoint has no simulators: all episodes start anew")
            return
        if not self.pool.can_restore:
            log.warning("EnvPool cannot go on with the checkpoint's simulators: all episodes start anew")
            return
        if isinstance(self.pool, TensorPool) == checkpoint.has_pickles:
            log.warning("the checkpoint's simulators are of another kind of pool: all episodes start anew")
            return
        if checkpoint.has_pickles and not may_unpickle:
            return
        self.pool.recv(min_slots=None)
        try:
            anew = self.pool.restore(pool_state)
        except UsageError as error:  # another number of environments, say
            log.warning("all episodes start anew: %s", error)
            self.pool.reset(self.config.seed + 1000 * self.group.rank)
            return
        self.agent.restore_episodes(mine["agent"], anew)
        if len(anew):
            log.warning("the checkpoint lacks the simulators of slots %s: they start new episodes", anew.tolist())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within the context a training loop runs. At its end, and where it is stopped, a checkpoint is saved."""
        left = None if self.config.seconds is None else self.config.seconds - self.seconds
        with contextlib.ExitStack() as stack:
            if self.group.is_first:
                self._metrics = _metrics_writer(self.config, self.folder)
                stack.callback(self._metrics.close)
            self.stop.loop_is_running = True
            stack.enter_context(self.stop.after(left))
            stack.enter_context(self.stop.shared())
            try:
                yield
            except StopRun:
                self._tell_of_the_end()
                self._save_stopped()
            except NonFiniteError as error:
                hint = "A smaller learning rate may help; --on-nonfinite skip leaves out single gradient steps"
                raise NonFiniteError(f"{error}; {last_checkpoint(self.folder)}. {hint}") from error
            else:
                self._tell_of_the_end()
                self.save(final=True)

    def _tell_of_the_end(self) -> None:
        """The end is always reported."""
        if self.group.is_first and self._losses and self.step > self._last_report[1]:
            self._tell(time.monotonic(), self._losses)


def _metrics_writer(config: Config, folder: Path) -> MetricsWriter:
    return MetricsWriter(folder, wandb_project=config.wandb_project, config=config.settings())


@restored_settings()
def train(config: Config, folder: Path, *, resume: str | None = None, trust: bool = False) -> Run:
    """Run `config` in `folder` to its end. `resume` names the checkpoint to continue from: latest, best or step_N.

    With `trust`, simulators saved in that checkpoint are loaded even if somebody else wrote it. What this changes in the process (threads, precision,
    determinism, random numbers) is as before when it ends.
    """
    keep_freed_memory()
    with contextlib.ExitStack() as stack:
        if Place.find().rank == 0:
            stack.enter_context(open_run_folder(folder))
        group = stack.enter_context(Group.join(config.device, config.group, folder))
        return _finish(_open(config, folder, resume, trust, group, stack))


def _open(
    config: Config, folder: Path, resume: str | None, trust: bool, group: Group, stack: contextlib.ExitStack
) -> Run:
    """The parts of a run, put together, and restored if it is resumed. `stack` closes them. Until then nothing in the folder of a
    resumed run changes."""
    from paceline.agent.make import make_agent

    # Before the display, where the user could not be asked.
    checkpoint = _checkpoint_to_resume(config, folder, resume) if resume is not None else None
    loads = checkpoint is not None and checkpoint.has_pickles and may_unpickle(checkpoint.manifest, trust=trust)
    stop, phases, clock = Stop(group), Phases(), Clock()
    progress = None
    if group.is_first:
        title = f"{config.system} on {config.env}"
        progress = stack.enter_context(Progress(title, folder, phases, line_seconds=config.log_seconds))
    stack.enter_context(stop.on_signals())
    prepare(config, group)
    pool = make_pool(
        config.env,
        pool_config(config, group.device),
        seed=config.seed + 1000 * group.rank,
        device=str(group.device),
        phases=phases,
    )
    stack.enter_context(contextlib.closing(pool))
    stop.on_request(pool.wake)
    agent = stack.enter_context(contextlib.closing(make_agent(config, group, pool, clock, folder, stop, phases)))
    run: Run[Any] = Run(config, group, pool, folder, agent, clock=clock, stop=stop, phases=phases, progress=progress)
    if checkpoint is not None:
        require_same_spaces(checkpoint.weights, run.policy.state_dict(), Config.load(folder / "config.json"), config)
        run.restore(checkpoint, may_unpickle=loads)
        if group.is_first:
            log.info("continuing from step %s, checkpoint %s", f"{run.step:,}", checkpoint.folder)
    if group.is_first:
        remove_leftovers(folder)
        config.save(folder / "config.json")
    return run


def _finish(run: Run) -> Run:
    from paceline.schedule.loops import SCHEDULES

    with run.running():
        SCHEDULES[run.config.system](run)
    return run


def _checkpoint_to_resume(config: Config, folder: Path, which: str) -> Checkpoint:
    """The checkpoint to continue from, if this configuration can, and if there is anything left to train."""
    require_same_network(Config.load(folder / "config.json"), config, folder)
    checkpoint = CheckpointFolder(folder / "checkpoints").load(which)
    require_unfinished(checkpoint, config)
    return checkpoint


def prepare(config: Config, group: Group) -> None:
    """Seeds and determinism of this process."""
    torch.manual_seed(config.seed + group.rank)
    # One precision for single steps and for whole sequences, whose kernels would otherwise differ in it.
    torch.set_float32_matmul_precision("high")
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def pool_config(config: Config, device: torch.device) -> PoolConfig:
    """The pool's configuration, completed by what the run decides."""
    pool = config.pool
    if config.deterministic and pool.kind == "auto" and resolve(config.env).steps_singly:
        pool = dataclasses.replace(pool, kind="serial")
    if device.type == "cuda":
        graphs = pool.cuda_graphs and config.compute.cuda_graphs
        pool = dataclasses.replace(pool, pin_memory=True, cuda_graphs=graphs)
    return pool
