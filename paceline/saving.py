"""Saving a run to checkpoints, and restoring it."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.checkpoint import Checkpoint, CheckpointFolder
from paceline.collect.kind_slots import all_kinds
from paceline.collect.protocol import Collection
from paceline.distributed.failures import describe_last_checkpoint
from paceline.distributed.gather import gather
from paceline.errors import PacelineError, UsageError
from paceline.files import DiskFull
from paceline.learner.finite import require_finite
from paceline.pool.seeds import pool_seed
from paceline.run import Run

log = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0
"""How long a run that stops waits for simulators to finish their steps."""
STATE_SECONDS = 1.0
"""How long it then waits for their states. Slots whose state does not arrive in time start new episodes on resume."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What one rank adds to a checkpoint."""

    step: int
    policies: dict[int, tuple[dict[str, Tensor], dict[str, Any]]]
    """The weights of policies and the states of their learners: of those that this rank speaks for."""
    shared: dict[str, Any]
    """Other state that is the same on all ranks."""
    mine: dict[str, Any]
    """State of this rank."""
    pool: bytes | None
    """The state of this rank's simulators; None where they cannot be saved."""
    problem: str | None
    """Why the state of this rank is missing."""


class Saver:
    """Checkpoints of a run. Its methods are called by all ranks together."""

    def __init__(self, run: Run, collection: Collection) -> None:
        self._run, self._collection = run, collection
        self._checkpoints = CheckpointFolder(run.folder / "checkpoints", run.config.checkpoint.keep)
        self._best = -float("inf")
        self._restored_at: int | None = None
        """The iteration at which the run was restored."""
        self._saved_at = -1
        """The iteration of the last checkpoint."""
        self._before_iteration: Snapshot | None = None
        """The state before the present iteration of a deterministic run. A stopped run repeats it on resume."""
        self._has_warned = False
        """Whether the log says that a deterministic run has simulators that cannot be saved."""

    def before_iteration(self) -> None:
        """Save if a checkpoint is due."""
        run = self._run
        if run.config.deterministic:
            self.keep_state()  # first: a run that is stopped here goes on from here
            run.stop.raise_if_agreed()
        if run.checkpoint_due:
            self._write(self._before_iteration) if self._before_iteration is not None else self.save()

    def keep_state(self) -> None:
        """A deterministic run that is stopped goes on from here."""
        self._before_iteration = copy.deepcopy(self._take())

    def save(self, *, final: bool = False) -> None:
        """Write a checkpoint between two iterations."""
        self._write(self._take(state_seconds=STATE_SECONDS if self._run.stop.is_requested else None), final=final)

    def save_end(self) -> None:
        """Write the last checkpoint, unless nothing was trained since the last one."""
        if self._run.iterations not in (0, self._saved_at):
            self.save(final=True)

    def save_stopped(self) -> None:
        """Write a checkpoint after the training loop was stopped in an iteration."""
        run = self._run
        if self._restored_at == run.iterations and not run.group.any(self._collection.has_advanced):
            return  # nothing is kept since the checkpoint that the run continued from, which is exact
        if self._before_iteration is not None:
            self._write(self._before_iteration, final=True)
            return
        if run.has_begun:
            self._drain()
        self._write(self._take(stopped=True, state_seconds=STATE_SECONDS), final=True)

    def _take(self, *, stopped: bool = False, state_seconds: float | None = None) -> Snapshot:
        """What this rank adds to a checkpoint. `stopped`: the training loop was interrupted in an iteration."""
        run = self._run
        first, *others = run.learners
        for learner in run.learners:
            require_finite(learner.policy)
        try:
            pool_state: bytes | None = run.pool.state(state_seconds)
        except UsageError as error:
            pool_state = None
            self._say_unsaved(error)
        mine, problem = None, None
        try:
            stopped = stopped or run.pool.num_in_flight > 0
            mine = self._collection.rank_state(stopped=stopped) | first.rank_state()
            if others:
                mine["other_learners"] = [learner.rank_state() for learner in others]
        except DiskFull as error:  # the other ranks have to know it
            problem = str(error)
        shared = {
            "step": run.step,
            "seconds": run.seconds,
            "best_by": run.merit_name,
            "episodes": list(run.episodes.sums),
            "trained_by": list(run.ownership.ranks),
        }
        if run.population is not None:
            shared["population"] = run.population.state_dict()
        cuda_rng = torch.cuda.get_rng_state() if run.group.device.type == "cuda" else None
        return Snapshot(
            step=run.step,
            policies={
                policy: (run.learners[policy].policy.state_dict(), run.learners[policy].state_dict())
                for policy in run.ownership.speaks_for
            },
            shared=shared,
            mine={"rng": torch.get_rng_state(), "cuda_rng": cuda_rng, "agent": mine},
            pool=pool_state,
            problem=problem,
        )

    def _say_unsaved(self, why: UsageError) -> None:
        run = self._run
        if not run.config.deterministic or not run.group.is_first:
            log.debug("simulators are not in the checkpoint: %s", why)
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "the simulators of %s are not in checkpoints: a resumed run will begin new episodes, and will not give "
                "the same bits as one without a stop; %s",
                run.config.env,
                why,
            )

    def _write(self, snapshot: Snapshot, *, final: bool = False) -> None:
        """Write a checkpoint of all ranks' snapshots. If the disk is full, only the `final` one is an error. Any other
        is tried again when the next one is due."""
        run = self._run
        run.phases.show("saving a checkpoint", 0, 0)
        ranks = gather(run.group, (snapshot.policies, snapshot.mine, snapshot.pool, snapshot.problem))
        run.last_checkpoint_at, run.checkpoint_due = time.monotonic(), False
        # Not in `_take`, which a deterministic run calls before each iteration: ratings of players take long.
        merit = run.merit
        best = self._best if merit is None else max(self._best, merit)
        # Of equals the latest. Before there is a first merit, the latest checkpoint is the best.
        is_best = best == (-float("inf") if merit is None else merit)
        problem = self._write_files(snapshot, ranks, best, is_best=is_best) if run.group.is_first else None
        written = not run.group.any(problem is not None)
        if written:
            self._best, self._saved_at = best, run.iterations
            self._collection.saved(snapshot.mine["agent"])
            if run.population is not None:
                run.population.saved()
        run.phases.end("saving a checkpoint")
        if written:
            run.callbacks.checkpoint(self._checkpoints.path_of(snapshot.step))
        if problem is not None and final:
            raise DiskFull(f"{problem}; {describe_last_checkpoint(run.folder)}")
        if problem is not None:
            seconds = run.config.checkpoint.seconds
            log.warning("%s; %s. The next attempt is in %g s", problem, describe_last_checkpoint(run.folder), seconds)

    def _write_files(
        self, snapshot: Snapshot, ranks: list[tuple[Any, Any, Any, Any]], best: float, *, is_best: bool
    ) -> str | None:
        """`best` is the highest merit so far. Returns what is wrong, if the disk is full."""
        problems = [problem for *_, problem in ranks if problem is not None]
        if problems:
            return problems[0]
        policies = {policy: saved for own, *_ in ranks for policy, saved in own.items()}
        (weights, *others), (agent, *learners) = zip(*(policies[p] for p in range(len(policies))), strict=True)
        state = snapshot.shared | {"best": best, "agent": agent, "ranks": [mine for _, mine, *_ in ranks]}
        if learners:
            state["other_learners"] = learners
        pools = {rank: pool for rank, (*_, pool, _) in enumerate(ranks) if pool is not None}
        try:
            self._checkpoints.save(snapshot.step, weights, state, pools, best=is_best, other_weights=others)
        except DiskFull as error:
            return str(error)
        return None

    def _drain(self) -> None:
        """Receive the steps that simulators finish soon, so that the checkpoint has their states."""
        pool, deadline = self._run.pool, time.monotonic() + DRAIN_SECONDS
        waker = threading.Timer(DRAIN_SECONDS, pool.wake)  # a serial pool ignores time-outs
        waker.daemon = True
        waker.start()
        while pool.can_restore and pool.num_in_flight > 0 and (left := deadline - time.monotonic()) > 0:
            try:
                batch = pool.recv(min_slots=pool.num_in_flight, timeout=left)
            except (
                PacelineError
            ) as error:  # it must not cost the checkpoint: a job-wide signal may have ended simulators
                log.warning("a simulator failed while the run stopped: %s", error)
                break
            if len(batch):
                self._collection.observe_stopped(batch)
        waker.cancel()

    def restore(self, checkpoint: Checkpoint, *, may_unpickle: bool = True) -> None:
        """Continue exactly, or with new episodes if this rank's simulators are missing or may not be loaded."""
        run, state = self._run, checkpoint.state
        ranks, rank = state["ranks"], run.group.rank
        own, mine = rank < len(ranks), ranks[min(rank, len(ranks) - 1)]
        shared = [state["agent"], *state.get("other_learners", [])]
        for policy, learner in enumerate(run.learners):
            learner.policy.load_state_dict(checkpoint.weights_of(policy))
            learner.load_state_dict(shared[policy])
            trained_by = state["trained_by"][policy] if "trained_by" in state else range(len(ranks))
            has_trained = rank in trained_by
            saved = ranks[rank if has_trained else trained_by[-1]]["agent"]
            learner.load_rank_state([saved, *saved.get("other_learners", [])][policy], own=has_trained)
            learner.publish()
        if own:
            self._collection.load_rank_state(mine["agent"])
        run.step, run.seconds_before = state["step"], state["seconds"]
        if state.get("best_by", "return") == run.merit_name:
            self._best = state["best"]
        run.agreed_seconds = run.seconds_before
        if run.population is not None:
            run.population.load_state_dict(state.get("population"), run.step)
        run.episodes.sums = deque(tuple(entry) for entry in state["episodes"])
        run.last_report = (time.monotonic(), run.step)
        self._restored_at = run.iterations
        if not own:
            log.warning("rank %d was not part of the saved run: it starts with fresh simulators", rank)
            return
        torch.set_rng_state(mine["rng"])
        if mine["cuda_rng"] is not None and run.group.device.type == "cuda":
            torch.cuda.set_rng_state(mine["cuda_rng"])
        self._restore_simulators(checkpoint, mine["agent"], may_unpickle=may_unpickle)

    def _restore_simulators(self, checkpoint: Checkpoint, mine: dict[str, Any], *, may_unpickle: bool) -> None:
        run, pool = self._run, self._run.pool
        pool_state = checkpoint.pool_state(run.group.rank)
        if pool_state is None:
            log.warning("the checkpoint has no simulators: all episodes start anew")
            return
        if not pool.can_restore:
            log.warning("EnvPool cannot continue the checkpoint's simulators: all episodes start anew")
            return
        if pool.spec.on_device == checkpoint.has_pickles:
            log.warning("the checkpoint's simulators are of another kind of pool: all episodes start anew")
            return
        if checkpoint.has_pickles and not may_unpickle:
            return
        pool.recv(min_slots=None)
        try:
            anew = pool.restore(pool_state)
        except UsageError as error:  # for example another number of environments, or classes of another program
            log.warning("all episodes start anew: %s", error)
            pool.reset(pool_seed(run.config.seed, run.group.rank, run.step))
            return
        self._collection.restore_episodes(mine, anew)
        kinds = all_kinds(pool.spec)
        of_learners = [mine, *mine.get("other_learners", [])]
        for policy, (learner, saved) in enumerate(zip(run.learners, of_learners, strict=True)):
            learner.restore_episodes(saved, kinds[policy % len(kinds)].local(anew))
        if len(anew):
            log.warning(
                "the simulators of slots %s are not in the checkpoint or cannot be loaded: they start new episodes",
                anew.tolist(),
            )
