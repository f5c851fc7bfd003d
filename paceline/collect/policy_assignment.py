"""`PolicyAssignment`: which policy acts in each slot.

A match is an episode of an environment with all its agents. When a match begins, a policy is drawn for each agent. It
acts until the match ends, so no recurrent state and no stream of rows passes from one policy to another. Where agents
take turns, slots may still wait when a match begins: a drawn policy takes its slot over when the slot is next received.

Legend: E environments, A agents of each, N = E * A slots, B slots of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch

from paceline.collect.kind_slots import all_kinds
from paceline.collect.matches_of_episodes import CountedEpisodes, NumberedGames
from paceline.pool.batches import rows_of, span_of
from paceline.pool.protocol import Array, Episode, PoolSpec, StepBatch


class Draw(Protocol):
    """Draws the policies for new matches."""

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """[M, A]: the policy of each agent in the environments [M] in which matches begin."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class PolicyPart:
    """The rows of a batch in which one policy acts, or one team of policies."""

    policy: int
    """The first one of a team."""
    rows: Array
    """Their numbers in the batch."""
    batch: StepBatch
    """As a policy of its kind sees them: with the kind's own slot numbers and observations."""


@dataclass(frozen=True)
class PlayedMatch:
    """A match that is over. Entries are by agent."""

    players: tuple[str, ...]
    """Their names when the match began."""
    policies: tuple[int, ...]
    episodes: tuple[tuple[Episode, ...], ...]
    """An agent has none if it never played, and several if it left and joined again."""


@dataclass(frozen=True)
class Finished:
    """What ended since it was last asked for."""

    episodes: list[Episode] = field(default_factory=list)
    """With the policies that acted."""
    matches: list[PlayedMatch] = field(default_factory=list)
    """Empty where the run has one policy."""
    copy_steps: int = 0
    """Steps of policies that only other ranks train. No rank learns from them."""

    @classmethod
    def join(cls, parts: Sequence[Finished]) -> Finished:
        episodes, matches = [e for part in parts for e in part.episodes], [m for part in parts for m in part.matches]
        return cls(episodes, matches, sum(part.copy_steps for part in parts))


class PolicyAssignment:
    """The policy of every slot, redrawn by `draw` at the end of each match."""

    def __init__(
        self,
        spec: PoolSpec,
        draw: Draw,
        generator: np.random.Generator,
        *,
        pinned: bool = False,
        copies: Sequence[int] = (),
    ) -> None:
        """`pinned`: observations go to a GPU, and copies of them are in memory that it reads directly. `copies` are the
        policies that only other ranks train."""
        self._spec, self._draw, self._generator, self._pinned = spec, draw, generator, pinned
        self.copies = list(copies)
        self._copy_steps = 0
        """Steps of copies that were not taken yet."""
        self._memory: dict[str, np.ndarray] = {}
        """Observations in the order of their policies."""
        self.policies = np.zeros(spec.num_slots, np.int64)
        """[N]: those that act now."""
        self._drawn = self.policies.copy()
        """[N]: those that were drawn for the present match."""
        self.kinds = all_kinds(spec)
        self.by_kind = [self.policies] if len(self.kinds) == 1 else [self.policies[kind.slots] for kind in self.kinds]
        """By kind: the policies of its slots. The arrays stay the same; layouts read them."""
        self.others: list[str] = []
        """Who plays without learning: past selves, and opponents by name. Matches with others do not continue."""
        self.players: dict[int, str] = {}
        """Names of policies in the results of matches. By default they are numbers."""
        self._players: list[tuple[str, ...]] = [()] * spec.num_envs
        """By environment: the names of those who play the present match."""
        self._is_playing = np.ones(spec.num_slots, bool)
        """[N]: the agent was active when its slot was last received."""
        self._credits: NumberedGames | CountedEpisodes = CountedEpisodes(spec.num_slots)
        if spec.numbers_games:
            self._credits = NumberedGames(spec.num_envs, spec.agents_per_env)
        self._unobserved: list[Episode] = []
        """Episodes that the pool reported before their last steps were received."""
        self._match = np.zeros(spec.num_envs, np.int64)
        """[E]: the number of the present match."""
        self._over: list[tuple[int, int, tuple[str, ...], tuple[int, ...]]] = []
        """Environment, number, players and policies of matches that are over and were not taken yet."""
        self._early: dict[tuple[int, int], list[Episode]] = {}
        """Episodes of agents that have left a match which is not over."""
        self._set(np.arange(spec.num_envs))
        self._take_over(np.arange(spec.num_slots))

    def parts(
        self,
        batch: StepBatch,
        obs: Literal["copied", "shared", "none"] = "copied",
        teams: np.ndarray | None = None,
    ) -> list[PolicyPart]:
        """The batch, divided by policy, or by `teams`: for each policy, the first one of its team.

        Observations are copied; with `shared` into memory that the next such call uses again, with `none` not at all.
        A batch of one part is not copied.
        """
        if len(batch) == 0:
            return []
        policies = self.policies[self._on_host(batch.slots)]
        if teams is not None:
            policies = teams[policies]
        if len(self.kinds) == 1 and (policies == policies[0]).all():
            return [PolicyPart(int(policies[0]), slice(None), batch)]
        order = np.argsort(policies, kind="stable")
        found, starts = np.unique(policies[order], return_index=True)
        spans = list(zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True))
        if obs == "none":
            batch = replace(batch, obs={})
        if len(self.kinds) == 1 and not self._spec.on_device:
            whole = self._sorted(batch, order, shared=obs == "shared")
            rows_and_batches = [(order[a:b], span_of(whole, a, b)) for a, b in spans]
            return [PolicyPart(p, *part) for p, part in zip(found.tolist(), rows_and_batches, strict=True)]
        parts = []
        for policy, (a, b) in zip(found.tolist(), spans, strict=True):
            rows: Array = order[a:b]
            if self._spec.on_device:
                rows = torch.from_numpy(rows).to(batch.slots.device)
            parts.append(self._part(policy, rows, batch))
        return parts

    def _sorted(self, batch: StepBatch, order: np.ndarray, *, shared: bool) -> StepBatch:
        """The rows of a batch in another order. One copy for all policies takes less time than one for each."""
        if not shared:
            return rows_of(batch, order)
        whole = rows_of(replace(batch, obs={}), order)
        for name, values in batch.obs.items():
            if name not in self._memory:
                like = torch.from_numpy(values[:0])
                shape = (self._spec.num_slots, *values.shape[1:])
                self._memory[name] = torch.empty(shape, dtype=like.dtype, pin_memory=self._pinned).numpy()
            # mode="clip" because take() with `out` otherwise copies twice.
            whole.obs[name] = np.take(values, order, axis=0, out=self._memory[name][: len(order)], mode="clip")
        return whole

    def no_rows(self, policy: int, batch: StepBatch) -> PolicyPart:
        """An empty part, for a policy that acts nowhere in the batch."""
        on_device = self._spec.on_device
        return self._part(policy, torch.zeros(0, dtype=torch.int64) if on_device else np.zeros(0, np.int64), batch)

    def _part(self, policy: int, rows: Array, batch: StepBatch) -> PolicyPart:
        return PolicyPart(policy, rows, self.kinds[policy % len(self.kinds)].part(batch, rows))

    def observe(self, batch: StepBatch) -> np.ndarray:
        """Draw policies for the matches that begin in `batch`. Returns the slots in which another policy acts now."""
        slots = self._on_host(batch.slots)
        ended = self._on_host(batch.terminated) | self._on_host(batch.truncated)
        lost, active = self._on_host(batch.lost), self._on_host(batch.active)
        if self.copies:
            by_copies = np.isin(self.policies[slots], self.copies)
            self._copy_steps += int((by_copies & self._is_playing[slots] & ~lost).sum())
        if isinstance(self._credits, NumberedGames):
            assert batch.episode is not None
            self._observe_numbers(self._credits, slots, self._on_host(batch.episode), lost)
        else:
            self._observe_ends(self._credits, slots, ended, lost)
        self._is_playing[slots] = active
        return self._take_over(slots)

    def _observe_numbers(self, games: NumberedGames, slots: np.ndarray, numbers: np.ndarray, lost: np.ndarray) -> None:
        """Matches begin where the number of the game has changed. It changes, too, if a simulator is replaced; `lost`
        says so for the first batch."""
        agents = self._spec.agents_per_env
        differs = games.differ(slots // agents, numbers) | lost
        if not differs.any():
            return
        envs, rows = np.unique(slots[differs] // agents, return_index=True)
        is_lost = np.isin(envs, slots[lost] // agents)
        begins = games.are_known(envs) | is_lost  # of the others this is the first batch
        self._begin_matches(envs[begins], complete=~is_lost[begins])
        for env, number in zip(envs.tolist(), numbers[differs][rows].tolist(), strict=True):
            games.note(env, number, int(self._match[env]), tuple(self._of(env).tolist()))

    def _observe_ends(self, counts: CountedEpisodes, slots: np.ndarray, ended: np.ndarray, lost: np.ndarray) -> None:
        """The pool does not number games: a match begins where nobody who played plays on."""
        if not (ended.any() or lost.any()):
            return
        agents, over = self._spec.agents_per_env, slots[ended]
        counts.note(over, self._drawn[over], self._match[over // agents])
        self._is_playing[slots] &= ~(ended | lost)
        envs = np.unique(slots[ended | lost] // agents)
        envs = envs[~self._is_playing.reshape(-1, agents)[envs].any(1)]
        self._begin_matches(envs, complete=~np.isin(envs, slots[lost] // agents))

    def _begin_matches(self, envs: np.ndarray, complete: np.ndarray) -> None:
        for env in envs[complete].tolist():
            self._over.append((env, int(self._match[env]), self._players[env], tuple(self._of(env).tolist())))
        self._match[envs] += 1
        self._set(envs)

    def _take_over(self, slots: np.ndarray) -> np.ndarray:
        """The drawn policies act in `slots` from now on. Returns the slots in which other policies acted before."""
        changed = slots[self.policies[slots] != self._drawn[slots]]
        self.policies[changed] = self._drawn[changed]
        if len(changed) and len(self.kinds) > 1:
            for kind, policies in zip(self.kinds, self.by_kind, strict=True):
                policies[:] = self.policies[kind.slots]
        return changed

    def is_used(self, policy: int) -> bool:
        """Whether the policy plays anywhere, or is about to."""
        return bool((self.policies == policy).any() or (self._drawn == policy).any())

    def take_finished(self, episodes: Sequence[Episode]) -> Finished:
        """Episodes that the pool has reported, with their policies, and the matches that are over."""
        agents, named, unobserved = self._spec.agents_per_env, [], []
        for episode in [*self._unobserved, *episodes]:
            if (played_by := self._credits.who_played(episode)) is not None:
                named.append(replace(episode, policy=played_by.policy))
                self._early.setdefault((episode.slot // agents, played_by.match), []).append(named[-1])
            elif not self._credits.is_past(episode):
                unobserved.append(episode)
        self._unobserved, matches = unobserved, []
        for env, number, players, policies in self._over:
            if played := self._early.pop((env, number), []):
                by_agent = tuple(tuple(e for e in played if e.slot % agents == agent) for agent in range(agents))
                matches.append(PlayedMatch(players, policies, by_agent))
        self._over.clear()
        self._credits.forget_old()
        # A match whose simulator was lost is never over.
        self._early = {key: found for key, found in self._early.items() if key[1] >= self._match[key[0]]}
        copy_steps, self._copy_steps = self._copy_steps, 0
        return Finished(named, matches, copy_steps)

    def start_anew(self, slots: np.ndarray) -> np.ndarray:
        """New matches begin in the environments of `slots`. Returns the slots in which another policy acts now."""
        envs = np.unique(slots // self._spec.agents_per_env)
        self._is_playing[slots] = True
        self._begin_matches(envs, complete=np.zeros(len(envs), bool))
        self._credits.start_anew(envs, slots)
        return self._take_over(slots)

    def state_dict(self) -> dict[str, Any]:
        return {
            "policies": torch.from_numpy(self.policies.copy()),
            "drawn": torch.from_numpy(self._drawn.copy()),
            "is_playing": torch.from_numpy(self._is_playing.copy()),
            "generator": self._generator.bit_generator.state,
            "match": torch.from_numpy(self._match.copy()),
            "players": list(self._players),
            "draw": self._draw.state_dict(),
            **self._credits.state_dict(),
            "unobserved": [_as_tuple(episode) for episode in self._unobserved],
            "over": list(self._over),
            "early": [(*key, [_as_tuple(episode) for episode in found]) for key, found in self._early.items()],
            "copies": list(self.copies),
            "others": list(self.others),
            "copy_steps": self._copy_steps,
        }

    def why_not_continued(self, state: dict[str, Any]) -> str | None:
        """Why the matches of a saved state cannot continue."""
        if state.get("others", self.others) != self.others:
            return "the run has other opponents than its checkpoint"
        if state.get("copies", []) != self.copies:
            return "this rank trains other policies than in the checkpoint"
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Matches continue."""
        self._drawn[:] = state["policies"].numpy()
        self._take_over(np.arange(self._spec.num_slots))
        self._drawn[:] = state["drawn"].numpy()
        self._is_playing[:] = state["is_playing"].numpy()
        self._generator.bit_generator.state = state["generator"]
        self._match[:] = state["match"].numpy()
        self._players = [tuple(players) for players in state["players"]]
        self._draw.load_state_dict(state["draw"])
        if isinstance(self._credits, CountedEpisodes) or "games" in state:  # checkpoints of older versions have none
            self._credits.load_state_dict(state)
        self._unobserved = [Episode(*fields) for fields in state["unobserved"]]
        self._over = [(env, match, tuple(names), tuple(numbers)) for env, match, names, numbers in state["over"]]
        self._early = {(env, match): [Episode(*f) for f in found] for env, match, found in state["early"]}
        self._copy_steps = state.get("copy_steps", 0)

    def _set(self, envs: np.ndarray) -> None:
        if len(envs) == 0:
            return
        self._drawn.reshape(self._spec.num_envs, -1)[envs] = self._draw(envs, self._generator)
        self._name(envs)

    def name_first_matches(self) -> None:
        """Those who play the first matches get the names in `players`, which is filled after these were drawn."""
        self._name(np.arange(self._spec.num_envs))

    def _name(self, envs: np.ndarray) -> None:
        for env in envs.tolist():
            self._players[env] = tuple(self.players.get(policy, str(policy)) for policy in self._of(env).tolist())

    def _of(self, env: int) -> np.ndarray:
        """[A]: the policies of an environment's agents."""
        return self._drawn.reshape(self._spec.num_envs, -1)[env]

    def _on_host(self, values: Array) -> np.ndarray:
        return values.cpu().numpy() if self._spec.on_device else values


def _as_tuple(episode: Episode) -> tuple[Any, ...]:
    """The fields of an episode, as a checkpoint can hold them."""
    return episode.slot, episode.episode_return, episode.length, dict(episode.info), episode.match, episode.policy
