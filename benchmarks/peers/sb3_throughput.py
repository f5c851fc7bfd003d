"""One measurement of Stable-Baselines3's PPO for `benchmarks.throughput`:
`python -m benchmarks.peers.sb3_throughput '{"env": "gym:CartPole-v1", ...}'`.

Environments are stepped in its own process (`DummyVecEnv`), because its worker processes are slower on few cores. Atari
has its wrappers. The network is that of all systems: actor and critic share all but their last layers. This needs a
feature extractor of our own, because its default for vectors has two separate networks.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack
from torch import nn


class Perceptron(BaseFeaturesExtractor):
    def __init__(self, space, hidden: int) -> None:
        super().__init__(space, hidden)
        first, second = nn.Linear(space.shape[0], hidden), nn.Linear(hidden, hidden)
        self.layers = nn.Sequential(first, nn.Tanh(), second, nn.Tanh())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layers(obs)


class Marks(BaseCallback):
    """Notes the time and the steps learned from whenever a rollout begins; ends the run after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.marks: list[tuple[float, int]] = []
        self.seconds = seconds

    def _on_rollout_start(self) -> None:
        self.marks.append((time.perf_counter(), self.num_timesteps))

    def _on_step(self) -> bool:
        # the first rollout of all warms up
        return len(self.marks) < 3 or time.perf_counter() - self.marks[1][0] < self.seconds


def make(env: str, num_envs: int) -> VecEnv:
    family, name = env.split(":")
    if family == "atari":
        import ale_py  # noqa: F401 - registers its games

        return VecFrameStack(make_atari_env(f"{name}NoFrameskip-v4", num_envs), 4)
    return make_vec_env(name, num_envs)


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    is_image = options["env"].startswith("atari:")
    network = {} if is_image else {"features_extractor_class": Perceptron}
    model = PPO(
        "CnnPolicy" if is_image else "MlpPolicy",
        make(options["env"], options["num_envs"]),
        n_steps=options["rollout_steps"],
        batch_size=options["rollout_steps"] * options["num_envs"] // options["minibatches"],
        n_epochs=options["epochs"],
        policy_kwargs=network
        | {"net_arch": [], "features_extractor_kwargs": {} if is_image else {"hidden": options["hidden"]}},
        device="cpu",
    )
    callback = Marks(options["seconds"])
    model.learn(10**9, callback=callback)
    (begin, first), (end, last) = callback.marks[1], callback.marks[-1]
    print("RESULT " + json.dumps({"steps_per_second": (last - first) / (end - begin)}), flush=True)


if __name__ == "__main__":
    main()
