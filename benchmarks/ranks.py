"""What benchmarks over several ranks share: starting them, and a run that only counts its rounds."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from paceline.config import Config
from paceline.distributed.reduce import synchronize
from paceline.distributed.runtime import Group
from paceline.distributed.weights import Publication
from paceline.experience.rollout import Rollout
from paceline.learner.ppo import PPOLearner
from paceline.learner.targets import Targets
from paceline.policy.actor import Actor
from paceline.policy.actor_critic import ActorCritic
from paceline.pool import Pool
from paceline.pool.protocol import Episode
from paceline.run import learns_beside
from paceline.telemetry.clock import Clock


def launch(module: str, size: int, settings: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Run `module` on `size` ranks; what its first rank says of every setting, as soon as it does."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    command += ["-m", module, json.dumps(settings)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    missing, other = len(settings), []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as ranks:
        for line in ranks.stdout or ():
            if line.startswith("RESULT "):
                missing -= 1
                yield json.loads(line.removeprefix("RESULT "))
            else:
                other.append(line)
    if missing:
        raise RuntimeError(f"{size} ranks failed:\n{''.join(other)}")


class Rounds:
    """What a schedule needs of a run, for at least `rounds` iterations and `seconds`; the first is never counted."""

    def __init__(self, config: Config, group: Group, pool: Pool, rounds: int, seconds: float = 0.0) -> None:
        self.config, self.group, self.pool = config, group, pool
        self._rounds, self._seconds = rounds, seconds
        torch.manual_seed(1)
        self.policy = ActorCritic(pool.spec, config.policy)
        synchronize(self.policy, group)
        acting = copy.deepcopy(self.policy) if learns_beside(config, pool) else self.policy
        publication = Publication(self.policy, acting)
        self.publish, self.pick_up = publication.publish, publication.pick_up
        self.clock, self.threads = Clock(), torch.get_num_threads()
        self.actor = Actor(acting, pool.spec, group.device)
        ppo = config.resolved_ppo
        self.targets = Targets(self.actor, group, ppo, pool.spec.num_slots)
        self.learner = PPOLearner(self.policy, group, ppo, config.optimizer)
        self.progress = 0.0
        self.marks: list[float] = []
        self.steps: list[int] = []

    def finished(self) -> bool:
        if len(self.marks) < self._rounds:
            return False
        enough = self.group.is_first and self.marks[-1] - self.marks[0] >= self._seconds
        return self.group.any(enough)

    def learn(self, rollout: Rollout) -> dict[str, float]:
        losses = self.learner.update(rollout, self.progress)
        self.policy.absorb(rollout, self.group)
        return losses

    def report(self, rollout: Rollout, losses: dict[str, float], episodes: list[Episode] | None = None) -> None:
        self.marks.append(time.perf_counter())
        self.steps.append(int(rollout.valid[: rollout.num_rows].sum()))
        if episodes is None:
            self.pool.take_episodes()

    def checkpoint_due(self) -> bool:
        return False

    def keep(self, rollout: Rollout) -> None:
        pass

    def rates(self, counted: int | None = None) -> tuple[float, float]:
        """Steps of all ranks per second over the last rounds (all but the first by default): the mean, the best round."""
        counted = counted or len(self.steps) - 1
        steps = self.group.sum_(torch.tensor(self.steps[-counted:], dtype=torch.float64))
        marks = torch.tensor(self.marks[-counted - 1 :], dtype=torch.float64)
        return float(steps.sum() / (marks[-1] - marks[0])), float((steps / marks.diff()).max())
