"""`Population`: the policies of one run. Their statistics, rounds of population-based training, snapshots and ratings.

A run calls it at the end of each report, on all ranks together. What it decides follows from numbers that are the same
on all ranks.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.collect.policy_assignment import Finished, PlayedMatch, PolicyAssignment
from paceline.config import Config
from paceline.distributed.ownership import Ownership
from paceline.errors import UsageError
from paceline.files import replace_text
from paceline.learner.handover import Handover
from paceline.learner.policy_copy import PolicyCopy
from paceline.learner.ppo import PPOLearner
from paceline.population.history import FILE, PopulationEvent
from paceline.population.league import League, Snapshots, player_name
from paceline.population.mutation import REWARD, spread_out, tuned_paths
from paceline.population.pbt import Change, Member, plan_round, round_generator
from paceline.population.ratings import elo_ratings
from paceline.population.reward_weights import PolicyRewardWeights
from paceline.population.shared_matches import SharedMatches, is_own, step_of
from paceline.telemetry.episodes import WINDOW, LatestEpisodes
from paceline.telemetry.metrics import LineFile

log = logging.getLogger(__name__)

RATINGS = "ratings.json"
LEAST_MATCHES = 10
"""The metrics have the rating of a player after this many matches."""
ELO_SECONDS = 10.0
"""The metrics have new ratings this often."""


class Population:
    """The policies that learn, and what becomes of them."""

    def __init__(
        self,
        config: Config,
        learners: Sequence[PPOLearner | PolicyCopy],
        assignment: PolicyAssignment,
        ownership: Ownership,
        folder: Path,
        *,
        measures: Sequence[str],
        num_kinds: int = 1,
        rewards: PolicyRewardWeights | None = None,
        snapshots: Snapshots | None = None,
        league: League | None = None,
    ) -> None:
        """Policy p plays agents of kind p modulo `num_kinds`. Policies of different kinds exchange nothing."""
        self._config, self._learners, self._assignment = config, learners, assignment
        self._ownership, self._group = ownership, ownership.all_ranks
        self._num_kinds = num_kinds
        self._folder, self._rewards, self._snapshots, self._league = folder, rewards, snapshots, league
        self._episodes = [LatestEpisodes(measures) for _ in learners]
        self._objectives = [_Mean() for _ in learners]
        self._objective = config.pbt.objective
        self._reported: set[str] = set()
        """Names of numbers in the last `info` of episodes of this rank. Only where the objective is one of them."""
        # A member of a population of runs, which has opponents, has its rounds elsewhere.
        self._has_rounds = config.pbt.every is not None and len(learners) > 1
        self._tuned = self._tuned_paths() if self._has_rounds else ()
        if self._tuned and config.pbt.spread > 1:
            generator = round_generator(config.seed, 0)
            for policy, values in enumerate(spread_out(self._tuned_values(0), len(learners), config.pbt, generator)):
                self._set(policy, values)
        self._next_round = config.pbt.next_round(0) if self._has_rounds else None
        self._copy_steps = 0
        """Steps so far of copies of other ranks' policies, over all ranks. No rank learns from them."""
        self._matches = SharedMatches(self._group)
        self._shares = False
        """Whether all ranks add up their matches at the end of this iteration."""
        self._elo: dict[str, float | None] = {}
        self._rated_until = 0.0
        """When `_elo` is next computed."""
        self._until = 0
        """The step at which the policies next count as new players."""
        self._events = LineFile(folder / FILE)
        self._name_players(0)
        assignment.name_first_matches()

    # ---------------------------------------------------------------- statistics

    def sums_of(self, finished: Finished) -> list[float]:
        """Statistics of one rank that can be added up over ranks, for `add`. Counts the matches of this rank."""
        for match in finished.matches:
            self._count(match)
        sums: list[float] = []
        if self._objective not in ("return", "length"):
            self._reported |= {name for episode in finished.episodes for name in episode.info}
        for policy, episodes in enumerate(self._episodes):
            mine = [episode for episode in finished.episodes if episode.policy == policy]
            sums += episodes.sums_of(mine)
            values = [value for value in map(self._value, mine) if value is not None]
            sums += [float(len(values)), sum(values)]
        return [*sums, float(finished.copy_steps), float(self._matches.is_due)]

    def _value(self, episode: Any) -> float | None:
        """The objective of an episode; None if it does not have it."""
        if self._objective == "return":
            return episode.episode_return
        return float(episode.length) if self._objective == "length" else episode.info.get(self._objective)

    def _count(self, match: PlayedMatch) -> None:
        """The result of a match: by `win` if all its agents report a finite one, otherwise by their returns. A match of
        a player against itself is not counted."""
        wins = [episode.info.get("win", math.nan) for episodes in match.episodes for episode in episodes]
        reported = all(map(math.isfinite, wins))
        scores: dict[str, float] = {}
        for name, episodes in zip(match.players, match.episodes, strict=True):
            if episodes and name not in scores:
                scores[name] = sum(e.info["win"] if reported else e.episode_return for e in episodes)
        if len(scores) > 1:
            self._matches.add(scores)

    def add(self, sums: Sequence[float]) -> None:
        """Count the episodes of one iteration of all ranks."""
        at = 0
        for episodes, objective in zip(self._episodes, self._objectives, strict=True):
            size = episodes.num_sums
            episodes.add(sums[at : at + size])
            objective.add(*sums[at + size : at + size + 2])
            at += size + 2
        self._copy_steps += int(sums[at])
        self._shares = sums[at + 1] > 0

    @property
    def objectives(self) -> list[float | None]:
        """By policy: the mean objective of its latest episodes."""
        return [objective.mean for objective in self._objectives]

    @property
    def merit_name(self) -> str:
        """See `Run.merit_name`."""
        return "elo" if self._league is not None else f"objective {self._objective}"

    def merit(self, num_slots: int) -> float | None:
        """See `Run.merit`. The policies share `num_slots`."""
        if self._league is not None:
            return max(self._latest_ratings(WINDOW).values(), default=None)
        least = max(WINDOW, num_slots // len(self._learners))
        known = [one.mean for one in self._objectives if one.mean is not None and one.seen >= least]
        return max(known, default=None)

    def metrics(self) -> dict[str, float | None]:
        """For a report: every policy, and the spread between them."""
        found: dict[str, float | None] = {}
        known = [value for value in self.objectives if value is not None]
        if known and len(self._learners) > 1:
            mean = sum(known) / len(known)
            spread = math.sqrt(sum((value - mean) ** 2 for value in known) / len(known))
            best = max(known)
            found |= {"population/best": best, "population/mean": mean, "population/spread": spread}
            found["population/best_policy"] = self.objectives.index(best)
        if self._ownership.is_spread:
            found["copy_steps"] = self._copy_steps
        for policy, (learner, episodes) in enumerate(zip(self._learners, self._episodes, strict=True)):
            own = dict(episodes.means())
            if self._objective not in ("return", "length"):
                own[self._objective] = self.objectives[policy]
            own |= {path: learner.hyperparameters.get(path) for path in self._tuned if not path.startswith(REWARD)}
            if self._rewards is not None:
                own |= {f"{REWARD}{name}": value for name, value in self._rewards.of(policy).items()}
            found |= {f"policy_{policy}/{name}": value for name, value in own.items()}
        return found | self._ratings()

    def _ratings(self) -> dict[str, float | None]:
        """The latest Elo rating of each policy, and the best of them. The earliest player is the zero."""
        if time.monotonic() < self._rated_until:
            return self._elo
        self._rated_until = time.monotonic() + ELO_SECONDS
        if latest := self._latest_ratings(LEAST_MATCHES):
            self._elo = {"elo": max(latest.values()), **{f"policy_{name}/elo": elo for name, elo in latest.items()}}
        return self._elo

    def _latest_ratings(self, least_matches: int) -> dict[str, float]:
        """By policy: the rating of its latest player with so many matches."""
        table = self._matches.table
        counts = dict(zip(table.players, table.counts.sum(1).tolist(), strict=True))
        known = [name for name, count in counts.items() if is_own(name) and count >= least_matches]
        if len(counts) < 2 or not known:
            return {}
        rated = elo_ratings(table, anchor=self._matches.first_player)
        return {name.split("@")[0]: rated[name].elo for name in sorted(known, key=step_of)}

    # ---------------------------------------------------------------- what changes

    def after_iteration(self, step: int) -> None:
        """A round and a snapshot, if they are due. All ranks call it together, between two updates."""
        if self._next_round is not None and step >= self._next_round and step < self._config.steps:
            self._round(step)
            self._next_round = self._config.pbt.next_round(step)
        if self._shares or step >= self._until:
            self._matches.share()
        if step >= self._until:
            if self._snapshots is not None:
                self._snapshots.add(self._until, [learner.policy for learner in self._learners])
                self._update_win_rates()
            self._name_players(step)

    def _round(self, step: int) -> None:
        assert self._config.pbt.every is not None
        number = step // self._config.pbt.every
        if not any(objective is not None for objective in self.objectives) and any(e.sums for e in self._episodes):
            log.warning(
                "round %d: no episode has reported the pbt.objective %r; episodes have reported: %s",
                number,
                self._objective,
                ", ".join(["return", "length", *sorted(self._reported)]),
            )
        members = [
            Member(name=str(policy), objective=objective, hyperparameters=self._tuned_values(policy), step=step)
            for policy, objective in enumerate(self.objectives)
        ]
        generator = round_generator(self._config.seed, number)
        changes = []
        for kind in range(self._num_kinds):
            changes += plan_round(members[kind :: self._num_kinds], self._config.pbt, generator)
        for change in changes:
            if change.donor is not None:
                self._replace(int(change.member), int(change.donor))
        for change in changes:
            self._set(int(change.member), change.after)
            if self._group.is_first:
                self._events.append(PopulationEvent(step=step, number=number, change=change).line())
                if change.is_any:
                    log.info("round %d: %s", number, _sentence(change))

    def _replace(self, policy: int, donor: int) -> None:
        """Donors are never replaced in the same round, so the order does not matter."""
        self._learners[policy].take_over(self._ownership.from_owner(donor, partial(self._handover, donor)))
        self._episodes[policy].clear()
        self._objectives[policy] = _Mean()

    def _handover(self, donor: int) -> Handover:
        learner = self._learners[donor]
        assert isinstance(learner, PPOLearner)
        return learner.handover()

    def _tuned_values(self, policy: int) -> dict[str, float]:
        return {path: self._get(policy, path) for path in self._tuned}

    def _get(self, policy: int, path: str) -> float:
        if path.startswith(REWARD):
            assert self._rewards is not None
            return self._rewards.of(policy)[path.removeprefix(REWARD)]
        return self._learners[policy].hyperparameters.get(path)

    def _set(self, policy: int, values: Mapping[str, float]) -> None:
        for path, value in values.items():
            if value == self._get(policy, path):
                continue
            if path.startswith(REWARD):
                assert self._rewards is not None
                self._rewards.set(policy, path.removeprefix(REWARD), value)
            else:
                self._learners[policy].hyperparameters.set(path, value)

    def _tuned_paths(self) -> tuple[str, ...]:
        allowed = list(self._learners[0].hyperparameters.as_dict())
        if self._rewards is not None:
            allowed += [f"{REWARD}{name}" for name in self._rewards.names]
        least = 2 * self._num_kinds
        if len(self._learners) < least:
            kinds = " of each kind of agents" if self._num_kinds > 1 else ""
            raise UsageError(f"pbt.every needs several policies{kinds}; allowed: --population.policies {least} or more")
        return tuned_paths(self._config.pbt, allowed)

    # ---------------------------------------------------------------- ratings

    def _name_players(self, step: int) -> None:
        """From now on the policies count as new players. A player is a policy between two snapshots: its snapshot at
        the end of that time plays under the same name."""
        every = self._config.league.every
        self._until = (step // every + 1) * every
        self._matches.forget_some_players()
        for policy in range(len(self._learners)):
            self._assignment.players[policy] = player_name(policy, self._until)

    def _update_win_rates(self) -> None:
        if self._league is None or not self._config.league.prioritized:
            return
        rates: dict[tuple[int, int], float] = {}
        table = self._matches.table
        for name in table.players:
            met = [table.win_rate(self._assignment.players[p], name) for p in range(len(self._learners))]
            known = [rate for rate in met if rate is not None]
            if known and is_own(name):
                policy, step = name.split("@")
                rates[int(policy), int(step)] = sum(known) / len(known)
        self._league.win_rates = rates

    def write_ratings(self) -> None:
        """Write the results of all pairs of players and their ratings, for reports: those of the last `state_dict`."""
        table = self._matches.table
        if not self._group.is_first or len(table.players) < 2:
            return
        rated = elo_ratings(table, anchor=self._matches.first_player)
        content = {
            "players": table.players,
            "wins": table.wins.tolist(),
            "draws": table.draws.tolist(),
            "ratings": {name: [rating.elo, rating.low, rating.high] for name, rating in rated.items()},
        }
        try:
            replace_text(self._folder / RATINGS, json.dumps(content) + "\n")
        except OSError as error:
            log.warning("%s cannot be written: %s", self._folder / RATINGS, error)

    # ---------------------------------------------------------------- checkpoints

    def saved(self) -> None:
        """A checkpoint was written."""
        self.write_ratings()
        if self._snapshots is not None:
            self._snapshots.delete_unneeded()

    def state_dict(self) -> dict[str, Any]:
        """State that all ranks share. They call it together, and add up their matches."""
        self._matches.share()
        return {
            "episodes": [list(episodes.sums) for episodes in self._episodes],
            "objectives": [list(objective.sums) for objective in self._objectives],
            "next_round": self._next_round,
            "copy_steps": self._copy_steps,
            "matches": self._matches.table.state_dict(),
            "rewards": None if self._rewards is None else self._rewards.state_dict(),
            "snapshots": None if self._snapshots is None else self._snapshots.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any] | None, step: int) -> None:
        """Continue at `step`. The state is None if the saved run had no population."""
        self._next_round = self._config.pbt.next_round(step) if self._has_rounds else None
        if state is not None:
            self._load(state)
        self._name_players(step)
        self._assignment.name_first_matches()  # unless the matches of the checkpoint are restored

    def _load(self, state: dict[str, Any]) -> None:
        for episodes, sums in zip(self._episodes, state["episodes"], strict=True):
            episodes.sums = deque(tuple(entry) for entry in sums)
        for objective, sums in zip(self._objectives, state["objectives"], strict=True):
            objective.sums = deque(tuple(entry) for entry in sums)
        self._copy_steps = state.get("copy_steps", 0)
        self._matches.load_state_dict(state["matches"])
        if self._rewards is not None and state["rewards"] is not None:
            self._rewards.load_state_dict(state["rewards"])
        if self._snapshots is not None and state["snapshots"] is not None:
            self._snapshots.load_state_dict(state["snapshots"])

    def close(self) -> None:
        self._events.close()


class _Mean:
    """The mean of the latest values: at least `WINDOW`, if there are so many."""

    def __init__(self) -> None:
        self.sums: deque[tuple[float, float]] = deque()
        self.seen = 0
        """Values so far, since this process began."""

    def add(self, count: float, total: float) -> None:
        self.seen += int(count)
        if count:
            self.sums.append((count, total))
        while len(self.sums) > 1 and sum(entry[0] for entry in self.sums) - self.sums[0][0] >= WINDOW:
            self.sums.popleft()

    @property
    def mean(self) -> float | None:
        return sum(total for _, total in self.sums) / sum(n for n, _ in self.sums) if self.sums else None


def _sentence(change: Change) -> str:
    moved = [
        f"{path} {change.before[path]:.4g} -> {value:.4g}"
        for path, value in change.after.items()
        if value != change.before[path]
    ]
    source = [] if change.donor is None else [f"takes the weights of policy {change.donor}"]
    return f"policy {change.member} {', '.join(source + moved)}"
