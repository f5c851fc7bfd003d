"""Games in which agents take turns, under every PPO system: learners get every decision with its whole outcome."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from paceline.config import CheckpointConfig, Config
from paceline.evaluation.evaluate import play
from paceline.evaluation.player import Player
from paceline.learner.config import PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool import PoolConfig, make_pool
from paceline.schedule.config import VERConfig
from paceline.session import Session, train
from tests.pool.turn_based import AGENTS, Court, Decision

COURT = "tests.pool.turn_based:Court"
SMALL = PolicyConfig(hidden=(8,), core=CoreConfig(kind="gru", hidden=8))


def config(system: str, steps: int = 360, **options) -> Config:
    return Config(
        env=f"{COURT}?env=0",
        system=system,
        steps=steps,
        rollout_steps=8,
        device="cpu",
        pool=PoolConfig(kind="serial", num_envs=3),
        ppo=PPOConfig(epochs=1, minibatches=1),
        policy=SMALL,
        checkpoint=CheckpointConfig(seconds=1e9),
        **options,
    )


@pytest.fixture
def courts(monkeypatch):
    made: list[Court] = []
    original = Court.__init__

    def remember(self, env):
        original(self, env)
        made.append(self)

    monkeypatch.setattr(Court, "__init__", remember)
    return made


@pytest.fixture
def learned(monkeypatch):
    """By slot: the rows that learners saw, as decisions."""
    streams: dict[int, list[Decision]] = defaultdict(list)
    original = PPOLearner.learn

    def spy(self, batch, progress):
        selection = batch.selection
        for stream, slot in enumerate(selection.slots.tolist()):
            present = slice(None) if selection.present is None else selection.present[:, stream]
            rows = [row for row in selection.rows[present, stream].tolist() if batch.valid[row]]
            streams[slot] += [_as_decision(batch, row) for row in rows]
            for row, following in itertools.pairwise(rows):
                ended = bool(batch.terminated[row] | batch.truncated[row])
                assert batch.episode_start[following] == ended
                assert batch.continues[row] != ended
                assert ended or batch.next_value[row] == batch.value[following]
        return original(self, batch, progress)

    monkeypatch.setattr(PPOLearner, "learn", spy)
    return streams


def _as_decision(batch, row: int) -> Decision:
    end = "terminated" if batch.terminated[row] else "truncated" if batch.truncated[row] else ""
    (action,) = batch.actions.values()
    return Decision(
        obs=batch.obs["obs"][row].tolist(),
        action=int(action[row]),
        reward=float(batch.reward[row]),
        end=end,
        is_first=bool(batch.episode_start[row]),
    )


@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
def test_learners_get_every_decision_with_its_whole_outcome(system, courts, learned, tmp_path):
    train(config(system), tmp_path)
    total = 0
    for env, court in enumerate(courts[-3:]):
        for number, agent in enumerate(AGENTS):
            expected = [replace(decision, final_obs=[]) for decision in court.account[agent]]
            stream = learned[env * len(AGENTS) + number]
            assert stream == expected[: len(stream)]
            total += len(stream)
    assert total >= 360


@pytest.mark.parametrize("variable", [True, False])
def test_a_resumed_run_is_the_uninterrupted_run(variable, tmp_path):
    """Decisions of agents that wait for their turn are in flight in the checkpoint."""
    options = {"deterministic": True, "ver": VERConfig(variable=variable)}
    whole = train(config("ver", **options), tmp_path / "whole")
    with Session(config("ver", **options), tmp_path / "parts") as session:
        session.run(until=180)
    parts = train(config("ver", **options), tmp_path / "parts", resume="latest")
    assert whole.step == parts.step
    for left, right in zip(_weights(whole), _weights(parts), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("system", ["ddppo", "appo"])
def test_other_systems_resume(system, tmp_path):
    train(config(system, 180), tmp_path)
    assert train(config(system), tmp_path, resume="latest").step >= 360


def test_a_resumed_run_learns_from_whole_columns(tmp_path):
    """Slots that wait for their turn have rows without a decision then. Their numbers must be finite."""
    columns = PPOConfig(epochs=2, minibatches=1, sequences="columns", targets="gae", trace="update")
    train(replace(config("appo", 180), ppo=columns), tmp_path)
    for steps in (360, 720):
        assert train(replace(config("appo", steps), ppo=columns), tmp_path, resume="latest").step >= steps


def _weights(run) -> list[torch.Tensor]:
    (learner,) = run.learners
    return list(learner.policy.state_dict().values())


class LegalMoves:
    """Random legal moves; square 0 where the mask allows none."""

    def initial_state(self, count):
        return torch.zeros(count, 0)

    def play(self, obs, state, generator=None):
        odds = obs["action_mask"].float() + 1e-9 * torch.eye(9)[0]
        return {"action": torch.multinomial(odds, 1, generator=generator).squeeze(1)}, state


def test_evaluation_plays_the_episodes_of_all_agents():
    pytest.importorskip("pettingzoo")
    with make_pool("pettingzoo:classic.tictactoe_v3", PoolConfig(kind="serial", num_envs=2), seed=0) as pool:
        player = Player(LegalMoves(), pool.spec.num_slots, torch.device("cpu"), sampled=True)
        episodes = play(pool, player, 12).episodes
    assert sorted(episode.slot for episode in episodes) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    matches = defaultdict(float)
    for episode in episodes:
        assert episode.length >= 2, "no move was illegal"
        matches[episode.slot // 2, episode.match] += episode.episode_return
    assert len(matches) == 6 and not any(matches.values()), "one wins what the other loses"
