"""One measurement of `benchmarks.updates`: `python -m benchmarks.updates_cell '{"system": "ours", ...}'`."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

OBS, ACTION, HIDDEN, BATCH, STORED = 17, 6, 256, 256, 100_000
POLYAK, RATE, DISCOUNT = 0.005, 1e-4, 0.99

Update = Callable[[], Any]


def ours(
    device: torch.device, value: str, prioritized: bool, compiled: bool = False, precision: str = "float32"
) -> Update:
    from paceline.accel.cuda_graph import CudaGraph
    from paceline.accel.kernels import choose_cpu_kernels
    from paceline.distributed.runtime import Group, RankInfo
    from paceline.experience.config import ReplayConfig
    from paceline.experience.replay import Replay
    from paceline.learner.config import D4PGConfig
    from paceline.learner.d4pg import D4PGLearner
    from paceline.nets.config import ControlConfig, PolicyConfig, ValueConfig
    from paceline.nets.deterministic import make_networks
    from paceline.pool.protocol import PoolSpec

    spec = PoolSpec(observation_space=_box(OBS, np.inf), action_space=_box(ACTION, 1.0), num_envs=1)
    control = ControlConfig(
        actor_hidden=(HIDDEN, HIDDEN),
        critic_hidden=(HIDDEN, HIDDEN),
        layer_norm=False,
        activation="relu",
        value=ValueConfig(kind=value),
    )
    policy, critic = make_networks(spec, control, PolicyConfig())
    for network in (policy, critic):
        network.to(device).torso.precision = getattr(torch, precision)
    if device.type == "cpu":
        choose_cpu_kernels(policy, torch.get_num_threads(), ranks=1, precision=policy.torso.precision)
    config = D4PGConfig(target_period=1, target_share=POLYAK, max_action_gradient=None)
    learner = D4PGLearner(policy, critic, Group(RankInfo(), device, None), config, compiled=compiled)
    replay = Replay(ReplayConfig(capacity=STORED, prioritized=prioritized), device)
    obs, action, reward, next_obs = transitions()
    replay.add(
        {
            "obs/obs": obs,
            "action": action,
            "reward": reward,
            "discount": np.full(STORED, DISCOUNT, np.float32),
            "next_obs/obs": next_obs,
        }
    )

    def step() -> None:
        drawn = replay.draw(BATCH)
        _, errors = learner.step(drawn)
        replay.set_priorities(drawn, errors)

    take = CudaGraph(step).run if device.type == "cuda" else step

    def update() -> None:
        take()
        learner.count()

    return update


def plain(device: torch.device) -> Update:
    """DDPG in plain PyTorch, without optimisations."""

    def network(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs)
        ).to(device)

    actor, critic = network(OBS, ACTION), network(OBS + ACTION, 1)
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=RATE)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=RATE)
    stored = [torch.from_numpy(column).to(device) for column in transitions()]

    def update() -> None:
        rows = torch.randint(STORED, (BATCH,), device=device)
        obs, action, reward, next_obs = (column[rows] for column in stored)
        with torch.no_grad():
            followed = target_critic(torch.cat([next_obs, target_actor(next_obs).tanh()], 1)).squeeze(1)
            target = reward + DISCOUNT * followed
        loss = F.mse_loss(critic(torch.cat([obs, action], 1)).squeeze(1), target)
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        actor_loss = -critic(torch.cat([obs, actor(obs).tanh()], 1)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        for target_module, module in ((target_actor, actor), (target_critic, critic)):
            for old, new in zip(target_module.parameters(), module.parameters(), strict=True):
                old.data.mul_(1 - POLYAK).add_(new.data, alpha=POLYAK)

    return update


def sb3(device: torch.device) -> Update:
    import gymnasium
    from stable_baselines3 import TD3
    from stable_baselines3.common.logger import configure

    class Sizes(gymnasium.Env):
        observation_space, action_space = _box(OBS, np.inf), _box(ACTION, 1.0)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return np.zeros(OBS, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(OBS, np.float32), 0.0, False, False, {}

    model = TD3(
        "MlpPolicy",
        Sizes(),
        buffer_size=STORED,
        batch_size=BATCH,
        learning_rate=RATE,
        policy_kwargs={"net_arch": [HIDDEN, HIDDEN]},
        device=device,
    )
    model.set_logger(configure(None, []))
    assert model.replay_buffer is not None
    for obs, action, reward, next_obs in zip(*transitions(), strict=True):
        model.replay_buffer.add(obs, next_obs, action, np.array([reward]), np.array([False]), [{}])
    return lambda: model.train(gradient_steps=1, batch_size=BATCH)


def transitions() -> list[np.ndarray]:
    """Observations, actions, rewards and next observations."""
    rng = np.random.default_rng(0)
    numbers = (rng.normal(size=(STORED, OBS)), rng.uniform(-1, 1, (STORED, ACTION)), rng.normal(size=STORED))
    return [column.astype(np.float32) for column in (*numbers, rng.normal(size=(STORED, OBS)))]


def _box(size: int, bound: float) -> spaces.Box:
    return spaces.Box(-bound, bound, (size,), np.float32)


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options.pop("threads"))
    seconds, device = options.pop("seconds"), torch.device(options.pop("device"))
    learners: dict[str, Callable[..., Update]] = {"ours": ours, "plain": plain, "sb3": sb3}
    update = learners[options.pop("system")](device, **options)

    def wait() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(20):
        update()
    begin, count = wait(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(10):
            update()
        count += 10
    print("RESULT " + json.dumps({"updates_per_second": count / (wait() - begin)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
