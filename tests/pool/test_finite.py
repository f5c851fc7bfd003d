"""A number that is not finite never gets past a pool: it is refused where it comes from, and named."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from paceline.checkpoint import CheckpointFolder
from paceline.config import Config
from paceline.envs.factory import Factory
from paceline.errors import SimulatorError
from paceline.learner.config import PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.pool.finite_values import FEW, all_finite, is_extreme
from paceline.pool.process import ProcessPool
from paceline.pool.seeds import env_seed
from paceline.pool.serial import SerialPool
from paceline.pool.spaces import BadValue, ObservationWriter
from paceline.session import train
from tests.pool.poisoned import BODY, DEPTH, LENGTH, Poisoned, PoisonedMortal

pytestmark = pytest.mark.usefixtures("forked_workers")

KINDS = {"serial": SerialPool, "process": ProcessPool}
NAN, INF, BEYOND = float("nan"), float("inf"), 1e39


def build(kind, tmp_path, entry, value, on_error="stop", **options):
    factory = Factory(make=lambda env: Poisoned(env, entry, value, mark=tmp_path / "mark", **options))
    config = PoolConfig(num_envs=4, workers=2, nice=0, on_error=on_error)
    return KINDS[kind](factory, config, seed=11)


def run(pool, turns):
    """The steps that the slots show, and those that are lost, turn by turn."""
    shown, lost = [], []
    for _ in range(turns):
        batch = pool.recv(min_slots=None)
        assert all(np.isfinite(values).all() for values in batch.obs.values())
        assert np.isfinite(batch.reward).all()
        shown.append(batch.obs[BODY][:, 0].tolist())
        lost.append(batch.slots[batch.lost].tolist())
        pool.send(np.zeros(len(batch), np.int64), batch.slots)
    return shown, lost


def refused(kind, tmp_path, entry, value, **options):
    """The failure with which a pool stops."""
    pool = None
    try:
        # A serial pool resets when it is built.
        with pytest.raises(SimulatorError) as caught, warnings.catch_warnings():  # noqa: PT012
            warnings.simplefilter("ignore")  # NumPy's own, of the cast
            pool = build(kind, tmp_path, entry, value, **options)
            run(pool, 3 * LENGTH)
    finally:
        if pool is not None:
            pool.close()
    failure = caught.value.failure
    assert failure.slots == failure.envs == (2,)
    assert failure.seed == env_seed(11, 2)
    assert not failure.traceback, "a bad value needs none"
    return failure


INDEX = {BODY: "[2]", DEPTH: "[0, 2]"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("entry", "value"), [(BODY, NAN), (DEPTH, NAN), (DEPTH, -INF)])
def test_nan_observation_is_refused(kind, entry, value, tmp_path):
    failure = refused(kind, tmp_path, entry, value, step=3)
    assert (failure.phase, failure.episode, failure.step) == ("step", 0, 2)
    assert failure.cause == f"observation {entry!r} is {value} at index {INDEX[entry]}"
    assert failure.worker == (1 if kind == "process" else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", [BODY, DEPTH])
def test_nan_observation_restarts_the_environment(kind, entry, tmp_path, caplog):
    with build(kind, tmp_path, entry, NAN, on_error="restart", step=3) as pool:
        shown, lost = run(pool, 6)
        lengths = {(episode.slot, episode.length) for episode in pool.take_episodes()}
    assert lost == [[], [], [], [2], [], []]
    assert [steps[2] for steps in shown] == [0, 1, 2, 0, 1, 2], "a new episode in place of the poisoned step"
    assert [steps[1] for steps in shown] == [0, 1, 2, 3, 4, 0], "its neighbours go on"
    assert lengths == {(slot, LENGTH) for slot in (0, 1, 3)}, "the unfinished episode is dropped"
    assert f"observation {entry!r} is nan" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_inf_in_final_obs_is_refused(kind, tmp_path):
    failure = refused(kind, tmp_path, BODY, INF, episode=1, step=LENGTH)
    assert (failure.phase, failure.episode, failure.step) == ("step", 1, LENGTH - 1)
    assert failure.cause == "observation 'body' is inf at index [2]"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("episode", [0, 1])
def test_nan_in_the_first_observation_of_an_episode_is_refused(kind, episode, tmp_path):
    failure = refused(kind, tmp_path, DEPTH, NAN, episode=episode, step=0)
    assert (failure.phase, failure.episode, failure.step) == ("reset", episode, 0)
    assert failure.cause == "observation 'camera.depth' is nan at index [0, 2]"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entry", [BODY, DEPTH])
def test_float64_overflow_is_refused(kind, entry, tmp_path):
    """Finite in the environment's float64, infinite in the table's float32."""
    failure = refused(kind, tmp_path, entry, BEYOND, step=3, dtype=np.float64)
    assert failure.cause == f"observation {entry!r} is 1e+39 at index {INDEX[entry]}, which is beyond float32"
    assert failure.step == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("value", "words"),
    [(NAN, "nan"), (BEYOND, "1e+39, which is beyond float32"), (-BEYOND, "-1e+39, which is beyond float32")],
)
def test_reward_beyond_float32_is_refused(kind, value, words, tmp_path):
    failure = refused(kind, tmp_path, "reward", value, step=3)
    assert failure.cause == f"the reward is {words}"
    assert (failure.episode, failure.step) == (0, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("what", "at", "cause"),
    [
        ("reward", 2, "the reward is nan"),
        ("obs", 2, "observation 'obs' is nan at index [3]"),
        ("obs", 4, "observation 'obs' is nan at index [3]"),
        ("obs", None, "observation 'obs' is nan at index [3]"),
    ],
    ids=["reward", "step", "final", "reset"],
)
def test_multi_agent_values_name_agent_and_slot(kind, what, at, cause):
    """Bert is the second agent of the second environment, and its last one."""
    pool = None
    try:
        with pytest.raises(SimulatorError) as caught:  # noqa: PT012 - a serial pool resets when built
            pool = KINDS[kind](
                Factory(make=lambda env: PoisonedMortal(env, what, at)), PoolConfig(num_envs=2, workers=2)
            )
            for _ in range(6):
                batch = pool.recv(min_slots=None)
                pool.send(np.zeros(len(batch), np.int64), batch.slots)
    finally:
        if pool is not None:
            pool.close()
    failure = caught.value.failure
    assert failure.cause == f"agent 'bert' (slot 4): {cause}"
    assert failure.slots == (3, 4, 5)
    assert (failure.phase, failure.step) == (("step", at - 1) if at else ("reset", 0))


@pytest.mark.parametrize("size", [1, 4, FEW, FEW + 1, 5000])
def test_any_bits_are_judged_as_numpy_judges_them(size):
    """Random bits hold NaN, infinity, subnormal and huge numbers."""
    rng = np.random.default_rng(size)
    space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
    table = np.zeros((3, size), np.float32)
    writer = ObservationWriter(space, {"obs": table})
    num_refused = 0
    for _ in range(300):
        values = rng.integers(0, 2**32, size, np.uint32).view(np.float32)
        if rng.random() < 0.7:  # so that long ones are finite too
            values[~np.isfinite(values)] = np.finfo(np.float32).max
        finite = bool(np.isfinite(values).all())
        assert all_finite(values) == finite
        assert finite or is_extreme(values.tobytes())
        if finite:
            writer.write(values, 1)
            assert table[1].tobytes() == values.tobytes()
        else:
            num_refused += 1
            with pytest.raises(BadValue, match="observation 'obs' is"):
                writer.write(values, 1)
    assert num_refused < 300
    assert not table[[0, 2]].any()


def test_a_number_alone_and_an_empty_array_can_be_observed():
    space = spaces.Dict(number=spaces.Box(-1, 1, (), np.float32), nothing=spaces.Box(-1, 1, (0,), np.float32))
    table = {"number": np.zeros(2, np.float32), "nothing": np.zeros((2, 0), np.float32)}
    writer = ObservationWriter(space, table)
    writer.write({"number": 0.5, "nothing": np.zeros(0, np.float32)}, 1)
    assert table["number"].tolist() == [0, 0.5]
    with pytest.raises(BadValue, match="observation 'number' is nan$"):
        writer.write({"number": NAN, "nothing": np.zeros(0, np.float32)}, 1)


@pytest.fixture
def config(tmp_path):
    """512 steps of CartPole, one observation of which is NaN."""
    return Config(
        env=f"tests.pool.poisoned:cartpole?mark={tmp_path / 'mark'}",
        steps=512,
        rollout_steps=32,
        device="cpu",
        pool=PoolConfig(kind="serial", num_envs=4),
        policy=PolicyConfig(hidden=(16,)),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )


def test_training_ends_with_the_observation_that_was_nan(config, tmp_path):
    with pytest.raises(
        SimulatorError, match=r"slot 1, seed \d+, episode \d+, step \d+\): observation 'obs' is nan at index \[1\]"
    ) as caught:
        train(config, tmp_path / "run")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "run" / "checkpoints" / "latest").exists()


def test_training_goes_on_with_a_replaced_environment_and_finite_weights(config, tmp_path, caplog):
    config = dataclasses.replace(config, pool=dataclasses.replace(config.pool, on_error="restart"))
    run = train(config, tmp_path / "run")
    assert run.step >= 512
    assert "observation 'obs' is nan" in caplog.text
    weights = CheckpointFolder(tmp_path / "run" / "checkpoints").load("latest").weights
    bad = [name for name, tensor in weights.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    assert bad == ["normalizers.0.limit"], "only the bound that this policy does not have"
