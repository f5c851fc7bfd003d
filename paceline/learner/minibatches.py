"""From a batch to the mini-batches of PPO's steps: which rows, and what the loss reads of them.

T steps, N slots, K columns, M rows of a mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.sequences import MiniBatch, shuffled_columns, shuffled_rows, shuffled_sequences
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.advantages import normalize
from paceline.learner.config import PPOConfig
from paceline.learner.hyperparameters import Scalars
from paceline.learner.vtrace_columns import Columns, columns_of, trace_columns
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.cores import Core
from paceline.nets.ppo_policy import PPOPolicy, Recall

LARGE_LSTM, LEAST_COLUMNS = 256, 4
"""On a CPU whole columns are faster than packed sequences from this many units and columns of a mini-batch."""


class Sample(NamedTuple):
    """The gathered rows of a mini-batch."""

    obs: dict[str, Tensor]
    actions: dict[str, Tensor]
    log_prob: Tensor
    """[M]: of the policy that probability ratios refer to."""
    value: Tensor
    advantage: Tensor
    returns: Tensor
    columns: Columns | None
    """If given, the loss computes advantages and returns by V-trace and does not read those above."""
    lag: Tensor
    """[M] float: updates between the weights that acted and those that learn."""
    weight: Tensor | None
    """[M]: of each row in the loss; None for 1."""
    valid: Tensor | None
    """[M] bool: rows to train on; None for all."""
    recall: Recall | None


class MiniBatches:
    """Divides batches into mini-batches, prepares what all steps of an update share, and gathers rows."""

    def __init__(
        self,
        policy: PPOPolicy,
        group: Group,
        config: PPOConfig,
        scalars: Scalars,
        generator: torch.Generator | None,
        *,
        recorded: bool,
    ) -> None:
        self._policy, self._group, self._config, self._scalars = policy, group, config, scalars
        self._generator, self._recorded = generator, recorded
        self.advantage = self.proximal_log_prob = torch.empty(0)
        """[R], by row of the batch: the advantage, and the log-probability under the policy before the update."""

    def split(self, batch: TrainingBatch) -> Iterator[MiniBatch]:
        """One pass over the batch in mini-batches."""
        config = self._config
        count, traced = config.minibatches, config.traces_minibatches
        if not self._policy.is_recurrent and not traced:
            return shuffled_rows(batch, count, self._generator)
        if batch.steps is None and config.sequences == "columns":
            raise UsageError(
                "ppo.sequences columns needs rollouts in lock-step; allowed with this system: packed, auto"
            )
        columns = traced or config.sequences == "columns"
        columns |= config.sequences == "auto" and batch.num_streams >= count and self._likes_columns(batch)
        if batch.steps is None or not columns:
            return shuffled_sequences(batch, count, self._generator)
        # With several policies the number of streams varies, and some mini-batches may be empty.
        if batch.num_streams < count and batch.selection.used is None:
            instead = "--ppo.trace update" if traced else "--ppo.sequences packed"
            raise UsageError(
                f"ppo.minibatches is {count}, but there are only {batch.num_streams} streams to divide; allowed: fewer "
                f"mini-batches, more --pool.num-envs, or {instead}"
            )
        return shuffled_columns(batch, count, self._generator)

    def _likes_columns(self, batch: TrainingBatch) -> bool:
        """Whether whole columns are faster than packed sequences. Only columns can be recorded. On a CPU columns are
        faster for a large LSTM that is computed layer by layer, if mini-batches have several of them."""
        core = self._policy.core if isinstance(self._policy, ActorCritic) else None
        large = False
        if isinstance(core, Core):
            large = core.config.kind == "lstm" and core.layer_by_layer and core.config.hidden >= LARGE_LSTM
        several = batch.num_streams >= LEAST_COLUMNS * self._config.minibatches
        return self._recorded or (self._group.device.type == "cpu" and large and several)

    def make_room(self, batch: TrainingBatch) -> bool:
        """Memory for the rows of `batch`. Returns whether it is new: recorded steps read the old one."""
        if self.advantage.shape == batch.advantage.shape:
            return False
        self.advantage, self.proximal_log_prob = torch.empty_like(batch.advantage), torch.zeros_like(batch.log_prob)
        return True

    def prepare(self, batch: TrainingBatch, before_pass: Callable[[], None]) -> None:
        """Compute the advantages of all rows. Calls `before_pass` before each pass through the network."""
        config = self._config
        rho = self._trace_all(batch, before_pass) if config.is_traced else None
        if config.normalize_advantage:
            used = slice(0, batch.num_rows)
            self.advantage[used] = normalize(batch.advantage[used], batch.valid[used], self._group)
        else:
            self.advantage.copy_(batch.advantage)
        if rho is not None and config.clips_around_update:
            self.advantage *= rho

    @torch.no_grad()
    def _trace_all(self, batch: TrainingBatch, before_pass: Callable[[], None]) -> Tensor:
        """V-trace of all rows under the policy before the update: their advantages, returns and log-probabilities.
        Returns rho of all rows."""
        columns = batch.columns()
        if batch.num_streams == 0:
            return torch.ones_like(batch.advantage)
        found = []
        # At most as many rows at a time as a mini-batch has.
        for part in columns.split(-(-batch.num_streams // self._config.minibatches), dim=1):
            before_pass()
            rows = part.flatten()
            whole = MiniBatch(rows=rows, starts=part[0], steps=len(part))
            said = self._policy.appraise(*self._inputs(batch, whole, rows))
            found.append([values.view_as(part) for values in said])
        log_prob, value = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        log_ratio = log_prob - batch.log_prob[columns]
        in_advantage = self._config.rho_in_advantage
        traced = trace_columns(
            columns_of(batch, columns), log_ratio, value, self._scalars, rho_in_advantage=in_advantage
        )
        rows, rho = columns.flatten(), torch.ones_like(batch.advantage)
        batch.advantage[rows], batch.returns[rows], rho[rows] = traced.advantage, traced.targets, traced.rho
        self.proximal_log_prob[rows] = log_prob.flatten()
        return rho

    def gather(self, batch: TrainingBatch, minibatch: MiniBatch) -> Sample:
        config, rows = self._config, minibatch.rows.to(self._group.device)
        obs, actions, recall = self._inputs(batch, minibatch, rows)
        steps = minibatch.steps
        traced = config.traces_minibatches
        return Sample(
            obs=obs,
            actions=actions,
            log_prob=(self.proximal_log_prob if config.clips_around_update else batch.log_prob)[rows],
            value=batch.value[rows],
            advantage=(batch.advantage if traced else self.advantage)[rows],
            returns=batch.returns[rows],
            columns=columns_of(batch, rows.view(steps, -1)) if traced and steps is not None else None,
            lag=(self._policy.version - batch.version[rows]).float(),
            weight=batch.weight[rows] if batch.weight is not None else None,
            valid=batch.valid[rows] if steps is not None else None,
            recall=recall,
        )

    def _inputs(
        self, batch: TrainingBatch, minibatch: MiniBatch, rows: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Recall | None]:
        """Observations, actions and recurrent sequences of a mini-batch whose `rows` are on the device."""
        obs = {name: _select(values, rows) for name, values in batch.obs.items()}
        actions = {name: values[rows] for name, values in batch.actions.items()}
        if not self._policy.is_recurrent:
            return obs, actions, None
        assert minibatch.starts is not None
        starts = batch.episode_start[rows].view(minibatch.steps, -1) if minibatch.steps is not None else None
        return obs, actions, Recall(batch.state[minibatch.starts.to(rows.device)], minibatch.batch_sizes, starts)


def _select(values: Tensor, rows: Tensor) -> Tensor:
    """`values[rows]`. On a CPU plain indexing copies images byte by byte, and this copies row by row."""
    return values.index_select(0, rows) if values.device.type == "cpu" else values[rows]
