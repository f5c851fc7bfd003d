"""One measurement of Paceline for `benchmarks.ppo` and `benchmarks.throughput`.

`python -m benchmarks.ppo_cell '{...}'` prints one JSON object. The options are those of the peers and `system`, `env`
(an environment id instead of EnvPool's `task`), `pool` (the backend), `encoder`, `precision`, `sequences`, `groups`,
`pool_workers`, `policies` and `batch` (of appo).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from paceline.accel.config import ComputeConfig
from paceline.config import Config
from paceline.learner.config import PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.population.config import PopulationConfig
from paceline.schedule.config import APPOConfig
from paceline.session import train
from paceline.telemetry.clock import ACTIVITIES

from .marks import note_reports

WARM_UP_SECONDS = {"cpu": 0.0, "cuda": 10.0}
SHARES = (*(f"time/{name}" for name in ACTIVITIES), "learner_busy")


def config_of(options: dict) -> Config:
    core = CoreConfig(kind="lstm", hidden=options["lstm"]) if options["lstm"] else CoreConfig()
    return Config(
        env=options.get("env") or f"envpool:{options['task']}",
        system=options.get("system", "ddppo"),
        steps=10**9,
        seconds=options["seconds"],
        rollout_steps=options["rollout_steps"],
        device=options.get("device", "cpu"),
        compute=ComputeConfig(precision=options.get("precision", "float32")),
        threads=options["threads"],
        pool=PoolConfig(
            kind=options.get("pool", "auto"),
            num_envs=options["num_envs"],
            groups=options.get("groups", 1),
            workers=options.get("pool_workers"),
        ),
        policy=PolicyConfig(encoder=options.get("encoder", "nature"), hidden=(options["hidden"],) * 2, core=core),
        ppo=PPOConfig(
            epochs=options["epochs"],
            minibatches=options["minibatches"],
            normalize_advantage=True,
            sequences=options.get("sequences", "auto"),
        ),
        population=PopulationConfig(policies=options.get("policies", 1)),
        appo=APPOConfig(batch=options.get("batch")),
    )


def main() -> None:
    options = json.loads(sys.argv[1])
    marks = note_reports()
    with tempfile.TemporaryDirectory() as folder:
        train(config_of(options), Path(folder))
        reports = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    if len(marks) < 2:
        sys.exit(f"{options['seconds']} seconds were too short for two iterations")
    # On a GPU the first seconds choose kernels and record graphs.
    counted = [mark for mark in marks if mark[0] - marks[0][0] >= WARM_UP_SECONDS[options.get("device", "cpu")]]
    (begin, first), (end, last) = counted[0], counted[-1]
    last_report = reports[-1] if reports else {}
    shares = {key.removeprefix("time/"): value for key, value in last_report.items() if key in SHARES}
    print("RESULT " + json.dumps({"steps_per_second": (last - first) / (end - begin), "shares": shares}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
