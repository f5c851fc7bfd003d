"""Stable-Baselines3's PPO with its defaults: `python -m benchmarks.peers.sb3_ppo SEED [ENV] [STEPS]`."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Progress(BaseCallback):
    """Prints the mean return of the last 100 episodes every 48 rollouts."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts = 0

    def _on_rollout_end(self) -> None:
        self.rollouts += 1
        if self.rollouts % 48 == 0 and self.model.ep_info_buffer:
            print("PROGRESS " + json.dumps({"steps": self.num_timesteps, "return": recent(self.model)}), flush=True)

    def _on_step(self) -> bool:
        return True


def recent(model: PPO) -> float:
    return float(np.mean([episode["r"] for episode in model.ep_info_buffer or ()]))  # it holds the last 100


def main() -> None:
    seed = int(sys.argv[1])
    name = sys.argv[2] if len(sys.argv) > 2 else "HalfCheetah-v5"
    total = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
    torch.set_num_threads(1)
    begin = time.perf_counter()
    model = PPO("MlpPolicy", make_vec_env(name, 1, seed=seed), seed=seed, device="cpu")
    model.learn(total, callback=Progress())
    seconds = time.perf_counter() - begin
    about = {"seed": seed, "steps": model.num_timesteps, "return": recent(model), "seconds": seconds}
    print("RESULT " + json.dumps(about), flush=True)


if __name__ == "__main__":
    main()
