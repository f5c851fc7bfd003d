"""Numbers that are not finite on a device: noted there without a wait, and named where episodes are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.errors import SimulatorError
from paceline.pool.seeds import env_seed
from paceline.pool.tensor import TensorPool, TensorStep

NAN, INF = float("nan"), float("inf")

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Tensors:
    """Four environments, episodes of three steps. `poison`: ("obs", "final_obs" or "reset", step, value)."""

    frameskip = 1
    recordable = True

    def __init__(self, poison=None, device="cpu", entry="body"):
        self.num_envs, self.device = 4, torch.device(device)
        self.observation_space = spaces.Dict(
            body=spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
            number=spaces.Discrete(100),
            height=spaces.Box(-np.inf, np.inf, (), np.float32),
        )
        self.action_space = spaces.Discrete(2)
        self._where, at, value = poison or ("", 0, 0.0)
        self._entry, self._at = entry, at
        self._poison = torch.full((), value, device=device)
        self._step = torch.zeros(4, dtype=torch.int64, device=device)

    def _observe(self, where):
        body = self._step[:, None, None].float().expand(4, 2, 3).clone()
        height = self._step.float() / 2
        due = (self._step == self._at) & (torch.arange(4, device=self.device) == 2) & (where == self._where)
        if self._entry == "body":
            body[:, 1, 1] = torch.where(due, self._poison, body[:, 1, 1])
        else:
            height = torch.where(due, self._poison, height)
        return {"body": body, "number": self._step.clone(), "height": height}

    def reset(self, seed):
        self._step.zero_()
        return self._observe("reset")

    def step(self, actions):
        self._step += 1
        final_obs = self._observe("final_obs")
        ended = self._step == 3
        self._step.masked_fill_(ended, 0)
        never = torch.zeros_like(ended)
        return TensorStep(self._observe("obs"), torch.ones(4, device=self.device), ended, never, final_obs)

    def state_dict(self):
        return {"step": self._step}

    def load_state_dict(self, state):
        self._step.copy_(state["step"])


def turns(pool, num, device="cpu"):
    for _ in range(num):
        batch = pool.recv(None)
        pool.send(torch.zeros(4, dtype=torch.int64, device=device), batch.slots)


TENSOR_FAULTS = {
    "step": (("obs", 2, NAN), "in step", "episode 0, step 1"),
    "inf": (("obs", 1, -INF), "in step", "episode 0, step 0"),
    "final": (("final_obs", 3, NAN), "in step", "episode 0, step 2"),
    "next": (("obs", 0, NAN), "in reset", "episode 1, step 0"),
    "reset": (("reset", 0, INF), "in reset", "episode 0, step 0"),
}


@pytest.mark.parametrize("entry", ["body", "height"])
@pytest.mark.parametrize(("poison", "phase", "when"), TENSOR_FAULTS.values(), ids=TENSOR_FAULTS)
def test_tensor_pool_nan_observation_is_named_without_sync(poison, phase, when, entry):
    """`recv` and `send` know nothing of it; `take_episodes`, which waits anyway, names the first of many."""
    pool = TensorPool([Tensors(poison, entry=entry)], seed=11)
    turns(pool, 20)
    value = abs(poison[2]) if entry == "body" else poison[2]
    words = rf"{phase} \(slot 2, seed {env_seed(11, 0)}, {when}\): observation '{entry}' is not finite: .* {value}$"
    with pytest.raises(SimulatorError, match=words):
        pool.take_episodes()


def test_tensor_pool_final_observation_without_an_end_means_nothing():
    pool = TensorPool([Tensors(("final_obs", 2, NAN))])
    turns(pool, 20)
    assert len(pool.take_episodes()) == 4 * 6


def test_tensor_pool_huge_observations_are_finite():
    pool = TensorPool([Tensors(("obs", 1, -3e38))])
    turns(pool, 4)
    assert len(pool.take_episodes()) == 4


def test_tensor_pool_remembers_a_bad_observation_in_its_state():
    pool, other = TensorPool([Tensors(("obs", 2, NAN))], seed=11), TensorPool([Tensors()], seed=12)
    turns(pool, 5)
    pool.recv(None)
    other.restore(pool.state())
    turns(other, 5)
    with pytest.raises(
        SimulatorError, match=rf"slot 2, seed {env_seed(11, 0)}, episode 0, step 1\): observation 'body'"
    ):
        other.take_episodes()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(("poison", "phase", "when"), TENSOR_FAULTS.values(), ids=TENSOR_FAULTS)
def test_recorded_steps_on_a_gpu_name_a_bad_observation(poison, phase, when, record):
    pool = TensorPool([Tensors(poison, "cuda")], seed=11, record=record)
    turns(pool, 6, "cuda")  # recorded by now
    torch.cuda.set_sync_debug_mode("error")
    try:
        turns(pool, 20, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(
        SimulatorError, match=rf"{phase} \(slot 2, seed \d+, {when}\): observation 'body' is not finite"
    ):
        pool.take_episodes()
