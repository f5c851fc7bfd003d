"""Environment ids of `pointnav`: in every kind of pool, and errors of wrong ids."""

import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
import torch

from paceline.envs import resolve
from paceline.envs.ids import EnvId
from paceline.envs.registry import load
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool

ID = "pointnav:small?split=val&scenes=2&resolution=8"


def test_ids():
    assert resolve("pointnav").make.config.tier == "small"
    assert resolve("pointnav:full").make.config.tier == "full"
    config = resolve("pointnav?tier=full&split=val&resolution=32&sensors=depth+rgb&gps=false").make.config
    assert (config.tier, config.split, config.resolution, config.gps) == ("full", "val", 32, False)
    assert str(EnvId.parse("pointnav?tier=small")) == "pointnav?tier=small"
    assert resolve("pointnav").label == "pointnav"
    assert list(load("pointnav").names()) == ["small", "full"]


def test_sensors_survive_a_url():
    """In a query, + means a space."""
    assert resolve("pointnav?sensors=depth%2Brgb").make.config.sensors == "depth+rgb"
    assert resolve("pointnav?sensors=depth+rgb").make.config.sensors == "depth+rgb"


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("pointnav:tiny", "tier 'tiny'.*allowed: small, full"),
        ("pointnav?tier=tiny", "tier is 'tiny'; allowed: small, full"),
        ("pointnav:small?tier=full", "two tiers"),
        ("pointnav?resolution=0", "resolution is 0; allowed: 1 to 1024"),
        ("pointnav?sensors=lidar", "sensors is 'lidar'"),
        ("pointnav?resolutoin=64", "'resolutoin'.*did you mean 'resolution'"),
        ("pointnavv", "did you mean 'pointnav'"),
        ("pointnav?plans=", "^plans is empty in 'pointnav.plans='; allowed: a path, or no plans$"),
        ("objectnav?bank_file=", "bank_file is empty in .*; allowed: a path, or no bank_file"),
        ("pointnav?plans=2024", "plans is 2024; allowed: text, in quotes if .* another value: plans='2024'$"),
        ("pointnav?plans=true", "plans is True; allowed: text, .*: plans='true'$"),
        ("pointnav?tier=5", "tier is 5; allowed: small, full"),
        ("pointnav?max_distance=0.5", "max_distance is 0.5; allowed: 1 or more"),
        ("imagenav?max_distance=0", "max_distance is 0; allowed: 1 or more"),
    ],
)
def test_bad_ids_say_what_is_allowed(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)


def test_in_a_tensor_pool():
    with make_pool(ID, PoolConfig(num_envs=6, groups=2), seed=1) as pool:
        batch = pool.recv(None)
        assert isinstance(batch.obs["depth"], torch.Tensor)
        assert batch.obs["depth"].shape == (6, 1, 8, 8)
        assert pool.spec.num_groups == 2


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_one_at_a_time_in_the_other_pools(kind):
    config = PoolConfig(kind=kind, num_envs=2, workers=1 if kind == "process" else None)
    with make_pool(f"{ID}&max_episode_steps=4", config, seed=1) as pool:
        for _ in range(8):
            batch = pool.recv(min_slots=None)
            assert isinstance(batch.obs["depth"], np.ndarray)
            assert batch.obs["depth"].shape == (2, 1, 8, 8)
            pool.send(np.ones(2, np.int64), batch.slots)
        pool.recv(min_slots=None)
        episodes = pool.take_episodes()
        assert [episode.length for episode in episodes] == [4] * 4
        assert episodes[0].info["geodesic"] >= 1.0


def test_a_factory_travels_without_torch():
    child = """
import sys, cloudpickle
factory = cloudpickle.load(sys.stdin.buffer)
assert "torch" not in sys.modules
env = factory.single.make(0)
env.reset(seed=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", child],
        input=cloudpickle.dumps(resolve(ID)),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
