"""Vector environments of the user's own in every autoreset mode, against the same environments stepped singly."""

from __future__ import annotations

import functools
import io
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from paceline.envs import resolve
from paceline.errors import SimulatorError, UsageError
from paceline.pool import PoolConfig, make_pool
from paceline.pool.seeds import env_seed
from paceline.pool.spaces import leaves
from paceline.pool.vector_arrays import action_tree
from tests.pool.vector_envs import KINDS, MODES, Alone, Numbers

NAN = float("nan")


def numbers(mode: str, arrays: str = "torch", nested: bool = False):
    return functools.partial(Numbers, mode=mode, arrays=arrays, nested=nested)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("arrays", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_stream_is_that_of_the_environment_stepped_singly(mode, arrays, nested, groups):
    """No step is lost or invented, and ends have their last observations, rewards, episodes and measures."""
    num_envs, generator = 7, torch.Generator().manual_seed(3)
    pool = make_pool(numbers(mode, arrays, nested), PoolConfig(num_envs=num_envs, groups=groups))
    first = [
        numbers_in_group for group in range(groups) for numbers_in_group in range(len(pool.spec.group_envs(group)))
    ]
    alone = [Alone(number) for number in first]
    decided: list[int | None] = [None] * num_envs
    episodes: list[list[tuple]] = [[] for _ in alone]
    returns = [0.0] * num_envs
    name = "it" if nested else "obs"
    for _ in range(60):
        batch = pool.recv(None)
        for slot, env in enumerate(alone):
            action = decided[slot]
            flags = bool(batch.terminated[slot]), bool(batch.truncated[slot])
            if action is None:
                assert flags == (False, False) and batch.reward[slot] == 0 and batch.active[slot]
            else:
                reward, terminated, truncated = env.step(action)
                returns[slot] += reward
                assert batch.reward[slot] == reward and flags == (terminated, truncated and not terminated)
                if terminated or truncated:
                    assert batch.final_obs[name][slot].tolist() == env.observe()
                    episodes[slot].append((slot, returns[slot], env.step_number, {"length": env.step_number}))
                    returns[slot] = 0.0
                    env.reset()
            if batch.active[slot]:
                assert batch.obs[name][slot].tolist() == env.observe()
                if nested:
                    assert batch.obs["more.0"][slot] == env.step_number
            else:
                assert mode == "NEXT_STEP" and any(flags), "only until the next step"
        assert all(values.dtype in (torch.float32, torch.int64) for values in batch.obs.values())
        actions = torch.randint(3, (num_envs,), generator=generator)
        decided = [int(action) if active else None for action, active in zip(actions, batch.active, strict=True)]
        pool.send({"a": actions} if nested else actions, batch.slots)
    pool.recv(None)
    found: list[list[tuple]] = [[] for _ in alone]
    for episode in pool.take_episodes():
        found[episode.slot].append((episode.slot, episode.episode_return, episode.length, dict(episode.info)))
    for own, expected in zip(found, episodes, strict=True):
        assert len(expected) >= 6 and own[: len(expected)] == expected and len(own) <= len(expected) + 1


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_own_vector_environments_run_the_same(mode):
    """CartPole, against one after the other. They give last observations as arrays of objects."""

    def make(num_envs, device):
        return SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1", max_episode_steps=20)] * num_envs, autoreset_mode=AutoresetMode[mode]
        )

    pool, seed = make_pool(make, PoolConfig(num_envs=3), seed=5), env_seed(5, 0)
    alone = [gymnasium.make("CartPole-v1", max_episode_steps=20) for _ in range(3)]
    seen = [env.reset(seed=seed + number)[0] for number, env in enumerate(alone)]
    decided: list = [None] * 3
    generator, ends = torch.Generator().manual_seed(0), [0, 0]
    for _ in range(120):
        batch = pool.recv(None)
        for slot, env in enumerate(alone):
            if decided[slot] is not None:
                last, reward, terminated, truncated, _ = env.step(decided[slot])
                seen[slot] = last
                assert batch.reward[slot] == reward
                assert (batch.terminated[slot], batch.truncated[slot]) == (terminated, truncated and not terminated)
                if terminated or truncated:
                    ends[int(truncated and not terminated)] += 1
                    np.testing.assert_array_equal(batch.final_obs["obs"][slot], last)
                    seen[slot] = env.reset()[0]
            if batch.active[slot]:
                np.testing.assert_array_equal(batch.obs["obs"][slot], seen[slot])
        actions = torch.randint(2, (3,), generator=generator)
        decided = [int(action) if active else None for action, active in zip(actions, batch.active, strict=True)]
        pool.send(actions, batch.slots)
    assert min(ends) > 0, "some were terminated, some truncated"


class Faulty(Numbers):
    """`Numbers` with one thing wrong."""

    def __init__(self, num_envs, device="cpu", mode="SAME_STEP", wrong=""):
        super().__init__(num_envs, device, mode)
        self._wrong = wrong
        if wrong == "metadata":
            self.metadata = {}
        elif wrong == "mode":
            self.metadata = {"autoreset_mode": "sometimes"}
        elif wrong == "num_envs":
            self.num_envs += 1
        elif wrong == "space":
            self.single_observation_space = None

    def _observation(self):
        obs = super()._observation()
        if self._wrong == "shape":
            return obs[:, :2]
        if self._wrong == "device":
            return obs.to("meta")
        if self._wrong == "list":
            return obs.tolist()
        return obs.to(torch.complex64) if self._wrong == "dtype" else obs

    def step(self, actions):
        obs, reward, terminated, truncated, infos = super().step(actions)
        if self._wrong == "reward":
            return obs, reward[:, None], terminated, truncated, infos
        if self._wrong == "flags":
            return obs, reward, terminated.float(), truncated, infos
        if self._wrong == "final_obs":
            infos.pop("final_obs", None)
        if self._wrong == "measure":
            infos.get("final_info", {}).pop("length", None)
        if self._wrong == "nan reward":
            reward[2] = NAN
        if self._wrong == "nan observation":
            obs[2, 1] = NAN
        if self._wrong == "nan final" and "final_obs" in infos:
            infos["final_obs"][:, 1] = NAN
        return obs, reward, terminated, truncated, infos


def steps(wrong: str, count: int = 30, mode: str = "SAME_STEP") -> None:
    pool = make_pool(functools.partial(Faulty, mode=mode, wrong=wrong), PoolConfig(num_envs=4))
    for _ in range(count):
        batch = pool.recv(None)
        pool.send(torch.zeros(4, dtype=torch.int64), batch.slots)
    pool.take_episodes()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("metadata", r"metadata of .* has no 'autoreset_mode'; allowed: .*NEXT_STEP, SAME_STEP or DISABLED"),
        ("mode", r"the autoreset_mode 'sometimes'; allowed: .*NEXT_STEP, SAME_STEP or DISABLED"),
        ("num_envs", "has num_envs 5; allowed: 4, as the function is given"),
        ("space", "lacks single_observation_space"),
        ("shape", r"observation 'obs' has shape \(4, 2\); allowed: \(4, 3\)"),
        ("dtype", "observation 'obs' is complex64; allowed: float32"),
        ("device", "observation 'obs' is on meta; allowed: cpu, the device that the function is given"),
        ("list", "observation 'obs': a list; allowed: torch tensors, or arrays with __dlpack__"),
        ("reward", r"the reward has shape \(4, 1\); allowed: \(4,\)"),
        ("flags", "terminated is float32; allowed: bool"),
        ("final_obs", r"truncated an episode .* SAME_STEP without its last observation; allowed: infos\['final_obs'\]"),
        ("measure", "announces the measure 'length', which is not in its infos"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(wrong, said):
    with pytest.raises(UsageError, match=said) as error:
        steps(wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrong", ["nan reward", "nan observation", "nan final"])
def test_numbers_that_are_not_finite_end_the_run(wrong, mode):
    if wrong == "nan final" and mode != "SAME_STEP":
        pytest.skip("only there it is another array")
    with pytest.raises(SimulatorError, match="nan"):
        steps(wrong, mode=mode)


def test_choices_that_do_not_exist_are_named():
    class Beyond(Numbers):
        def _tree(self, obs):
            tree = super()._tree(obs)
            return tree | {"more": (tree["more"][0] + 1000,)}

    with pytest.raises(UsageError, match=r"observation 'more.0' is outside Discrete\(1000, start=5\)"):
        make_pool(functools.partial(Beyond, nested=True), PoolConfig(num_envs=2))


def test_a_simulator_that_can_be_saved_goes_on_as_it_would_have():
    """With `NEXT_STEP`, also between the end of an episode and the reset."""

    class Saved(Numbers):
        def state_dict(self):
            return {"envs": [(env.episode, env.step_number) for env in self.envs], "flags": self._flags.clone()}

        def load_state_dict(self, state):
            for env, saved in zip(self.envs, state["envs"], strict=True):
                env.episode, env.step_number = saved
            self._flags.copy_(state["flags"])

    def advance(pool, count):
        seen = []
        for _ in range(count):
            batch = pool.recv(None)
            seen.append((batch.obs["obs"].tolist(), batch.active.tolist(), batch.terminated.tolist()))
            pool.send(torch.zeros(5, dtype=torch.int64), batch.slots)
        return seen

    for steps_before in range(1, 6):
        pool, other = (make_pool(functools.partial(Saved, mode="NEXT_STEP"), PoolConfig(num_envs=5)) for _ in range(2))
        advance(pool, steps_before)
        held = pool.recv(None)
        state, active = pool.state(), held.active.tolist()
        assert len(other.restore(state)) == 0
        again = other.recv(None)
        assert again.active.tolist() == active and torch.equal(again.obs["obs"], held.obs["obs"])
        for own in (pool, other):
            own.send(torch.zeros(5, dtype=torch.int64), own._slots((0,)))
        assert advance(pool, 6) == advance(other, 6)


def test_one_that_cannot_be_saved_says_so():
    pool = make_pool(numbers("SAME_STEP"), PoolConfig(num_envs=2))
    pool.recv(None)
    with pytest.raises(UsageError, match="cannot be saved, because it has no state_dict"):
        pool.state()


def test_a_state_that_could_not_be_loaded_again_is_not_saved():
    class Saved(Numbers):
        def state_dict(self):
            return {"plain": [1, 2.0, "three", None, torch.zeros(2)], "odd": [{"deep": np.float32(1.5)}]}

        def load_state_dict(self, state): ...

    pool = make_pool(Saved, PoolConfig(num_envs=2))
    pool.recv(None)
    with pytest.raises(UsageError, match=r"its state_dict holds a numpy.float32; allowed: tensors, numbers"):
        pool.state()


def test_saved_simulators_that_cannot_be_loaded_are_said_to_be_so():
    pool = make_pool(numbers("SAME_STEP"), PoolConfig(num_envs=2))
    buffer = io.BytesIO()
    torch.save({"odd": np.float32(1.5)}, buffer)
    with pytest.raises(UsageError, match="the saved simulators cannot be loaded"):
        pool.restore(buffer.getvalue())


def lengths_of_episodes(env, count: int = 40) -> list[float]:
    pool, found = make_pool(env, PoolConfig(num_envs=3)), []
    for _ in range(count):
        batch = pool.recv(None)
        pool.send(torch.zeros(3, dtype=torch.int64), batch.slots)
        found += [episode.info["length"] for episode in pool.take_episodes()]
    return found


def test_measures_are_read_before_a_reset_writes_over_them():
    class Reused(Numbers):
        def step(self, actions):
            *results, infos = super().step(actions)
            self._length = infos["length"]
            return *results, infos

        def reset(self, *, seed=None, options=None):
            if options is not None:
                self._length.zero_()
            return super().reset(seed=seed, options=options)

    plain = lengths_of_episodes(functools.partial(Numbers, mode="DISABLED"))
    assert plain and min(plain) > 0 and lengths_of_episodes(functools.partial(Reused, mode="DISABLED")) == plain


def test_measures_may_be_absent_where_no_episode_ends():
    class Sparse(Numbers):
        def step(self, actions):
            *results, terminated, truncated, infos = super().step(actions)
            return *results, terminated, truncated, infos if (terminated | truncated).any() else {}

    plain = lengths_of_episodes(functools.partial(Numbers, mode="NEXT_STEP"))
    assert plain and lengths_of_episodes(functools.partial(Sparse, mode="NEXT_STEP")) == plain


def test_actions_with_more_digits_stay_within_their_bounds():
    space = spaces.Box(-0.1, 0.1, (2,), np.float64)
    (leaf,) = leaves(space, "action")
    found = action_tree(space, {leaf.name: torch.full((3, 2), 0.1)}, [leaf], lambda tensor: tensor.numpy())
    assert found.dtype == np.float64 and all(space.contains(row) for row in found)


def test_the_environment_is_closed_with_the_pool():
    closed = []

    class Closing(Numbers):
        def close_extras(self, **kwargs):
            closed.append(True)

    with make_pool(Closing, PoolConfig(num_envs=2)) as pool:
        pool.recv(None)
    pool.close()
    assert closed == [True]


MODULE = """
from tests.pool.vector_envs import Numbers

def make(num_envs, device, mode="SAME_STEP"):
    return Numbers(num_envs, device, mode)

def forgot():
    return Numbers(2)

class Nothing:
    def __init__(self, num_envs, device): pass
"""


@pytest.mark.parametrize(
    "address", ["paceline_vectors:make", "./paceline_vectors.py:make", "tensor:paceline_vectors:make"]
)
def test_a_function_in_a_module_or_a_file_gets_the_number_of_environments(tmp_path, monkeypatch, address):
    (tmp_path / "paceline_vectors.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    try:
        with make_pool(f"{address}?mode=NEXT_STEP", PoolConfig(num_envs=5)) as pool:
            assert pool.spec.on_device and pool.spec.num_envs == 5 and len(pool.recv(None)) == 5
        module = address.rpartition(":")[0]
        with pytest.raises(UsageError, match="option 'num_envs' .* --pool.num-envs sets it"):
            resolve(f"{address}?num_envs=3")
        if not address.startswith("tensor:"):
            with pytest.raises(UsageError, match="runs only in the 'tensor' pool"):
                make_pool(address, PoolConfig(num_envs=5, kind="process"))
            with pytest.raises(
                UsageError, match="is a vector environment; allowed: from a function with .*num_envs and device"
            ):
                make_pool(f"{module}:forgot", PoolConfig(num_envs=2, kind="serial"))
            with pytest.raises(
                UsageError, match="Nothing is no tensor simulator: it lacks .*VectorEnv is allowed, too"
            ):
                make_pool(f"{module}:Nothing", PoolConfig(num_envs=2))
    finally:
        sys.modules.pop("paceline_vectors", None)
