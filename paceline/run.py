"""A training run: the parts put together, its progress, its reports and its checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from paceline.agent.protocol import Agent
from paceline.checkpoint import Checkpoint, CheckpointFolder
from paceline.config import Config
from paceline.distributed.gather import gather
from paceline.distributed.runtime import Group
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.policy.kernels import keep_freed_memory
from paceline.pool import Pool, PoolConfig, make_pool
from paceline.pool.protocol import Episode
from paceline.signals import handled_by
from paceline.telemetry.clock import Clock
from paceline.telemetry.metrics import MetricsWriter
from paceline.telemetry.progress import Progress

log = logging.getLogger(__name__)

ECHO_SECONDS = 1.0
"""A signal that comes so soon after another is the same."""

REPORT_SECONDS = 2.0
WARM_ITERATIONS = 4
"""After these nearly everything is allocated, compiled and recorded."""
AgentT = TypeVar("AgentT", bound=Agent)
EPISODE_WINDOW = 100
"""Episode statistics are means over at least this many of the latest episodes."""


class Run(Generic[AgentT]):
    """One rank's share of a run: progress, reports and checkpoints. Schedules turn its agent's and its pool's wheels, and
    call `finished` and `report` once per iteration."""

    def __init__(self, config: Config, group: Group, pool: Pool, folder: Path, agent: AgentT, clock: Clock) -> None:
        self.config, self.group, self.pool, self.folder, self.agent = config, group, pool, folder, agent
        self.clock = clock
        self.threads = torch.get_num_threads()
        """PyTorch's threads; another thread has to be told."""
        self.step = 0
        """Agent steps trained on so far, over all ranks."""
        self.interrupted = False
        self._iterations = 0
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
        self._metrics = _metrics_writer(config, folder) if group.is_first else None
        self._progress = Progress(f"{config.system} on {config.env}") if group.is_first else None

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
        """Whether to stop, which all ranks decide together."""
        out_of_time = self.config.seconds is not None and self.seconds >= self.config.seconds
        with self.clock.time("communication"):
            return self.group.any(self.step >= self.config.steps or out_of_time or self.interrupted)

    def report(self, steps: int, losses: dict[str, float], episodes: list[Episode] | None = None) -> None:
        """Count an iteration of so many steps, and tell the world of it now and then. `episodes` are those that have
        finished since the last one, where another thread has the pool."""
        finished = self.pool.take_episodes() if episodes is None else episodes
        sums = [
            float(steps),
            float(len(finished)),
            sum(episode.episode_return for episode in finished),
            float(sum(episode.length for episode in finished)),
            *(sum(episode.info[name] for episode in finished) for name in self.pool.spec.measures),
            self.seconds / self.group.size,
        ]
        with self.clock.time("communication"):
            all_steps, *sums, self._agreed_seconds = self.group.sum_(
                torch.tensor(sums, dtype=torch.float64, device=self.group.device)
            ).tolist()
        self.step += int(all_steps)
        self._iterations += 1
        self._count_episodes(tuple(sums))
        if self._iterations == WARM_ITERATIONS and self.group.is_first and self.group.device.type == "cuda":
            total = torch.cuda.get_device_properties(self.group.device).total_memory
            log.info("GPU memory: %.1f of %.0f GiB", torch.cuda.max_memory_reserved() / 2**30, total / 2**30)
        now = time.monotonic()
        self._losses = losses
        if self.group.is_first and (now - self._last_report[0] >= REPORT_SECONDS or self.step >= self.config.steps):
            self._tell(now, losses)

    def checkpoint_due(self) -> bool:
        """Whether to `save` now, which all ranks decide together."""
        return self.group.any(time.monotonic() - self._last_checkpoint >= self.config.checkpoint.seconds)

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
            "learning_rate": self.agent.learning_rate(self.progress),
            **losses,
            **{f"time/{name}": share for name, share in self.clock.take_shares().items()},
        }
        assert self._metrics is not None and self._progress is not None
        self._metrics.write(report)
        self._progress.show(report, self.progress)

    def save(self) -> None:
        """Write a checkpoint; called by all ranks together, between two iterations."""
        mine: dict[str, Any] = {
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.group.device.type == "cuda" else None,
            "agent": self.agent.rank_state(),
        }
        try:
            pool_state: bytes | None = self.pool.state()
        except UsageError as error:
            pool_state = None
            log.debug("simulators are not in the checkpoint: %s", error)
        ranks = gather(self.group, (mine, pool_state))
        self._last_checkpoint = time.monotonic()
        if not self.group.is_first:
            return
        mean = self.episode_means()["episode_return"]
        best = mean is not None and mean > self._best
        self._best = max(self._best, mean if mean is not None else self._best)
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "best": self._best,
            "episodes": list(self._episodes),
            "agent": self.agent.state(),
            "ranks": [rank for rank, _ in ranks],
        }
        pools = {rank: pool for rank, (_, pool) in enumerate(ranks) if pool is not None}
        self._checkpoints.save(self.step, self.policy.state_dict(), state, pools, best=best)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint: exactly if it has this rank's simulators, with fresh episodes otherwise."""
        state = checkpoint.state
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
        self.pool.recv(min_slots=None)
        self.pool.restore(pool_state)
        self.agent.go_on(mine["agent"])

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Display, signals, and a checkpoint at the end, whichever end it is that the user asked for."""
        with contextlib.ExitStack() as stack:
            if self._progress is not None:
                stack.enter_context(self._progress)
            if self._metrics is not None:
                stack.callback(self._metrics.close)
            stack.enter_context(_stop_on_signals(self))
            yield
            if self.group.is_first and self._losses and self.step > self._last_report[1]:
                self._tell(time.monotonic(), self._losses)  # the end is always reported
            self.save()


def _stop_on_signals(run: Run) -> contextlib.AbstractContextManager[None]:
    """The first Ctrl-C or SIGTERM ends the run after the iteration, with a checkpoint; the second ends it at once, unless it is
    the first one again: who ends a whole group of processes may reach one of them by several ways."""
    asked_at = 0.0

    def stop(number: int, frame: object) -> None:
        nonlocal asked_at
        if run.interrupted:
            if time.monotonic() - asked_at > ECHO_SECONDS:
                os._exit(128 + number)
            return
        run.interrupted, asked_at = True, time.monotonic()
        if run.group.is_first:
            log.warning("stopping after this iteration; again to stop at once, with the last checkpoint")

    return handled_by(stop)


def _metrics_writer(config: Config, folder: Path) -> MetricsWriter:
    return MetricsWriter(folder, wandb_project=config.wandb_project, config=dataclasses.asdict(config))


def train(config: Config, folder: Path, *, resume: str | None = None) -> Run:
    """Run `config` in `folder` to its end. `resume` names the checkpoint to continue from: latest, best or step_N."""
    from paceline.agent.make import make_agent
    from paceline.schedule import SCHEDULES

    keep_freed_memory()
    group = Group.join(config.device, config.group, folder)
    existed = folder.exists()
    try:
        prepare(config, group)
        checkpoint = CheckpointFolder(folder / "checkpoints").load(resume) if resume is not None else None
        pool = make_pool(
            config.env,
            pool_config(config, group.device),
            seed=config.seed + 1000 * group.rank,
            device=str(group.device),
        )
        with contextlib.closing(pool):
            clock = Clock()
            with contextlib.closing(make_agent(config, group, pool, clock, folder)) as agent:
                folder.mkdir(parents=True, exist_ok=True)
                if group.is_first:
                    config.save(folder / "config.json")
                run: Run[Any] = Run(config, group, pool, folder, agent, clock)
                if checkpoint is not None:
                    run.restore(checkpoint)
                with run.running():
                    SCHEDULES[config.system](run)
        return run
    except BaseException as error:
        group.abandon()
        if isinstance(error, UsageError) and group.is_first and not existed and not (folder / "checkpoints").exists():
            shutil.rmtree(folder, ignore_errors=True)  # what was asked for in a wrong way leaves nothing behind
        raise
    finally:
        group.close()


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
