"""The learner of the PPO systems: epochs of mini-batches over one batch, with gradients averaged over the ranks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.accel.compiled_sizes import CompiledBySize
from paceline.accel.config import ComputeConfig
from paceline.accel.cuda_streams import DeviceQueue
from paceline.distributed.reduce import FlatGradients, clip_
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.sequences import MiniBatch
from paceline.experience.training_batch import TrainingBatch
from paceline.learner.advantages import normalize
from paceline.learner.auxiliary import make_auxiliary
from paceline.learner.config import OnNonFinite, OptimizerConfig, PPOConfig
from paceline.learner.entropy import make_entropy_coefficient
from paceline.learner.finite import FiniteSteps
from paceline.learner.handover import Handover
from paceline.learner.hyperparameters import Scalars, ppo_hyperparameters
from paceline.learner.minibatches import MiniBatches
from paceline.learner.optimizer import load_moments, make_adam, set_rate
from paceline.learner.own_losses import make_term
from paceline.learner.ppo_loss import PPOLoss
from paceline.learner.publication import Publication
from paceline.learner.rate_schedule import make_rate_schedule
from paceline.learner.step_graphs import StepGraphs
from paceline.learner.targets import Targets
from paceline.nets.parts import parts_of, saved_form
from paceline.nets.ppo_policy import PPOPolicy
from paceline.stop import Stop
from paceline.telemetry.phases import Phases


class PPOLearner:
    """One policy with its update rule, optimiser, targets, normalisers, hyper-parameters and published weights.

    All ranks of `group` call `learn` together. `num_slots` is the number of slots whose rewards `targets` may have to
    normalise.
    """

    def __init__(
        self,
        policy: PPOPolicy,
        group: Group,
        config: PPOConfig,
        optimizer_config: OptimizerConfig,
        generator: torch.Generator | None = None,
        compute: ComputeConfig | None = None,
        *,
        num_slots: int = 0,
        stop: Stop | None = None,
        phases: Phases | None = None,
        on_nonfinite: OnNonFinite = "stop",
    ) -> None:
        compute = compute or ComputeConfig()
        self.policy, self._group, self._generator = policy, group, generator
        self._stop, self._phases = stop or Stop(group), phases or Phases()
        self._finite, self._queue = FiniteSteps(group.device, on_nonfinite), DeviceQueue(group.device)
        self.hyperparameters = ppo_hyperparameters(config, optimizer_config)
        self._scalars, self._revision = Scalars.on(group.device), -1
        self._schedule = make_rate_schedule(optimizer_config.schedule)
        self.targets = Targets(self.hyperparameters, group, num_slots)
        self.publication = Publication(policy)
        self._coefficient = make_entropy_coefficient(policy, config, group.device)
        self._auxiliary = make_auxiliary(policy, config.auxiliary, group)
        modules = (("policy", policy), ("auxiliary", self._auxiliary), ("entropy", self._coefficient))
        self._trained: dict[str, nn.Module] = {name: module for name, module in modules if module is not None}
        """The modules that are optimised, in the order of their gradients."""
        parameters = [
            [parameter for parameter in module.parameters() if parameter.requires_grad]
            for module in self._trained.values()
        ]
        self._gradients = FlatGradients(itertools.chain(*parameters))
        sizes = [sum(parameter.numel() for parameter in own) for own in parameters]
        self._parts = dict(zip(self._trained, self._gradients.flat.split(sizes), strict=True))
        betas = (optimizer_config.beta1, optimizer_config.beta2)
        self.optimizer = make_adam(
            itertools.chain(*parameters), optimizer_config.learning_rate, betas=betas, eps=optimizer_config.eps
        )
        # V-trace in a mini-batch normalises advantages over all ranks, which cannot be recorded.
        meets = config.traces_minibatches and config.normalize_advantage and group.size > 1
        recorded = compute.cuda_graphs and group.device.type == "cuda" and not meets
        self._minibatches = MiniBatches(policy, group, config, self._scalars, generator, recorded=recorded)
        term = make_term(policy, config)
        loss = PPOLoss(policy, group, config, self._scalars, self._coefficient, self._auxiliary, term)
        # The compiler unrolls loops over time, which takes minutes. For these policies only the encoders are compiled.
        compiled = compute.compile and not policy.is_recurrent and not config.traces_minibatches
        self._loss = CompiledBySize(loss.__call__, lambda sample: len(sample.log_prob)) if compiled else loss
        self._num_sums = len(loss.metrics) + 1
        self._metrics = (*loss.metrics, "grad_norm", *(["entropy_coef"] if self._coefficient is not None else []))
        self._graphs = StepGraphs(self._backward, self._apply, self._num_sums, recorded=recorded)
        self.before_pass: Callable[[], None] = lambda: None
        """Called before each forward and each backward pass, unless updates are recorded."""
        self.first_version = 0
        """The version of the weights that were last taken over. Rows of older weights are not learned from."""
        self.threads_alone: int | None = None
        """On a CPU: PyTorch's threads while no other thread of the run computes."""

    @property
    def config(self) -> PPOConfig:
        """With the current hyper-parameters."""
        return self.hyperparameters.section("ppo")

    @property
    def optimizer_config(self) -> OptimizerConfig:
        """With the current hyper-parameters."""
        return self.hyperparameters.section("optimizer")

    @property
    def version(self) -> int:
        """The number of updates of the policy. Waits for the device."""
        return int(self.policy.version)

    def learning_rate(self, progress: float) -> float:
        """The learning rate after a share `progress` of the run."""
        return self.optimizer_config.learning_rate * self._schedule(min(max(progress, 0.0), 1.0))

    def learn(self, batch: TrainingBatch, progress: float) -> dict[str, float]:
        """One update of the policy and of its normalisers."""
        losses = self.update(batch, progress)
        if self.policy.normalizes:
            self.policy.absorb(batch.obs, batch.valid_rows(), self._group)
        return losses

    def publish(self) -> None:
        """Make the present weights those that readers of `publication` get."""
        self.publication.publish()

    def update(self, batch: TrainingBatch, progress: float) -> dict[str, float]:
        """Train on a batch with finished targets. Returns means over the rows of all ranks. Raises `StopRun` between
        two mini-batches, and `NonFiniteError` at the end."""
        self._apply_hyperparameters(progress)
        if self.config.is_traced and batch.steps is None:
            raise UsageError("ppo.targets vtrace needs streams of equal length; allowed with this system: gae, auto")
        if not self.config.traces_minibatches:
            if self._minibatches.make_room(batch):
                self._graphs.clear()
            self._minibatches.prepare(batch, self._before_evaluation)
        lag = self._lag_bounds(batch)
        try:
            totals = self._run_epochs(batch)
        finally:
            self.policy.version += 1  # an interrupted update has changed the weights, too
            self._phases.end("learning")
        return self._report(totals, lag)

    def _apply_hyperparameters(self, progress: float) -> None:
        set_rate(self.optimizer, self.learning_rate(progress))
        if self._revision == self.hyperparameters.revision:
            return
        self._revision, optimizer = self.hyperparameters.revision, self.optimizer_config
        self._scalars.write(self.config, optimizer)
        (group,) = self.optimizer.param_groups
        if group["betas"] != (optimizer.beta1, optimizer.beta2):
            group["betas"] = (optimizer.beta1, optimizer.beta2)
            self._graphs.clear()  # the fused optimiser takes them as constants

    def _before_evaluation(self) -> None:
        self._stop.raise_if_alone(self._group)
        self.before_pass()

    def _run_epochs(self, batch: TrainingBatch) -> Tensor:
        """All passes over the batch. Returns the sums of every metric over the rows, and the number of rows."""
        config = self.config
        totals = torch.zeros(len(self._metrics) + 1, device=self._group.device)
        for epoch in range(config.epochs):
            before = totals.clone()
            for number, minibatch in enumerate(self._minibatches.split(batch), epoch * config.minibatches):
                self._phases.show("learning", number, config.epochs * config.minibatches, "mini-batches")
                totals += self._step(batch, minibatch)
            if self._moved_too_far(totals - before):
                break
        return totals

    def _step(self, batch: TrainingBatch, minibatch: MiniBatch) -> Tensor:
        """One gradient step. Returns the sums of every metric over the rows, and the number of rows."""
        self._stop.raise_if_alone(self._group)
        graph = self._graphs.find(batch, minibatch)
        sums = graph.backward(minibatch) if graph is not None else self._backward(batch, minibatch)
        if self._group.size > 1:
            self._stop.raise_if(self._gradients.average(self._group, vote=self._stop.is_requested))
        sums = graph.apply() if graph is not None else self._apply(sums)
        self._queue.wait()
        return sums

    def _backward(self, batch: TrainingBatch, minibatch: MiniBatch) -> Tensor:
        """Gradients of this rank's mean loss. Returns the sums of the loss's metrics, and the number of rows."""
        self._gradients.zero()
        if len(minibatch.rows) == 0:  # a rank without valid rows takes part in the reductions with a gradient of 0
            if self.config.traces_minibatches and self.config.normalize_advantage:
                none = torch.zeros(0, device=self._group.device)
                normalize(none, none.bool(), self._group)
            return torch.zeros(self._num_sums, device=self._group.device)
        self.before_pass()
        loss, sums = self._loss(self._minibatches.gather(batch, minibatch))
        self.before_pass()
        loss.backward()
        return sums

    def _apply(self, sums: Tensor) -> Tensor:
        """Move the weights by the gradients. Returns `sums` with the metrics of the step. The policy and the auxiliary
        loss are clipped by their own norms. The entropy coefficient, a single number, is not clipped."""
        limit = self._scalars.max_grad_norm if self.optimizer_config.max_grad_norm is not None else None
        norms = {name: clip_(part, limit) for name, part in self._parts.items() if name != "entropy"}
        step = [norms["policy"]]
        self._finite.take(self.optimizer, norms["policy"] if len(self._parts) == 1 else self._gradients.flat.norm())
        if self._coefficient is not None:
            self._coefficient.bound()
            step.append(self._coefficient().detach())
        count = sums[-1:]
        return self._finite.counted(torch.cat([sums[:-1], torch.stack(step) * count, count]))

    def _moved_too_far(self, sums: Tensor) -> bool:
        if self.config.target_kl is None:
            return False
        sums = self._group.sum_(sums.clone())
        return bool(sums[self._metrics.index("approx_kl")] / sums[-1] > self.config.target_kl)

    def _lag_bounds(self, batch: TrainingBatch) -> Tensor:
        """[2]: -min and max of the policy lag of the rows to train on."""
        used = batch.trained()
        lag = (self.policy.version - batch.version[: batch.num_rows]).float()
        return torch.stack([torch.where(used, -lag, -torch.inf).max(), torch.where(used, lag, -torch.inf).max()])

    def _report(self, totals: Tensor, lag: Tensor) -> dict[str, float]:
        """Means over the rows of all ranks. Here an update waits for the device, once."""
        *sums, count, least, most = torch.cat([self._group.sum_(totals), self._group.max_(lag)]).tolist()
        means = {name: total / max(count, 1.0) for name, total in zip(self._metrics, sums, strict=True)}
        bounds = {"policy_lag_min": -least, "policy_lag_max": most} if count else {}
        return means | bounds | self._finite.check(means, self.version)

    def handover(self) -> Handover:
        """What another learner needs to continue as this one. It shares no memory with this learner."""
        weights, agent, targets = copy.deepcopy(
            (self.policy.state_dict(), self.state_dict(), self.targets.state_dict())
        )
        return {"weights": weights, "agent": agent, "targets": targets}

    def take_over(self, donor: Handover) -> None:
        """Continue with the weights, normalisers, optimiser and hyper-parameters of another learner. Rows that this
        learner's own weights decided are not learned from any more."""
        version = self.version + 1
        self.policy.load_state_dict(donor["weights"])
        self.policy.version.fill_(version)
        self.load_state_dict(donor["agent"])
        self.first_version = version
        self.hyperparameters.take_over(donor["agent"]["hyperparameters"])
        self.targets.take_over(donor["targets"])
        self.publish()

    def state_dict(self) -> dict[str, Any]:
        """All but the policy, which is saved by itself, and `targets`, whose state is this rank's own."""
        state = {name: module.state_dict() for name, module in self._trained.items() if name != "policy"}
        own = {"optimizer": self.optimizer.state_dict(), "hyperparameters": self.hyperparameters.state_dict()}
        own["parts"] = saved_form(parts_of(self.policy))
        return own | state | ({"first_version": self.first_version} if self.first_version else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        always = {"policy", "optimizer", "hyperparameters", "first_version", "parts"}
        own, saved = self._trained.keys() - always, state.keys() - always
        if own != saved:
            mine, theirs = (", ".join(sorted(names)) or "nothing" for names in (own, saved))
            raise UsageError(
                f"the checkpoint's learner trains {theirs} besides its policy, this one trains {mine}; "
                "resume a run with the ppo settings that it was started with"
            )
        for name in own:
            self._trained[name].load_state_dict(state[name])
        load_moments(self.optimizer, state["optimizer"])
        self.hyperparameters.load_state_dict(state.get("hyperparameters", {}))
        self.first_version = state.get("first_version", 0)
        self._graphs.clear()  # they write to the old moments

    def rank_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {name: values.cpu() for name, values in self.targets.state_dict().items()}
        return {"generator": None if self._generator is None else self._generator.get_state(), "targets": state}

    def load_rank_state(self, state: dict[str, Any], *, own: bool) -> None:
        self.targets.load_state_dict(state["targets"])
        if own and self._generator is not None and state["generator"] is not None:
            self._generator.set_state(state["generator"])

    def restore_episodes(self, state: dict[str, Any], anew: np.ndarray) -> None:
        self.targets.continue_episodes(state["targets"])
        if len(anew):
            self.targets.start_anew(torch.from_numpy(anew).to(self._group.device))
