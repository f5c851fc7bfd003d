"""Shared memory that a GPU can read without staging."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from tests.pool.faulty import counting

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_are_pinned_and_arrive_on_the_device():
    with ProcessPool(counting(), PoolConfig(num_envs=4, workers=2, pin_memory=True), seed=0) as pool:
        for turn in range(5):
            batch = pool.recv(min_slots=None)
            tensor = torch.from_numpy(batch.obs["obs"])
            assert tensor.is_pinned()
            on_device = tensor.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            assert (on_device.cpu()[:, 2] == turn).all()
            pool.send(np.zeros(4, np.int64), batch.slots)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_pool_after_another_may_be_pinned():
    """The next one's memory may come to lie where the last one's was."""
    for _ in range(5):
        with ProcessPool(counting(), PoolConfig(num_envs=4, workers=2, pin_memory=True), seed=0) as pool:
            kept = torch.from_numpy(pool.recv(min_slots=None).obs["obs"])
            assert kept.is_pinned()
        assert not kept.is_pinned()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_it_is_a_clear_error():
    with pytest.raises(UsageError, match="pin_memory needs CUDA"):
        ProcessPool(counting(), PoolConfig(num_envs=1, workers=1, pin_memory=True), seed=0)
