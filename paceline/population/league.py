"""`League`: opponents that do not learn. Past selves sit in seats, and fixed opponents have places of their own.

Legend: M matches that begin, A agents of an environment.

| policies, by number | who |
|---|---|
| 0 to P - 1 | those that learn |
| P to P + S - 1 | the seats: past selves, one after the other |
| from P + S on | fixed opponents |

A seat changes its weights only while nobody plays with them. So a match has the same players from its start to its end.

With K kinds of agents, policy p plays agents of kind p modulo K, and so do seats. A past self plays only its own kind.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paceline.collect.policy_assignment import Draw, PolicyAssignment
from paceline.files import remove_temporaries, replacing
from paceline.population.config import LeagueConfig
from paceline.population.past_selves import PastSelves

log = logging.getLogger(__name__)

MATCHES_PER_SEAT = 64
"""After so many matches another past self takes the seat, once nobody plays there."""

Snapshot = tuple[int, int]
"""Policy and step."""


def player_name(policy: int, step: int) -> str:
    """The name of a past self in ratings: the policy as it was at `step`."""
    return f"{policy}@{step}"


class Snapshots:
    """Past weights of the policies that learn, in memory and in a folder. One rank writes the files.

    The learner thread adds snapshots while the main thread draws them.
    """

    def __init__(self, folder: Path, policies: int, keep: int, *, writes: bool) -> None:
        self._folder, self._writes = folder, writes
        if writes:
            remove_temporaries(folder)
        self._past = [PastSelves(keep) for _ in range(policies)]
        self._weights: dict[Snapshot, dict[str, Tensor]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._weights)

    def add(self, step: int, policies: Sequence[nn.Module]) -> None:
        """Take a snapshot of every policy. Those that are no longer needed go."""
        for policy, module in enumerate(policies):
            weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()}
            with self._lock:
                dropped = self._past[policy].add(step)
                self._weights[policy, step] = weights
                for old in dropped:
                    self._weights.pop((policy, old), None)
            if self._writes:
                self._write(self._path((policy, step)), weights)

    def delete_unneeded(self) -> None:
        """Delete the files of snapshots that were dropped. Called when a checkpoint was written that lacks them."""
        if self._writes and self._folder.is_dir():
            needed = {self._path(snapshot) for snapshot in self._weights}
            for path in self._folder.glob("policy_*_step_*.safetensors"):
                if path not in needed:
                    path.unlink()

    def draw(
        self,
        generator: np.random.Generator,
        win_rates: Mapping[Snapshot, float] | None = None,
        policies: slice = slice(None),
    ) -> Snapshot | None:
        """A past self of one of `policies`, by default of any policy. With `win_rates` against them, those that still
        win are more likely."""
        with self._lock:
            some = [policy for policy in range(len(self._past))[policies] if self._past[policy].steps]
            if not some:
                return None
            policy = some[generator.integers(len(some))]
            rates = None
            if win_rates is not None:
                rates = {step: rate for (of, step), rate in win_rates.items() if of == policy}
            return policy, self._past[policy].draw(1, generator, rates)[0]

    def weights(self, snapshot: Snapshot) -> dict[str, Tensor] | None:
        """None if the snapshot was dropped since it was drawn."""
        with self._lock:
            return self._weights.get(snapshot)

    def state_dict(self) -> list[dict[str, Any]]:
        return [past.state_dict() for past in self._past]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Continue with the snapshots of a checkpoint, from their files. Those whose files are gone are left out: they
        were dropped after that checkpoint."""
        self._weights.clear()
        for policy, (past, saved) in enumerate(zip(self._past, state, strict=True)):
            for step in saved["steps"]:
                path = self._path((policy, step))
                try:
                    self._weights[policy, step] = load_file(path)
                except (OSError, SafetensorError) as error:
                    log.warning("the past self %s cannot be read: %s", path, error)
            past.load_state_dict({"steps": [step for step in saved["steps"] if (policy, step) in self._weights]})

    def _path(self, snapshot: Snapshot) -> Path:
        return self._folder / f"policy_{snapshot[0]}_step_{snapshot[1]}.safetensors"

    def _write(self, path: Path, weights: dict[str, Tensor]) -> None:
        """A full disk costs the file, not the run: the past self plays until the run ends."""
        try:
            self._folder.mkdir(exist_ok=True)
            with replacing(path) as temporary:
                save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary)
        except (OSError, SafetensorError) as error:
            log.warning("the past self %s cannot be written (%s); a resumed run will not have it", path, error)


class League:
    """Seats and fixed opponents, and the mapping that lets them play. For the thread that collects."""

    def __init__(
        self,
        config: LeagueConfig,
        snapshots: Snapshots,
        draw: Draw,
        *,
        seats: Sequence[nn.Module],
        first_seat: int,
        opponents: Sequence[str],
        generator: np.random.Generator,
        kinds: np.ndarray,
        copies: Sequence[int] = (),
    ) -> None:
        """`draw` is the mapping of the policies that learn. `seats` are the modules that act for past selves. They are
        policies from `first_seat` on, followed by the `opponents`, given by their names. `kinds` [A] has the kind of
        each agent. `copies` are policies that only other ranks train."""
        self._copies = list(copies)
        self._kinds, self._num_kinds = kinds, int(kinds.max()) + 1
        self._config, self._snapshots, self._draw_learned = config, snapshots, draw
        self._modules, self._first, self._generator = list(seats), first_seat, generator
        self._occupants: list[Snapshot | None] = [None] * len(seats)
        self._matches = [0] * len(seats)
        """Matches that each seat has played with its present weights."""
        self._opponents = list(range(first_seat + len(seats), first_seat + len(seats) + len(opponents)))
        self._names = dict(zip(self._opponents, opponents, strict=True))
        self.assignment: PolicyAssignment
        self.win_rates: dict[Snapshot, float] | None = None
        """Win rates of the learning policies against past selves, where these are drawn by them."""

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """A `Draw`: in some matches one agent stays with the policy that learns, and the others are opponents."""
        policies = self._draw_learned(envs, generator).copy()
        open_seats = self._open_seats()
        past_share, fixed_share = self._config.past_share, self._config.opponent_share
        for match in policies:
            chance, agents = generator.random(), np.flatnonzero(~np.isin(match, self._copies))
            learner = agents[generator.integers(len(agents))]
            others = np.arange(len(match)) != learner
            if chance < past_share and open_seats:
                self._seat(match, others, open_seats, generator)
            elif past_share <= chance < past_share + fixed_share:
                match[others] = generator.choice(self._opponents, size=int(others.sum()))
        return policies

    def _seat(
        self, match: np.ndarray, others: np.ndarray, open_seats: Sequence[int], generator: np.random.Generator
    ) -> None:
        """A past self plays the `others` [A] of `match` [A]: one for each kind. Kinds without an open seat keep their
        policies."""
        for kind in range(self._num_kinds):
            agents = others & (self._kinds == kind)
            seats = [seat for seat in open_seats if self._kind(seat) == kind]
            if seats and agents.any():
                seat = seats[generator.integers(len(seats))]
                self._matches[seat] += 1
                match[agents] = self._first + seat

    def _kind(self, seat: int) -> int:
        return (self._first + seat) % self._num_kinds

    def _open_seats(self) -> list[int]:
        """Seats that take new matches. Those that have played enough take none, so that they become free. If that holds
        for all of several seats of a kind, one goes on until another is free: the share of matches against past selves
        holds."""
        found: list[int] = []
        for kind in range(self._num_kinds):
            occupied = [
                s for s, occupant in enumerate(self._occupants) if occupant is not None and self._kind(s) == kind
            ]
            some = [seat for seat in occupied if self._is_open(seat)]
            found += some if some or len(occupied) < 2 else [max(occupied, key=self._matches.__getitem__)]
        return found

    def _is_open(self, seat: int) -> bool:
        return self._occupants[seat] is not None and self._matches[seat] < MATCHES_PER_SEAT

    def refresh(self) -> None:
        """Let other past selves take the seats that are free: nobody plays there, and they have played enough."""
        if len(self._snapshots) == 0:
            return
        for seat, module in enumerate(self._modules):
            if self._is_open(seat) or self.assignment.is_used(self._first + seat):
                continue
            own = slice(self._kind(seat), None, self._num_kinds)
            drawn = self._snapshots.draw(self._generator, self.win_rates, own)
            weights = None if drawn is None else self._snapshots.weights(drawn)
            if drawn is not None and weights is not None:
                self._sit(seat, drawn, weights, module)

    def _sit(self, seat: int, snapshot: Snapshot, weights: dict[str, Tensor], module: nn.Module) -> None:
        module.load_state_dict(weights)
        self._occupants[seat], self._matches[seat] = snapshot, 0
        self.assignment.players[self._first + seat] = player_name(*snapshot)

    @property
    def others(self) -> list[str]:
        """Who plays without learning: past selves, and opponents by name."""
        return ["past self"] * len(self._modules) + list(self._names.values())

    def name_opponents(self) -> None:
        self.assignment.players |= self._names

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank's seats. A past self may still play after its snapshot was dropped, so their weights
        are part of it."""
        return {
            "occupants": list(self._occupants),
            "matches": list(self._matches),
            "weights": [
                None
                if occupant is None
                else {name: tensor.cpu().clone() for name, tensor in module.state_dict().items()}
                for occupant, module in zip(self._occupants, self._modules, strict=True)
            ],
            "win_rates": None if self.win_rates is None else [(*key, rate) for key, rate in self.win_rates.items()],
            "generator": self._generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]
        if state["win_rates"] is not None:
            self.win_rates = {(policy, step): rate for policy, step, rate in state["win_rates"]}
        seats = zip(self._modules, state["occupants"], state["matches"], state["weights"], strict=True)
        for seat, (module, occupant, matches, weights) in enumerate(seats):
            if occupant is not None:
                self._sit(seat, tuple(occupant), weights, module)
                self._matches[seat] = matches
