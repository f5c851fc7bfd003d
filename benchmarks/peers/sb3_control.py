"""Stable-Baselines3's TD3 and SAC for `benchmarks.control_speed`.

`python -m benchmarks.peers.sb3_control '{"learner": "TD3", "env": "dmc:cheetah-run?flat=true", ...}'` prints steps and
updates per second. Environments are stepped in its own process (`DummyVecEnv`).
"""

from __future__ import annotations

import json
import sys
from functools import partial

import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from .control_loop import Meter, Settings, make_env

CAPACITY = 100_000


class Measure(BaseCallback):
    """Ends the run when the time is over."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter

    def _on_step(self) -> bool:
        return self.meter.goes_on(self.model._n_updates)


def main() -> None:
    options = json.loads(sys.argv[1])
    learner = getattr(stable_baselines3, options.pop("learner"))
    settings = Settings(**options)
    torch.set_num_threads(settings.threads)
    meter = Meter(settings)
    model = learner(
        "MlpPolicy",
        DummyVecEnv([partial(make_env, settings.env, index) for index in range(settings.num_envs)]),
        buffer_size=CAPACITY,
        batch_size=settings.batch,
        learning_starts=settings.minimum,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": [settings.hidden, settings.hidden]},
        device=settings.device,
    )
    model.learn(10**9, callback=Measure(meter))
    meter.print_result()


if __name__ == "__main__":
    main()
