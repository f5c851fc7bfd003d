"""Stable-Baselines3's PPO with its defaults: `python -m benchmarks.peers.sb3_ppo SEED [ENV] [STEPS]`."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    seed = int(sys.argv[1])
    name = sys.argv[2] if len(sys.argv) > 2 else "HalfCheetah-v5"
    total = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
    torch.set_num_threads(1)
    begin = time.perf_counter()
    model = PPO("MlpPolicy", make_vec_env(name, 1, seed=seed), seed=seed, device="cpu").learn(total)
    seconds = time.perf_counter() - begin
    recent = [episode["r"] for episode in model.ep_info_buffer or ()]  # the last 100
    print("RESULT " + json.dumps({"seed": seed, "return": float(np.mean(recent)), "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
