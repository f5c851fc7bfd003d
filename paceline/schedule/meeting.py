"""Where ranks that train different policies meet: after each update they exchange losses and weights.

Where every rank trains all policies, ranks meet in the gradient all-reduce instead, and nothing here communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from paceline.distributed.gather import gather_to_all
from paceline.distributed.reduce import synchronize_from
from paceline.learner.finite import NonFiniteError, NonFiniteOnRanks
from paceline.schedule.protocol import TrainingRun
from paceline.stop import StopRun


@dataclass
class Learned:
    """What updates have given."""

    losses: dict[int, dict[str, float]] = field(default_factory=dict)
    """By policy: those that were updated."""
    dropped: float | None = None
    """Rows that were left out because the weights that acted were replaced or too old. None: nobody counted."""


def learn_and_meet(run: TrainingRun, learn: Callable[[], Learned]) -> Learned:
    """`learn` updates policies of this rank. Returns what the updates of all ranks have given. If policies are spread,
    every rank then has the present weights of all policies.

    A rank whose update was interrupted by a stop, or was not finite, takes part, and all ranks raise its exception.
    After an interruption all ranks have the present weights, too: the last checkpoint checks the same ones everywhere.
    """
    if not run.ownership.is_spread:
        return learn()
    mine, problem, is_interrupted = Learned(), None, False
    try:
        mine = learn()
    except StopRun:
        is_interrupted = True
    except NonFiniteError as error:
        problem = str(error)
    found = gather_to_all(run.group, (mine.losses, mine.dropped, problem, is_interrupted))
    losses, dropped, problems, interrupted = zip(*found, strict=True)
    if any(problems):
        raise NonFiniteOnRanks(_with_ranks(problems))
    if any(interrupted):
        _refresh(run, range(run.ownership.num_policies))
        run.stop.raise_if(True)
    updated = _of_all_ranks(losses)
    counts = [count for count in dropped if count is not None]
    _refresh(run, updated)
    return Learned(updated, sum(counts) if counts else None)


def _with_ranks(problems: Sequence[str | None]) -> str:
    """The `problems` of all ranks. Ranks that train the same policy have the same one: it is said once."""
    ranks: dict[str, list[str]] = {}
    for rank, problem in enumerate(problems):
        if problem is not None:
            ranks.setdefault(problem, []).append(str(rank))
    return "; ".join(
        f"{'rank' if len(some) == 1 else 'ranks'} {', '.join(some)}: {problem}" for problem, some in ranks.items()
    )


def _of_all_ranks(losses: Sequence[dict[int, dict[str, float]]]) -> dict[int, dict[str, float]]:
    """By policy. Ranks that train the same policy have the same means of losses, and drop rows of their own."""
    found: dict[int, dict[str, float]] = {}
    for of_rank in losses:
        for policy, own in of_rank.items():
            before = found.get(policy, {}).get("dropped_rows", 0.0)
            found[policy] = dict(own)
            if "dropped_rows" in own:
                found[policy]["dropped_rows"] += before
    return dict(sorted(found.items()))


def _refresh(run: TrainingRun, policies: Iterable[int]) -> None:
    """The owners of `policies` send their weights to all ranks."""
    for policy in policies:
        learner = run.learners[policy]
        synchronize_from(learner.policy, run.group, run.ownership.speaker(policy))
        if policy in run.ownership.copies:
            learner.publish()
