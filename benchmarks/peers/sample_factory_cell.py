"""One measurement of Sample Factory's APPO for `benchmarks.throughput`, with the Python of its own environment (see
`environment.py`): `python benchmarks/peers/sample_factory_cell.py '{"env": "gym:CartPole-v1", "workers": 2, ...}'`.

It is asynchronous, with its defaults of one inference worker and one learner. The number of environments, the rollout
length, the mini-batches and the network are those of all systems. There are two ways to simulate:

- its own: `workers` processes with two alternating halves of environments, and its wrappers for Atari and Doom;
- with `envpool_threads`: all environments in one EnvPool in one worker, with batched sampling, as in its examples. The
  worker is not pinned to a core if there are several threads.

It normalises neither observations nor returns, as all systems here, and writes no log. Steps are the samples that its
learner has consumed, without frame skip. The first seconds do not count, because TorchScript is still optimising.
"""

# ruff: noqa: E402

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

# EnvPool imports JAX if it is installed, which fails with the NumPy that Sample Factory needs.
sys.modules["jax"] = None

import ale_py.registration
import envpool
from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_utils import make_atari_env
from sf_examples.envpool.envpool_utils import add_envpool_common_args
from sf_examples.envpool.envpool_wrappers import EnvPoolResetFixWrapper
from sf_examples.mujoco.mujoco_utils import make_mujoco_env
from sf_examples.train_gym_env import make_gym_env_func
from sf_examples.vizdoom.doom.doom_params import add_doom_env_args
from sf_examples.vizdoom.doom.doom_utils import doom_env_by_name, make_doom_env_from_spec

WARM_UP_SECONDS = 5


def make_atari(name, cfg, env_config, render_mode=None):
    # ale-py registers its environments by itself with newer versions of Gymnasium only
    ale_py.registration.register_v0_v4_envs()
    return make_atari_env(name, cfg, env_config, render_mode)


def make_doom(name, cfg, env_config, render_mode=None):
    return make_doom_env_from_spec(doom_env_by_name(name), name, cfg, env_config, render_mode)


def make_envpool(task, cfg, env_config, render_mode=None):
    env = envpool.make(
        task,
        env_type="gymnasium",
        num_envs=cfg.env_agents,
        num_threads=cfg.envpool_num_threads,
        seed=0 if env_config is None else env_config.env_id,
    )
    env.closed = True  # Gymnasium 0.29 asks for it when it closes an environment, and EnvPool does not have it
    env = EnvPoolResetFixWrapper(env)
    env.num_agents = cfg.env_agents
    return env


MLP = ["--nonlinearity=tanh", "--adaptive_stddev=False"]
IMAGE = ["--obs_scale=255.0", "--env_frameskip=4", "--encoder_conv_mlp_layers", "512"]
ENVS = {
    "gym:CartPole-v1": ("CartPole-v1", make_gym_env_func, MLP),
    "gym:HalfCheetah-v4": ("mujoco_halfcheetah", make_mujoco_env, MLP),
    "atari:Breakout": (
        "atari_breakout",
        make_atari,
        [*IMAGE, "--env_framestack=4", "--encoder_conv_architecture=convnet_atari", "--nonlinearity=relu"],
    ),
    "doom:my_way_home": (
        "doom_my_way_home_flat_actions",
        make_doom,
        [*IMAGE, "--encoder_conv_architecture=convnet_simple", "--nonlinearity=elu"],
    ),
}
"""Sample Factory's name for each environment, what makes it, and the arguments that make the network the same."""


def arguments_of(options: dict, name: str, folder: str) -> list[str]:
    """Sample Factory's command line for a workload."""
    rows = options["rollout_steps"] * options["num_envs"]
    hidden = str(options["hidden"])
    core = ["--use_rnn=True", "--rnn_type=lstm", f"--rnn_size={options['lstm']}"]
    return [
        f"--env={name}",
        f"--train_dir={folder}",
        "--experiment=throughput",
        "--device=cpu",
        "--seed=1",
        f"--rollout={options['rollout_steps']}",
        f"--batch_size={rows // options['minibatches']}",
        f"--num_batches_per_epoch={options['minibatches']}",
        f"--num_epochs={options['epochs']}",
        f"--train_for_seconds={int(options['seconds']) + WARM_UP_SECONDS}",
        "--normalize_input=False",
        "--normalize_returns=False",
        "--summaries_use_frameskip=False",
        "--log_to_file=False",
        *ENVS[options["env"]][2],
        *("--encoder_mlp_layers", hidden, hidden),
        *(core if options["lstm"] else ["--use_rnn=False"]),
        *sampling_of(options),
    ]


def sampling_of(options: dict) -> list[str]:
    """The arguments that say where environments are stepped."""
    threads = options.get("envpool_threads", 0)
    if not threads:
        workers = options["workers"]
        return [f"--num_workers={workers}", f"--num_envs_per_worker={options['num_envs'] // workers}"]
    return [
        "--batched_sampling=True",
        "--num_workers=1",
        "--num_envs_per_worker=1",
        "--worker_num_splits=1",
        f"--env_agents={options['num_envs']}",
        f"--envpool_num_threads={threads}",
        f"--set_workers_cpu_affinity={threads == 1}",
    ]


def train(options: dict, folder: str) -> list[tuple[float, int]]:
    """The time and the learner's count of steps after each of its iterations."""
    name, make, _ = ENVS[options["env"]]
    if options.get("envpool_threads"):
        name, make = options["task"], make_envpool
    register_env(name, make)
    arguments = arguments_of(options, name, folder)
    parser, _ = parse_sf_args(arguments)
    add_doom_env_args(parser)
    add_envpool_common_args(name, parser)
    parser.add_argument("--env_agents", type=int, default=1)
    _, runner = make_runner(parse_full_cfg(parser, arguments))
    marks: list[tuple[float, int]] = []

    def mark(runner, message, policy):
        if message[LEARNER_ENV_STEPS] > 0:
            marks.append((time.perf_counter(), message[LEARNER_ENV_STEPS]))
            # `train_for_seconds` goes by this, which version 2.1.1 never counts itself
            runner.total_train_seconds = marks[-1][0] - marks[0][0]

    runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(mark)
    status = runner.init()
    if status == ExperimentStatus.SUCCESS:
        status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        raise RuntimeError(f"Sample Factory ended with status {status}")
    return marks


def main() -> None:
    options = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)  # Doom leaves files where it is started
        marks = train(options, folder)
        os.chdir("/")
    warm = [mark for mark in marks if mark[0] >= marks[0][0] + WARM_UP_SECONDS]
    (begin, first), (end, last) = warm[0], warm[-1]
    print("RESULT " + json.dumps({"steps_per_second": (last - first) / (end - begin)}), flush=True)


if __name__ == "__main__":
    main()
