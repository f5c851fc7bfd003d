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
    version: Tensor
    """[] int64: which weights decided."""


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
    """Where episodes were truncated; None where none was, or where the host does not know it."""
    unsure_cuts: Cuts | None = None
    """Then this has all N slots, and only those that `truncated` marks are cuts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Where truncated episodes would have gone on: what V is still to be computed of."""

    rows: Tensor
    """[C] int64: positions in a batch, or rows of a rollout."""
    obs: dict[str, Tensor]
    """[C, ...]: final observations."""
    state: Tensor
    """[C, D]: recurrent states after those rows."""


class Rollout:
    """Up to T lock-step turns of N slots. Row t * N + slot is turn t of a slot.

    Its memory stays where it is, rollout after rollout: a recorded update may read it. `truncation_gap` says that no
    slot is truncated twice within so many turns, which bounds the final observations to keep.
    """

    def __init__(self, steps: int, num_slots: int, device: torch.device, truncation_gap: int = 1) -> None:
        self.steps, self.num_slots, self.device = steps, num_slots, device
        rows = steps * num_slots
        self.log_prob, self.value, self.reward, self.next_value, self.advantage, self.returns = (
            torch.full((rows,), torch.nan, device=device) for _ in range(6)
        )
        self.version = torch.zeros(rows, dtype=torch.int64, device=device)
        self.weight: Tensor | None = None
        """[R]: importance weights of the rows; None where all weigh the same."""
        self.terminated, self.truncated, self.episode_start, self.valid = (
            torch.zeros(rows, dtype=torch.bool, device=device) for _ in range(4)
        )
        self.obs: dict[str, Tensor] = {}
        self.actions: dict[str, Tensor] = {}
        self.state = torch.empty(0)
        self.turns = 0
        self._cuts: list[Cuts] = []
        self._most_cuts = num_slots * -(-steps // truncation_gap)
        self._device_cuts: DeviceCuts | None = None

    @property
    def num_rows(self) -> int:
        """Rows begun since `clear`."""
        return self.turns * self.num_slots

    def clear(self) -> None:
        """Forget everything; memory is kept."""
        self.turns = 0
        self._cuts.clear()
        if self._device_cuts is not None:
            self._device_cuts.clear()

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
        self.version[rows] = decision.version
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
        if outcome.unsure_cuts is not None:
            if self._device_cuts is None:
                self._device_cuts = DeviceCuts(outcome.unsure_cuts, self._most_cuts)
            self._device_cuts.add(outcome.unsure_cuts, outcome.truncated, first_row=rows.start)

    def cuts(self) -> Cuts | None:
        """All truncations of the rollout in one batch; None if there was none. Asks the device, if only it knows."""
        if self._device_cuts is not None:
            return self._device_cuts.take()
        if not self._cuts:
            return None
        return Cuts(
            rows=torch.cat([cut.rows for cut in self._cuts]),
            obs={name: torch.cat([cut.obs[name] for cut in self._cuts]) for name in self._cuts[0].obs},
            state=torch.cat([cut.state for cut in self._cuts]),
        )

    def finish(
        self,
        last_value: Tensor,
        cuts: Cuts | None = None,
        cut_value: Tensor | None = None,
        *,
        discount: float,
        trace_decay: float,
    ) -> None:
        """Compute advantages and value targets.

        `last_value` [N] is V of the observation after the last turn, `cut_value` [C] that of the rollout's `cuts`.
        """
        shape = self.turns, self.num_slots
        used = slice(0, self.num_rows)
        value = self.value[used].view(shape)
        terminated, truncated = self.terminated[used].view(shape), self.truncated[used].view(shape)
        next_value = torch.cat([value[1:], last_value[None]])
        if cuts is not None:
            assert cut_value is not None
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
        self.returns[used] = self.advantage[used] + self.value[used]

    def _allocate(self, decision: Decision) -> None:
        rows = self.steps * self.num_slots

        def like(example: Tensor) -> Tensor:
            return torch.zeros((rows, *example.shape[1:]), dtype=example.dtype, device=self.device)

        self.obs = {name: like(values) for name, values in decision.obs.items()}
        self.actions = {name: like(values) for name, values in decision.actions.items()}
        self.state = like(decision.state)


class DeviceCuts:
    """Truncations that only the device knows of, kept without asking it: up to `most`, in the order in which they came."""

    def __init__(self, example: Cuts, most: int) -> None:
        def cells(values: Tensor) -> Tensor:
            # One cell more than needed: every slot is written somewhere, and those without a cut go there.
            return values.new_zeros((most + 1, *values.shape[1:]))

        self._most = most
        self._rows, self._state = cells(example.rows), cells(example.state)
        self._obs = {name: cells(values) for name, values in example.obs.items()}
        self._count = torch.zeros((), dtype=torch.int64, device=example.rows.device)

    def clear(self) -> None:
        self._count.zero_()

    def add(self, slots: Cuts, truncated: Tensor, first_row: int) -> None:
        order = truncated.cumsum(0)
        cells = torch.where(truncated, self._count + order - 1, self._most).clamp(max=self._most)
        self._rows.index_copy_(0, cells, slots.rows + first_row)
        self._state.index_copy_(0, cells, slots.state)
        for name, values in slots.obs.items():
            self._obs[name].index_copy_(0, cells, values)
        self._count += order[-1]

    def take(self) -> Cuts | None:
        """Waits for the device."""
        count = int(self._count)
        if count > self._most:
            raise AssertionError(f"{count} truncations, but the pool's truncation_gap promises at most {self._most}")
        if count == 0:
            return None
        obs = {name: values[:count] for name, values in self._obs.items()}
        return Cuts(rows=self._rows[:count], obs=obs, state=self._state[:count])
