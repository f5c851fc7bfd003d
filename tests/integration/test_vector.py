"""Training in vector environments of the user's own: rows, returns and learning in every autoreset mode."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

import paceline as pl
from paceline.config import Config
from paceline.experience.config import LimiterConfig
from paceline.learner.config import D4PGConfig, OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.config import ControlConfig, CoreConfig, PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import Session, train
from tests.integration.learning import train_until
from tests.pool.vector_envs import MODES, Alone, Numbers

GAMMA = 0.5
LENGTH = 4


class Signs(VectorEnv):
    """Choose the sign that is shown. Each step shows another of four. An episode of four steps returns 4 at best, and 1
    by chance. Odd environments terminate, even ones are truncated."""

    def __init__(self, num_envs: int, device: str = "cpu", mode: str = "SAME_STEP") -> None:
        self.num_envs, self._mode = num_envs, mode
        self.metadata = {"autoreset_mode": AutoresetMode[mode]}
        self.single_observation_space = spaces.Box(0, 1, (4,), np.float32)
        self.single_action_space = spaces.Discrete(4)
        self._odd = torch.arange(num_envs) % 2 == 1

    def reset(self, *, seed=None, options=None):
        if options is None:
            self._generator = torch.Generator().manual_seed(seed or 0)
            self._steps = torch.arange(self.num_envs) % LENGTH  # they do not all end at once
            self._shown = self._draw()
        else:
            self._restart(options["reset_mask"])
        self._ended = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._observation(), {}

    def step(self, actions):
        before = self._ended if self._mode == "NEXT_STEP" else torch.zeros_like(self._ended)
        reward = (actions == self._shown).float().masked_fill(before, 0.0)
        self._steps, self._shown = self._steps + 1, self._draw()
        self._restart(before)
        self._ended = self._steps >= LENGTH
        terminated, truncated, infos = self._ended & self._odd, self._ended & ~self._odd, {}
        if self._mode == "SAME_STEP":
            infos["final_obs"] = self._observation()
            self._restart(self._ended)
        return self._observation(), reward, terminated, truncated, infos

    def _restart(self, mask: torch.Tensor) -> None:
        self._steps, self._shown = self._steps.masked_fill(mask, 0), torch.where(mask, self._draw(), self._shown)

    def _draw(self) -> torch.Tensor:
        return torch.randint(4, (self.num_envs,), generator=self._generator)

    def _observation(self) -> torch.Tensor:
        return torch.eye(4)[self._shown]


def config_of(env: str, **changes) -> Config:
    return dataclasses.replace(
        Config(
            env=f"tests.integration.test_vector:{env}",
            steps=30_000,
            rollout_steps=16,
            device="cpu",
            threads=1,
            pool=PoolConfig(num_envs=16),
            policy=PolicyConfig(hidden=(32,)),
            ppo=PPOConfig(epochs=4, minibatches=2, discount=GAMMA, normalize_advantage=True, entropy_coef=0.0),
            optimizer=OptimizerConfig(learning_rate=1e-2),
        ),
        **changes,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
def test_a_task_is_learned_in_every_autoreset_mode(tmp_path, system, mode, learning_seed):
    """False alarms: none in 5 seeds of each."""
    config = config_of(f"Signs?mode={mode}", seed=learning_seed).under(system)
    assert train_until(config, 3.6, tmp_path) >= 3.6


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("mode", MODES)
def test_returns_end_with_their_episodes(tmp_path, monkeypatch, mode, core):
    """Every decision is a row, and no other is. Its return is that of its own episode: with the value of the last
    observation where it was truncated, and that of the next observation where the rollout ends."""
    learned, plain = [], PPOLearner.learn

    def learn(learner, batch, progress):
        learned.append(compare(learner.policy, batch))
        return plain(learner, batch, progress)

    monkeypatch.setattr(PPOLearner, "learn", learn)
    policy = PolicyConfig(hidden=(8,), core=CoreConfig(kind=core, hidden=8))
    ppo = PPOConfig(discount=GAMMA, trace_decay=1.0, epochs=1, minibatches=1)
    env = functools.partial(Numbers, mode=mode)
    config = config_of("Signs", policy=policy, ppo=ppo, steps=7 * 9 * 6, rollout_steps=9, pool=PoolConfig(num_envs=7))
    next_rows.clear()
    with Session(config, tmp_path, env=env) as session:
        session.run()
    assert len(learned) >= 6 and sum(learned) == session.step


next_rows: dict[int, Alone] = {}
"""By slot: the environment stepped singly, before the first row of the next rollout."""


@torch.no_grad()
def compare(policy, batch) -> int:
    """Compare a rollout with environments stepped singly. Returns the number of rows."""
    columns, rows = batch.columns(), 0
    for slot, column in enumerate(columns.T.tolist()):
        env = next_rows.setdefault(slot, Alone(slot))
        stream, state = [], None
        for row in column:
            if not batch.valid[row]:
                continue
            assert batch.obs["obs"][row].tolist() == env.observe(), "no decision is missing"
            assert bool(batch.episode_start[row]) == (env.step_number == 0)
            reward, terminated, truncated = env.step(int(batch.actions["action"][row]))
            assert batch.reward[row] == reward
            state = after(policy, batch, row)
            follow = 0.0 if terminated else float(policy.value(seen(env), state))
            stream.append((row, reward, terminated or truncated, follow))
            if terminated or truncated:
                env.reset()
        expected, following = None, 0.0
        for row, reward, ended, follow in reversed(stream):
            following = follow if ended or expected is None else expected
            expected = reward + GAMMA * following
            assert float(batch.returns[row]) == pytest.approx(expected, rel=1e-4, abs=1e-3)
        rows += len(stream)
    return rows


def seen(env: Alone) -> dict[str, torch.Tensor]:
    return {"obs": torch.tensor([env.observe()], dtype=torch.float32)}


def after(policy, batch, row: int) -> torch.Tensor:
    """The recurrent state after the step of a row."""
    before = batch.state[row : row + 1]
    return policy.act({"obs": batch.obs["obs"][row : row + 1]}, before)[2]


def test_python_trains_and_evaluates_a_function(tmp_path):
    """Of the function's own module, so `evaluate` finds it again."""
    run = pl.train(env=Signs, steps=2_000, folder=tmp_path / "run", device="cpu", pool={"num_envs": 8})
    assert run.step >= 2_000 and np.isfinite(run.metrics["episode_return"]).any()
    assert pl.evaluate(run.policy, episodes=8).length.mean <= LENGTH


@pytest.mark.parametrize("mode", MODES)
def test_transitions_of_d4pg_stay_in_their_episodes(tmp_path, mode):
    """Each leads to the next step of its episode. Resets are no transitions."""
    config = Config(
        env="tests.integration.test_vector:Numbered?mode=" + mode,
        system="d4pg",
        steps=300,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=4),
        control=ControlConfig(actor_hidden=(8,), critic_hidden=(8,)),
        d4pg=D4PGConfig(batch=16, steps=1, evaluation_envs=0),
        limiter=LimiterConfig(minimum=100, samples_per_insert=1.0),
    )
    run = train(config, tmp_path)
    rows = run.collection.replay.state_dict()["parts"][0]
    before, after_ = rows["obs/obs"], rows["next_obs/obs"]
    assert len(before) >= 300 and torch.equal(after_ - before, torch.tensor([0.0, 0.0, 1.0]).expand_as(before))
    assert torch.equal(rows["reward"], after_[:, 2])
    per_slot = [before[before[:, 0] == number][:, 1:] for number in range(4)]
    for number, seen_ in enumerate(per_slot):
        env = Alone(number)
        for episode, step in seen_.tolist():
            assert [episode, step] == env.observe()[1:], "no step is missing"
            if any(env.step(0)[1:]):
                env.reset()


class Numbered(Numbers):
    """`Numbers` with one continuous action, which says nothing."""

    def __init__(self, num_envs, device="cpu", mode="SAME_STEP"):
        super().__init__(num_envs, device, mode)
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, actions):
        return super().step(torch.zeros(self.num_envs, dtype=torch.int64))
