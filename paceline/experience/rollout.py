"""`Rollout`: one flat table of steps on the learner's device, for one update.

Legend: T steps, N slots, R = T * N rows, B rows of a mini-batch, C truncated rows, D numbers of recurrent state.

A row is one decision: begun with what was known when acting, completed when its slot is next received. Reward and end
flags that come with an observation belong to the row before it. A row is trained on only if its slot was active when
it was begun and its simulator was not lost before it was completed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.ops.gae import gae


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an actor decided for all N slots."""

    obs: dict[str, Tensor]
    """[N, ...]: what it decided on, inputs of its own (the previous action) included."""
    actions: dict[str, Tensor]
    """[N, ...] by action leaf, as the policy chose them."""
    log_prob: Tensor
    """[N]."""
    value: Tensor
    """[N]: V of the observation."""
    state: Tensor
    """[N, D]: the recurrent state BEFORE the step."""
    episode_start: Tensor
    """[N] bool: the observation is the first of an episode; `state` is zero."""
    active: Tensor
    """[N] bool: the observation asked for a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of those decisions."""

    reward: Tensor
    """[N] float32."""
    terminated: Tensor
    """[N] bool."""
    truncated: Tensor
    """[N] bool."""
    lost: Tensor
    """[N] bool: the simulator was replaced; the decision led nowhere."""
    cuts: Cuts | None = None
    """Where episodes were truncated; None where none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Where truncated episodes would have gone on: what V is still to be computed of."""

    rows: Tensor
    """[C] int64: slots of a turn, or rows of a rollout."""
    obs: dict[str, Tensor]
    """[C, ...]: final observations."""
    state: Tensor
    """[C, D]: recurrent states after those rows."""


class Rollout:
    """Up to T lock-step turns of N slots. Row t * N + slot is turn t of a slot."""

    def __init__(self, steps: int, num_slots: int, device: torch.device) -> None:
        self.steps, self.num_slots, self.device = steps, num_slots, device
        rows = steps * num_slots
        self.log_prob, self.value, self.reward, self.next_value, self.advantage = (
            torch.full((rows,), torch.nan, device=device) for _ in range(5)
        )
        self.terminated, self.truncated, self.episode_start, self.valid = (
            torch.zeros(rows, dtype=torch.bool, device=device) for _ in range(4)
        )
        self.obs: dict[str, Tensor] = {}
        self.actions: dict[str, Tensor] = {}
        self.state = torch.empty(0)
        self.turns = 0
        self._cuts: list[Cuts] = []

    @property
    def num_rows(self) -> int:
        """Rows begun since `clear`."""
        return self.turns * self.num_slots

    def clear(self) -> None:
        """Forget everything; memory is kept."""
        self.turns = 0
        self._cuts.clear()

    def begin(self, decision: Decision) -> None:
        """The next turn: one row for every slot."""
        if not self.obs:
            self._allocate(decision)
        rows = slice(self.num_rows, self.num_rows + self.num_slots)
        for name, values in decision.obs.items():
            self.obs[name][rows] = values
        for name, values in decision.actions.items():
            self.actions[name][rows] = values
        self.log_prob[rows] = decision.log_prob
        self.value[rows] = decision.value
        self.episode_start[rows] = decision.episode_start
        self.valid[rows] = decision.active
        if self.state.shape[1]:
            self.state[rows] = decision.state
        self.turns += 1

    def complete(self, outcome: Outcome) -> None:
        """What came of the turn begun last."""
        rows = slice(self.num_rows - self.num_slots, self.num_rows)
        self.reward[rows] = outcome.reward
        self.terminated[rows] = outcome.terminated
        self.truncated[rows] = outcome.truncated
        self.valid[rows] &= ~outcome.lost
        if outcome.cuts is not None:
            self._cuts.append(replace(outcome.cuts, rows=outcome.cuts.rows + rows.start))

    def cuts(self) -> Cuts | None:
        """All truncations of the rollout in one batch; None if there was none."""
        if not self._cuts:
            return None
        return Cuts(
            rows=torch.cat([cut.rows for cut in self._cuts]),
            obs={name: torch.cat([cut.obs[name] for cut in self._cuts]) for name in self._cuts[0].obs},
            state=torch.cat([cut.state for cut in self._cuts]),
        )

    def finish(self, last_value: Tensor, cut_value: Tensor | None, *, discount: float, trace_decay: float) -> None:
        """Compute advantages. `last_value` [N] is V of the observation after the last turn, `cut_value` [C] that of `cuts`."""
        shape = self.turns, self.num_slots
        used = slice(0, self.num_rows)
        value = self.value[used].view(shape)
        terminated, truncated = self.terminated[used].view(shape), self.truncated[used].view(shape)
        next_value = torch.cat([value[1:], last_value[None]])
        if cut_value is not None:
            cuts = self.cuts()
            assert cuts is not None
            next_value.view(-1)[cuts.rows] = cut_value
        next_value = torch.where(terminated, 0.0, next_value)
        valid = self.valid[used].view(shape)
        # A lost row has no outcome: the row before it stops at its value, as at the end of a rollout.
        follows = torch.cat([valid[1:], torch.zeros_like(valid[:1])])
        advantage = gae(
            self.reward[used].view(shape),
            value,
            next_value,
            follows & valid & ~terminated & ~truncated,
            discount=discount,
            trace_decay=trace_decay,
        )
        self.next_value[used] = next_value.view(-1)
        self.advantage[used] = torch.where(valid, advantage, 0.0).view(-1)

    @property
    def returns(self) -> Tensor:
        """[R]: value targets, from this rollout's own advantages."""
        return self.advantage + self.value

    def _allocate(self, decision: Decision) -> None:
        rows = self.steps * self.num_slots

        def like(example: Tensor) -> Tensor:
            return torch.zeros((rows, *example.shape[1:]), dtype=example.dtype, device=self.device)

        self.obs = {name: like(values) for name, values in decision.obs.items()}
        self.actions = {name: like(values) for name, values in decision.actions.items()}
        self.state = like(decision.state)
