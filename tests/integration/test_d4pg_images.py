"""D4PG from images: what is stored, resumed, taken by other runs, exported and learned."""

from __future__ import annotations

import copy
import dataclasses
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.checkpoint import CheckpointFolder
from paceline.config import Config
from paceline.envs import resolve
from paceline.errors import UsageError
from paceline.evaluation.evaluate import evaluate
from paceline.experience.config import LimiterConfig, ReplayConfig
from paceline.experience.frame_replay import FrameReplay
from paceline.export import export
from paceline.learner.config import D4PGConfig
from paceline.nets.config import ControlConfig, PolicyConfig, ValueConfig
from paceline.pool.config import PoolConfig
from paceline.recipes.defaults import default_config
from paceline.session import Session, train
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, weights

LENGTH = 4
SIDE = 16
FARTHEST = (SIDE - 3) / 2
"""Pixels from the centre to the outermost dots."""


class Dot(gymnasium.Env):
    """Move a dot of 3x3 pixels to a target. The best return is about 0.

    With `numbers`, the target is a vector beside the image, and doing nothing has a return of about -2.7. Otherwise the
    target is the centre of the image, and doing nothing has a return of about -1.3.
    """

    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, numbers: int = 0) -> None:
        self.numbers = numbers
        self.observation_space: spaces.Space = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
        if numbers:
            target = spaces.Box(-1.0, 1.0, (2,), np.float32)
            self.observation_space = spaces.Dict({"screen": self.observation_space, "target": target})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.dot, self.steps = self.np_random.uniform(-1, 1, 2), 0
        self.target = self.np_random.uniform(-1, 1, 2).astype(np.float32) if self.numbers else np.zeros(2, np.float32)
        return self.observation(), {}

    def step(self, action):
        self.dot = np.clip(self.dot + action, -1, 1)
        self.steps += 1
        reward = -float(np.square(self.dot - self.target).sum()) / 2
        return self.observation(), reward, False, self.steps == LENGTH, {}

    def observation(self):
        screen = np.zeros((SIDE, SIDE, 1), np.uint8)
        row, column = np.round((self.dot + 1) * FARTHEST).astype(int)
        screen[row : row + 3, column : column + 3] = 255
        return {"screen": screen, "target": self.target} if self.numbers else screen


def small(numbers: int = 1, **changes) -> Config:
    """A run of a few updates."""
    return dataclasses.replace(
        Config(
            env=f"tests.integration.test_d4pg_images:Dot?numbers={numbers}",
            system="d4pg",
            steps=400,
            device="cpu",
            threads=1,
            pool=PoolConfig(num_envs=4, kind="serial"),
            policy=PolicyConfig(encoder="patches", encoder_size=16),
            control=ControlConfig(
                actor_hidden=(16,), critic_hidden=(16,), value=ValueConfig(low=-10.0, high=0.0, atoms=21)
            ),
            d4pg=D4PGConfig(batch=16, steps=3, target_period=2),
            replay=ReplayConfig(capacity=300),
            limiter=LimiterConfig(samples_per_insert=4.0, minimum=100),
        ),
        **changes,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder of a run. Tests that write to it have a copy."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(small(), folder)
    return folder


@pytest.fixture
def copied(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


def learnable(numbers: int, seed: int) -> Config:
    """Enough of everything to move the dot to the target."""
    return small(
        numbers,
        steps=2200 if numbers else 1500,
        seed=seed,
        policy=PolicyConfig(encoder="patches", encoder_size=32),
        control=ControlConfig(
            actor_hidden=(64, 64),
            critic_hidden=(64, 64),
            value=ValueConfig(low=-8.0 if numbers else -4.0, high=0.0, atoms=41),
        ),
        d4pg=D4PGConfig(
            batch=64, steps=1, discount=0.8, actor_rate=5e-4, critic_rate=2e-3, target_period=1, target_share=0.05
        ),
        replay=ReplayConfig(capacity=5000),
        limiter=LimiterConfig(samples_per_insert=32.0, minimum=200),
    )


@pytest.mark.parametrize("numbers", [0, 1])
def test_a_dot_is_learned_to_be_moved_to_its_target(tmp_path, numbers, learning_seed):
    """From the image alone, and from an image and a vector. False alarms: none in 5 seeds of each. It takes ten
    seconds of one core."""
    train(learnable(numbers, learning_seed), tmp_path)
    assert evaluate(tmp_path, episodes=50)["mean_return"] > -0.3


def test_images_stay_bytes_in_the_replay_and_in_unfinished_transitions(tmp_path, caplog):
    """Two observations of 256 bytes and two floats, two floats of action, a reward and a discount."""
    caplog.set_level("INFO")
    run = train(small(), tmp_path)
    columns = run.collection.replay.state_dict()["parts"][0]
    for side in ("obs", "next_obs"):
        assert columns[f"{side}/screen"].dtype == torch.uint8 and columns[f"{side}/screen"].shape[1:] == (SIDE, SIDE, 1)
        assert columns[f"{side}/target"].dtype == torch.float32
        assert set(columns[f"{side}/screen"].sum((1, 2, 3)).tolist()) == {9 * 255}, "one dot in every image"
    assert run.collection.explorer.state_dict()["nstep"]["obs/screen"].dtype == torch.uint8
    assert f"transitions of {2 * (256 + 8) + 8 + 4 + 4} bytes" in caplog.text


def test_a_resumed_run_has_the_same_bits(tmp_path):
    """Encoder, targets, optimisers, replay and random shifts."""
    whole = small(deterministic=True)
    whole = dataclasses.replace(whole, d4pg=dataclasses.replace(whole.d4pg, random_shift=2))
    train(whole, tmp_path / "whole")
    train(dataclasses.replace(whole, steps=200), tmp_path / "parts")
    train(whole, tmp_path / "parts", resume="latest")
    assert_equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert any("encoder" in name for name in weights(tmp_path / "whole"))
    one, other = (
        CheckpointFolder(tmp_path / name / "checkpoints").load().state["agent"] for name in ("whole", "parts")
    )
    assert one.pop("parts") == other.pop("parts")
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_replay_of_frames_trains_the_same_weights(tmp_path, caplog):
    """To the bit, also when it resumes. There is one frame in a step, and one more at the start of an episode."""
    caplog.set_level("INFO")
    plain = small(deterministic=True, replay=ReplayConfig(capacity=300))
    framed = dataclasses.replace(plain, replay=ReplayConfig(capacity=300, stack=1))
    train(plain, tmp_path / "plain")
    train(dataclasses.replace(framed, steps=200), tmp_path / "framed")
    run = train(framed, tmp_path / "framed", resume="latest")
    assert_equal(weights(tmp_path / "plain"), weights(tmp_path / "framed"))
    assert isinstance(run.collection.replay, FrameReplay)
    frames = run.collection.replay.state_dict()["parts"][0]["frames/screen"]
    assert frames.dtype == torch.uint8 and len(frames) < 1.4 * len(run.collection.replay)
    with pytest.raises(UsageError, match=r"cannot resume .* with replay\.stack 0 instead of 1"):
        train(dataclasses.replace(plain, steps=800), tmp_path / "framed", resume="latest")


def test_control_tasks_from_pixels_resume_to_the_same_bits(tmp_path):
    """Simulators, stacks of frames, random shifts and the replay of frames."""
    pytest.importorskip("dm_control")
    env = "dmc:pendulum-swingup?pixels=16&frameskip=8&shadows=false"
    try:
        resolve(env).make(0).close()
    except UsageError as error:
        pytest.skip(str(error))
    whole = small(
        env=env,
        steps=60,
        deterministic=True,
        pool=PoolConfig(num_envs=1, kind="serial"),
        d4pg=D4PGConfig(batch=16, steps=3, random_shift=2),
        replay=ReplayConfig(capacity=30, stack=3),
        limiter=LimiterConfig(samples_per_insert=16.0, minimum=16),
    )
    train(whole, tmp_path / "whole")
    train(dataclasses.replace(whole, steps=30), tmp_path / "parts")
    train(whole, tmp_path / "parts", resume="latest")
    assert_equal(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_without_images_there_are_no_frames_to_store(tmp_path):
    config = small(env="gym:Pendulum-v1", policy=PolicyConfig(), replay=ReplayConfig(capacity=300, stack=3))
    with pytest.raises(UsageError, match=r"replay\.stack is 3, but no observation is an image; allowed: 0"):
        train(config, tmp_path)


def test_without_a_recipe_the_replay_of_images_is_smaller():
    """A million transitions of images would rarely fit into memory."""
    config, chosen_for = default_config("tests.integration.test_d4pg_images:Dot?numbers=1", "d4pg")
    assert config.replay.capacity == 100_000 and "images and vectors" in chosen_for
    assert default_config("gym:Pendulum-v1", "d4pg")[0].replay == ReplayConfig()


def test_two_ranks_train_the_same_encoder(tmp_path):
    config, folder = small(), tmp_path

    def work():
        run = train(config, folder)
        return {name: value.clone() for name, value in run.policy.state_dict().items()}

    first, second = on_ranks(2, work)
    assert_equal(first, second)


def test_its_policy_is_evaluated_and_exported(copied):
    pytest.importorskip("onnx")
    assert evaluate(copied, episodes=4)["mean_length"] == LENGTH
    for format in ("onnx", "torchscript"):
        exported = export(copied, format)  # compares the file with the policy
        assert exported.verified_with is not None
        assert [(port.name, port.dtype) for port in exported.inputs] == [("screen", "uint8"), ("target", "float32")]


def test_another_run_takes_the_encoder_and_keeps_it(trained, tmp_path):
    """The image has another name there. Frozen weights keep their bits, and so does the target encoder."""
    config = small(numbers=0, init_from=str(trained), init="encoder", freeze="encoder", seed=3)
    theirs = CheckpointFolder(trained / "checkpoints").load().weights
    with Session(config, tmp_path / "new") as session:
        learner = session.learners[0]
        before = copy.deepcopy(learner.policy.state_dict())
        session.run()
        after, rest = learner.policy.state_dict(), learner.state_dict()
    encoder = [name for name in before if name.startswith("encoder.")]
    assert len(encoder) == 6
    for name in encoder:
        assert torch.equal(before[name], theirs[name]) and torch.equal(after[name], theirs[name])
        assert torch.equal(rest["critic"][name], theirs[name]) and torch.equal(
            rest["target_critic"][name], theirs[name]
        )
    assert not torch.equal(before["torso.layers.0.weight"], after["torso.layers.0.weight"])


def test_a_whole_policy_is_taken_and_trained_on(trained, tmp_path):
    config = small(init_from=str(trained), init="encoder+policy+critic", seed=3)
    old = CheckpointFolder(trained / "checkpoints").load()
    with Session(config, tmp_path / "new") as session:
        learner = session.learners[0]
        assert_equal(learner.policy.state_dict(), old.weights)
        assert_equal(learner.state_dict()["critic"], old.state["agent"]["critic"])
        assert_equal(learner.state_dict()["target_policy"], old.weights)
        session.run()
    assert not torch.equal(
        learner.policy.state_dict()["encoder.trunk.images.0.patch.weight"],
        old.weights["encoder.trunk.images.0.patch.weight"],
    )


def test_a_policy_that_only_its_encoder_could_change_is_refused(trained, tmp_path):
    config = small(init_from=str(trained), freeze="policy")
    with pytest.raises(UsageError, match="freeze policy leaves no policy to train.*allowed: encoder"):
        train(config, tmp_path / "new")


def test_another_encoder_is_refused_on_resume(copied):
    other = small(policy=PolicyConfig(encoder="impala", encoder_size=16), steps=800)
    with pytest.raises(UsageError, match=r"policy\.encoder impala instead of patches"):
        train(other, copied, resume="latest")
