"""Environments with several agents: PettingZoo's parallel API (all act at once) and AEC API (they take turns)."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from paceline.pool.env_state import env_state, restore_env
from paceline.pool.protocol import Episode
from paceline.pool.shapes import env_shape
from paceline.pool.spaces import ActionReader, BadValue, ObservationWriter
from paceline.pool.step_values import checked_reward, scalars
from paceline.pool.table import SlotTable


class AgentSlots:
    """The slots of one environment's agents: their columns in the table, and what each agent got in its current life.

    An agent's life is its episode. Errors name the agent, because a `SimulatorFailure` names all slots of its
    environment.
    """

    def __init__(self, made: Any, env: int, table: SlotTable) -> None:
        self._table = table
        agents = list(made.possible_agents)
        self.all = tuple(range(env * len(agents), (env + 1) * len(agents)))
        self.rows = slice(self.all[0], self.all[-1] + 1)
        self.of = dict(zip(agents, self.all, strict=True))
        self._obs: dict[int, ObservationWriter] = {}
        self._final_obs: dict[int, ObservationWriter] = {}
        self._actions: dict[int, ActionReader] = {}
        for kind in env_shape(made).kinds:
            slots = [self.all[agent] for agent in kind.agents]
            space = kind.observation_space
            self._obs |= dict.fromkeys(slots, ObservationWriter(space, kind.obs_of(table.obs)))
            self._final_obs |= dict.fromkeys(slots, ObservationWriter(space, kind.obs_of(table.final_obs)))
            self._actions |= dict.fromkeys(slots, ActionReader(kind.action_space, kind.actions_of(table.actions)))
        self._returns = dict.fromkeys(self.all, 0.0)
        self._lengths = dict.fromkeys(self.all, 0)

    def action(self, agent: Any) -> Any:
        slot = self.of[agent]
        return self._actions[slot].read(slot)

    def write_obs(self, agent: Any, observation: Any) -> None:
        self._write(self._obs, agent, observation)

    def write_final_obs(self, agent: Any, observation: Any) -> None:
        """The last observation of an agent's life. An inactive slot shows it, too: valid data, never experience."""
        self._write(self._final_obs, agent, observation)
        self._write(self._obs, agent, observation)

    def clear_transition(self) -> None:
        self._table.reward[self.rows] = 0.0
        self._table.terminated[self.rows] = self._table.truncated[self.rows] = False

    def begin_life(self, slot: int) -> None:
        self._returns[slot], self._lengths[slot] = 0.0, 0

    def note_reward(self, agent: Any, reward: Any) -> float:
        """Check a reward and add it to the agent's return."""
        try:
            value = checked_reward(reward)
        except BadValue as error:
            raise self._with_agent(agent, error) from None
        self._returns[self.of[agent]] += value
        return value

    def note_decision(self, slot: int) -> None:
        self._lengths[slot] += 1

    def has_decided(self, slot: int) -> bool:
        """Whether the agent has acted in its current life."""
        return self._lengths[slot] > 0

    def finished(self, agent: Any, info: Mapping[str, Any], match: int) -> Episode:
        slot = self.of[agent]
        return Episode(slot, self._returns[slot], self._lengths[slot], scalars(info), match)

    def state(self) -> tuple[dict[int, float], dict[int, int]]:
        return self._returns, self._lengths

    def restore(self, state: tuple[dict[int, float], dict[int, int]]) -> None:
        self._returns, self._lengths = state

    def _write(self, writers: Mapping[int, ObservationWriter], agent: Any, observation: Any) -> None:
        slot = self.of[agent]
        try:
            writers[slot].write(observation, slot)
        except BadValue as error:
            raise self._with_agent(agent, error) from None

    def _with_agent(self, agent: Any, error: BadValue) -> BadValue:
        return BadValue(f"agent {agent!r} (slot {self.of[agent]}): {error}")


class ParallelStepper:
    """A PettingZoo parallel environment: one slot for each of `possible_agents`, in that order.

    The slot of an agent that has left the game is inactive until the environment restarts. It restarts when no agent is
    left. `truncated` and `terminated` belong to the agent, not to the environment.
    """

    def __init__(self, made: Any, env: int, table: SlotTable) -> None:
        self._made, self._table = made, table
        self._agents = AgentSlots(made, env, table)
        self._weights = table.weights_for(made, self._agents.of)
        self.env, self.slots = env, self._agents.all
        self.phase = "reset"
        self.seed: int | None = None
        self.episode = self.steps = 0

    def reset(self, seed: int | None, episode: int = 0) -> None:
        if seed is not None:
            self.seed = seed
        self.episode = episode
        self._agents.clear_transition()
        self._begin(seed)

    def step(self) -> list[Episode]:
        self.phase = "step"
        if self._weights is not None:
            self._weights.apply()
        slots, table = self._agents, self._table
        playing = list(self._made.agents)
        slots.clear_transition()
        observations, rewards, terminations, truncations, infos = self._made.step(
            {agent: slots.action(agent) for agent in playing}
        )
        finished = []
        for agent in playing:
            slot = slots.of[agent]
            table.reward[slot] = slots.note_reward(agent, rewards[agent])
            slots.note_decision(slot)
            terminated = bool(terminations[agent])
            if not terminated and not truncations[agent]:
                slots.write_obs(agent, observations[agent])
                continue
            table.terminated[slot] = terminated
            table.truncated[slot] = not terminated
            table.active[slot] = False
            slots.write_final_obs(agent, observations[agent])
            finished.append(slots.finished(agent, infos.get(agent, {}), self.episode))
        self._check_agents(playing, finished)
        self._activate_new_agents(observations)
        self.steps += 1
        table.step[self._agents.rows] = self.steps
        if not self._made.agents:
            self.episode += 1
            self._begin(None)
        return finished

    def _check_agents(self, played: list[Any], finished: list[Episode]) -> None:
        """Refuse agents that left without an end, and agents that ended and did not leave."""
        agents, ended = self._made.agents, {episode.slot for episode in finished}
        if len(ended) < len(played) and agents != played:
            for agent in played:
                if agent not in agents and self._agents.of[agent] not in ended:
                    raise BadValue(f"agent {agent!r} is no longer in `agents`, but is neither terminated nor truncated")
        for agent in agents if ended else ():
            if self._agents.of[agent] in ended:
                raise BadValue(f"agent {agent!r} is terminated or truncated, but still in `agents`")

    def _activate_new_agents(self, observations: Mapping[Any, Any]) -> None:
        for agent in self._made.agents:
            slot = self._agents.of[agent]
            if not self._table.active[slot]:
                self._agents.write_obs(agent, observations[agent])
                self._table.active[slot] = True
                self._agents.begin_life(slot)

    def _begin(self, seed: int | None) -> None:
        self.phase = "reset"
        self.steps = 0
        if self._weights is not None:
            self._weights.apply()
        observations, _ = self._made.reset(seed=seed)
        if not self._made.agents:
            raise BadValue("`agents` is empty after a reset")
        for agent, slot in self._agents.of.items():
            # Many games also return observations of agents that do not play.
            self._table.active[slot] = playing = agent in self._made.agents
            if playing and agent not in observations:
                raise BadValue(f"agent {agent!r} is in `agents` after a reset, but has no observation")
            if playing:
                self._agents.write_obs(agent, observations[agent])
            self._agents.begin_life(slot)
        self._table.episode[self._agents.rows] = self.episode
        self._table.step[self._agents.rows] = 0

    def state(self) -> bytes:
        return pickle.dumps((env_state(self._made), self.seed, self.episode, self.steps, self._agents.state()))

    def restore(self, state: bytes) -> None:
        inner, self.seed, self.episode, self.steps, agents = pickle.loads(state)
        restore_env(self._made, inner)
        self._agents.restore(agents)
        if self._weights is not None:
            self._weights.forget()

    def close(self) -> None:
        self._made.close()


class TurnStepper:
    """A PettingZoo AEC environment: one slot for each of `possible_agents`, in that order.

    A step is one agent's turn. It ends at the next turn of a living agent, maybe in the next game. The slots that are
    `due` then are that agent's, and those of agents whose life ended. Slots of other agents stay in flight. So the
    outcome of a decision is everything that its agent gets until its next turn, or until its end.

    An agent may get rewards before its first turn. They count in its return, but belong to no decision.
    """

    def __init__(self, made: Any, env: int, table: SlotTable) -> None:
        self._made, self._table = made, table
        self._agents = AgentSlots(made, env, table)
        self._weights = table.weights_for(made, self._agents.of)
        self.env, self.slots = env, self._agents.all
        self.phase = "reset"
        self.seed: int | None = None
        self.episode = self.steps = 0
        self._living: set[Any] = set()
        assert table.due is not None
        self._due = table.due

    def reset(self, seed: int | None, episode: int = 0) -> None:
        if seed is not None:
            self.seed = seed
        self.episode = episode
        self._agents.clear_transition()
        self._begin(seed)
        self._table.active[self._agents.rows] = False
        self._due[self._agents.rows] = False
        self._to_next_turn([])
        self._agents.clear_transition()
        self._due[self._agents.rows] = True  # the first batch has all slots

    def step(self) -> list[Episode]:
        self.phase = "step"
        if self._weights is not None:
            self._weights.apply()
        slots, agent = self._agents, self._made.agent_selection
        slots.clear_transition()
        self._table.active[slots.rows] = False
        self._due[slots.rows] = False
        slots.note_decision(slots.of[agent])
        self._made.step(slots.action(agent))
        self.steps += 1
        finished: list[Episode] = []
        self._to_next_turn(finished)
        self._table.step[slots.rows] = self.steps
        return finished

    def _to_next_turn(self, finished: list[Episode]) -> None:
        """Bury the dead and start new games, until a living agent has to act."""
        restarts = 0
        while True:
            self._note_joiners()
            if not self._made.agents:
                if restarts:
                    raise BadValue("the game is over before any agent could act")
                restarts += 1
                self.episode += 1
                self._begin(None)
                continue
            agent = self._made.agent_selection
            observation, reward, terminated, truncated, info = self._made.last()
            is_first = self._settle(agent, self._agents.note_reward(agent, reward))
            if not terminated and not truncated:
                self._agents.write_obs(agent, observation)
                self._table.active[self._agents.of[agent]] = True
                return
            if is_first:
                self._write_end(agent, observation, bool(terminated))
            finished.append(self._agents.finished(agent, info, self.episode))
            self._remove(agent)

    def _settle(self, agent: Any, reward: float) -> bool:
        """Complete the agent's decision. Returns False if an earlier life of it ended in this step, which did that."""
        slot = self._agents.of[agent]
        if self._due[slot]:
            return False
        self._due[slot] = True
        self._table.reward[slot] = reward if self._agents.has_decided(slot) else 0.0
        return True

    def _write_end(self, agent: Any, observation: Any, terminated: bool) -> None:
        slot = self._agents.of[agent]
        self._table.terminated[slot] = terminated
        self._table.truncated[slot] = not terminated
        self._agents.write_final_obs(agent, observation)

    def _remove(self, agent: Any) -> None:
        """Step a dead agent, as the AEC API wants it."""
        self._made.step(None)
        if agent in self._made.agents:
            raise BadValue(f"agent {agent!r} is still in `agents` after it ended and was stepped with None")
        self._living.discard(agent)

    def _note_joiners(self) -> None:
        playing = set(self._made.agents)
        if gone := self._living - playing:
            name = min(map(str, gone))
            raise BadValue(f"agent {name!r} left `agents` without an end; the AEC API wants a step with None first")
        for agent in playing - self._living:
            self._agents.begin_life(self._agents.of[agent])
        self._living = playing

    def _begin(self, seed: int | None) -> None:
        phase, self.phase = self.phase, "reset"
        self.steps = 0
        if self._weights is not None:
            self._weights.apply()
        self._living = set()
        self._made.reset(seed=seed)
        self._table.episode[self._agents.rows] = self.episode
        self._table.step[self._agents.rows] = 0
        self.phase = phase

    def state(self) -> bytes:
        agents = self._agents.state()
        return pickle.dumps((env_state(self._made), self.seed, self.episode, self.steps, agents, self._living))

    def restore(self, state: bytes) -> None:
        inner, self.seed, self.episode, self.steps, agents, self._living = pickle.loads(state)
        restore_env(self._made, inner)
        self._agents.restore(agents)
        if self._weights is not None:
            self._weights.forget()

    def close(self) -> None:
        self._made.close()
