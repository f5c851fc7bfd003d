"""Batched simulators in torch: CartPole against Gymnasium's, and the pool's contract on the host and on a GPU, with one
agent per environment and with several."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.envs.registry import resolve
from paceline.envs.tensor_cartpole import TensorCartPole, dynamics
from paceline.errors import SimulatorError, UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.make_tensor import make_tensor_pool
from paceline.pool.protocol import Pool
from paceline.pool.seeds import env_seed
from paceline.pool.tensor import TensorPool, TensorStep
from paceline.pool.tensor_episodes import EpisodeRing

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]


class Counter:
    """A simulator of identifiable numbers: an observation is 100 * episode + step of its environment, a reward is the
    action, and environment i's episodes end after 2 + i steps, every second one by truncation."""

    frameskip = 3

    def __init__(self, num_envs, device="cpu", first=0):
        self.num_envs, self.device = num_envs, torch.device(device)
        self.observation_space = spaces.Dict({"count": spaces.Box(0, np.inf, (1,), np.float32)})
        self.action_space = spaces.Box(-1e9, 1e9, (), np.float32)
        self._limits = torch.arange(num_envs, device=device) + 2 + first
        self.reset(0)

    def reset(self, seed):
        self._episode = torch.zeros_like(self._limits)
        self._step = torch.zeros_like(self._limits)
        return self._observation()

    def step(self, actions):
        self._step = self._step + 1
        ended = self._step >= self._limits
        truncated = ended & (self._episode % 2 == 1)
        final_obs = self._observation()
        self._episode = self._episode + ended
        self._step = self._step.masked_fill(ended, 0)
        return TensorStep(self._observation(), actions.float(), ended & ~truncated, truncated, final_obs)

    def state_dict(self):
        return {"episode": self._episode, "step": self._step}

    def load_state_dict(self, state):
        self._episode, self._step = state["episode"], state["step"]

    def _observation(self):
        return {"count": (100 * self._episode + self._step).float()[:, None]}


class Trio:
    """A simulator of identifiable numbers with three agents: an observation is (stream of the seed, agent, episode,
    step), a reward is the action. Stream i's episodes end after 2 + i % 4 steps, every second one by truncation."""

    frameskip = 1
    recordable = True
    agents_per_env, agents = 3, ("anna", "bert", "cleo")
    measure_names = ("mark",)

    def __init__(self, num_envs, device="cpu"):
        self.num_envs, self.device = num_envs, torch.device(device)
        self.observation_space = spaces.Box(0, np.inf, (4,), np.float32)
        self.action_space = spaces.Box(-1e9, 1e9, (), np.float32)
        self._state = torch.zeros(num_envs, 3, device=device)
        self._numbers = torch.arange(num_envs, device=device)
        self._agent = torch.arange(3.0, device=device)
        self._tick = torch.tensor([0.0, 0.0, 1.0], device=device)

    def reset(self, seed):
        self._state.zero_()
        self._state[:, 0] = seed % 1000 + self._numbers
        return {"obs": self._observe(self._state)}

    def step(self, actions):
        final = self._state + self._tick
        ended = final[:, 2] >= 2 + final[:, 0] % 4
        truncated = ended & (final[:, 1] % 2 == 1)
        self._state.copy_(final)
        self._state[:, 1] += ended
        self._state[:, 2].masked_fill_(ended, 0)
        self.last_measures = {"mark": (10 * final[:, :1] + self._agent).view(-1)}
        terminated, truncated = (flags.repeat_interleave(3) for flags in (ended & ~truncated, truncated))
        first, last = self._observe(self._state), self._observe(final)
        return TensorStep({"obs": first}, actions.float(), terminated, truncated, {"obs": last})

    def state_dict(self):
        return {"state": self._state.clone()}

    def load_state_dict(self, state):
        self._state.copy_(state["state"])

    def _observe(self, state):
        each = state[:, None].expand(-1, 3, -1)
        agent = self._agent[None, :, None].expand(len(state), -1, 1)
        return torch.cat((each[..., :1], agent, each[..., 1:]), 2).reshape(-1, 4)


class OneOfTrio:
    """The account of one agent of `Trio`, one step at a time."""

    def __init__(self, stream, agent):
        self.stream, self.agent, self.episode, self.step, self.total = stream, agent, 0, 0, 0.0

    def observe(self):
        return [self.stream, self.agent, self.episode, self.step]

    def act(self, action):
        """The final observation, the flags, and (return, length, mark) if the episode ended."""
        self.step, self.total = self.step + 1, self.total + action
        final = self.observe()
        if self.step < 2 + self.stream % 4:
            return final, (False, False), None
        episode = (self.total, self.step, 10 * self.stream + self.agent)
        truncated = self.episode % 2 == 1
        self.episode, self.step, self.total = self.episode + 1, 0, 0.0
        return final, (not truncated, truncated), episode


def trios(groups, device="cpu", seed=3):
    """A pool of seven environments, and the accounts of its slots."""
    bounds = [7 * group // groups for group in range(groups + 1)]
    sizes = np.diff(bounds).tolist()
    pool = TensorPool([Trio(size, device) for size in sizes], seed)
    accounts = [
        OneOfTrio(env_seed(seed, group) % 1000 + env, agent)
        for group, size in enumerate(sizes)
        for env in range(size)
        for agent in range(3)
    ]
    return pool, accounts


def cartpoles(num_envs=8, groups=1, seed=3, device="cpu", env="tensor:cartpole"):
    return make_tensor_pool(resolve(env), PoolConfig(num_envs=num_envs, groups=groups), seed, device)


def test_dynamics_equal_gymnasium():
    env = gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(0)
    states = rng.uniform([-2.3, -3, -0.2, -3], [2.3, 3, 0.2, 3], (300, 4)).astype(np.float32)
    actions = rng.integers(0, 2, 300)
    ours = dynamics(torch.from_numpy(states), torch.from_numpy(actions)).numpy()
    env.reset()
    for state, action, got in zip(states, actions, ours, strict=True):
        env.state = state.astype(np.float64)
        env.steps_beyond_terminated = None
        np.testing.assert_allclose(got, env.step(int(action))[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_cartpole_equals_gymnasium_step_by_step(device):
    """From the same states: observations, rewards, ends; and after an end, a start within the same limits."""
    simulator = TensorCartPole(16, device)
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset()
    obs = simulator.reset(1)["obs"].cpu()
    assert obs.abs().max() <= 0.05
    num_ends = 0
    for step in range(60):
        actions = (torch.arange(16) + step // 2) % 2
        result = simulator.step(actions.to(device))
        final = result.final_obs["obs"].cpu()
        for i in range(16):
            env.state = obs[i].double().numpy()
            env.steps_beyond_terminated = None
            want, reward, terminated, _, _ = env.step(int(actions[i]))
            np.testing.assert_allclose(final[i], want, rtol=1e-5, atol=1e-6)
            assert float(result.reward[i]) == reward
            assert bool(result.terminated[i]) == terminated
            num_ends += terminated
        obs = result.obs["obs"].cpu()
        ended = result.terminated.cpu()
        assert not result.truncated.any()
        assert (obs[~ended] == final[~ended]).all()
        assert (obs[ended].abs() <= 0.05).all()
    assert num_ends > 5


def test_cartpole_is_cut_at_its_time_limit():
    with cartpoles(4, env="tensor:cartpole?max_episode_steps=5") as pool:
        for step in range(1, 11):
            pool.send(torch.full((4,), step % 2), pool.recv(None).slots)
            batch = pool.recv(None)
            assert batch.truncated.tolist() == [step % 5 == 0] * 4
            assert not batch.terminated.any()
            pool._steps[0] = TensorStep(batch.obs, batch.reward, batch.terminated, batch.truncated, batch.final_obs)
            pool._ready = [0]
        assert [(e.slot, e.length, e.episode_return) for e in pool.take_episodes()] == [
            (i, 5, 5.0) for i in range(4)
        ] * 2


def test_cartpole_lasts_500_steps_by_default():
    simulator = TensorCartPole(2)
    simulator.reset(0)
    simulator._steps += 498
    assert not simulator.step(torch.zeros(2)).truncated.any()
    simulator._state *= 0
    assert simulator.step(torch.zeros(2)).truncated.all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_streams_and_episodes(device, groups):
    sizes = [7 * (g + 1) // groups - 7 * g // groups for g in range(groups)]
    firsts = [7 * g // groups for g in range(groups)]
    pool = TensorPool([Counter(n, device, first) for n, first in zip(sizes, firsts, strict=True)])
    assert isinstance(pool, Pool)
    assert (pool.spec.num_slots, pool.spec.frameskip, pool.spec.num_groups) == (7, 3, groups)
    assert pool.spec.on_device
    episode, step, total = np.zeros(7, int), np.zeros(7, int), np.zeros(7)
    want = []
    batch = pool.recv(None)
    assert batch.reward.tolist() == [0.0] * 7
    assert not batch.ended().any()
    assert batch.active.all()
    for k in range(40):
        assert batch.slots.tolist() == list(range(7))
        assert batch.obs["count"][:, 0].tolist() == (100 * episode + step).tolist()
        actions = 10.0 * k + np.arange(7)
        pool.send(torch.tensor(actions, device=device), batch.slots)
        batch = pool.recv(None)
        step, total = step + 1, total + actions
        ended = step == np.arange(7) + 2
        assert batch.reward.tolist() == actions.tolist()
        assert batch.ended().tolist() == ended.tolist()
        assert batch.truncated.tolist() == (ended & (episode % 2 == 1)).tolist()
        for slot in np.flatnonzero(ended).tolist():
            assert float(batch.final_obs["count"][slot, 0]) == 100 * episode[slot] + step[slot]
            want.append((slot, total[slot], step[slot]))
        episode, step, total = episode + ended, np.where(ended, 0, step), np.where(ended, 0, total)
        if k == 20:
            assert [(e.slot, e.episode_return, e.length) for e in pool.take_episodes()] == want
            want = []
    assert [(e.slot, e.episode_return, e.length) for e in pool.take_episodes()] == want
    assert pool.take_episodes() == []


def check_trios(pool, accounts, batch, steps, device="cpu"):
    """Step all groups together and compare with the accounts; the last batch."""
    want = []
    for k in range(steps):
        assert batch.slots.tolist() == list(range(21))
        assert batch.obs["obs"].tolist() == [account.observe() for account in accounts]
        assert batch.active.all() and not batch.lost.any()
        actions = [100.0 * k + slot for slot in range(21)]
        pool.send(torch.tensor(actions, device=device), batch.slots)
        batch = pool.recv(None)
        assert batch.reward.tolist() == actions
        ended = batch.ended().tolist()
        for slot, account in enumerate(accounts):
            final, flags, episode = account.act(actions[slot])
            assert (bool(batch.terminated[slot]), bool(batch.truncated[slot])) == flags
            if ended[slot]:
                assert batch.final_obs["obs"][slot].tolist() == final
                want.append((slot, *episode))
    got = [(e.slot, e.episode_return, e.length, e.info["mark"]) for e in pool.take_episodes()]
    assert got == want
    return batch


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_streams_of_several_agents(device, groups):
    pool, accounts = trios(groups, device)
    assert (pool.spec.num_envs, pool.spec.num_slots, pool.spec.agents_per_env) == (7, 21, 3)
    assert pool.spec.agents == ("anna", "bert", "cleo")
    assert pool.spec.measures == ("mark",)
    assert pool.num_in_flight == 21
    check_trios(pool, accounts, pool.recv(None), 40, device)


def test_groups_of_several_agents_are_whole_environments():
    pool, _ = trios(2)
    for _ in range(4):
        first, second = pool.recv(None, group=0), pool.recv(None, group=1)
        assert first.slots.tolist() == list(range(9))
        assert second.slots.tolist() == list(range(9, 21))
        assert pool.num_in_flight == 0
        pool.send(torch.zeros(12), second.slots)
        assert pool.num_in_flight == 12
        pool.send(torch.zeros(9), range(9))
    pool.recv(None)
    with pytest.raises(ValueError, match="whole groups"):
        pool.send(torch.zeros(3), range(3))
    with pytest.raises(ValueError, match=r"shape \(7,\); these slots need \(21,\)"):
        pool.send(torch.zeros(7), range(21))


def test_several_agents_continue_exactly():
    pool, accounts = trios(2)
    check_trios(pool, accounts, pool.recv(None), 15)
    state = pool.state()
    other, _ = trios(2, seed=9)
    assert len(other.restore(state)) == 0
    check_trios(other, accounts, other.recv(None), 15)
    with pytest.raises(UsageError, match="the saved pool had 21 slots; this has 12"):
        TensorPool([Trio(2), Trio(2)]).restore(state)


def test_environments_in_flight_start_again_with_all_their_agents():
    pool, accounts = trios(2)
    batch = check_trios(pool, accounts, pool.recv(None), 15)
    pool.send(torch.zeros(9), range(9))
    state = pool.state()
    other, _ = trios(2, seed=9)
    assert other.restore(state).tolist() == list(range(9))
    other.take_episodes()  # those that the step in flight ended
    again = other.recv(None)
    assert (again.obs["obs"][9:] == batch.obs["obs"][9:]).all()
    fresh = [OneOfTrio(env_seed(3, 0, 1) % 1000 + env, agent) for env in range(3) for agent in range(3)]
    check_trios(other, fresh + accounts[9:], again, 15)


def test_a_bad_reward_of_one_agent_names_its_environment():
    pool, _ = trios(2)
    actions = torch.zeros(21)
    actions[13] = float("nan")
    pool.send(actions, pool.recv(None).slots)
    with pytest.raises(SimulatorError, match=r"slot 13, .*the reward is nan") as caught:
        pool.take_episodes()
    assert caught.value.failure.envs == (4,)


def test_names_of_agents_match_their_number():
    trio = Trio(1)
    trio.agents = ("anna", "bert")
    with pytest.raises(UsageError, match="names 2 agents, but its agents_per_env is 3"):
        TensorPool([trio])


def test_groups_take_turns():
    with cartpoles(7, groups=2) as pool:
        for _ in range(5):
            for group in range(2):
                batch = pool.recv(None, group=group)
                assert batch.slots.tolist() == list(pool.spec.group_slots(group))
                assert batch.slots is pool._slots((group,))  # the same tensor every time
                pool.send(torch.zeros(len(batch), dtype=torch.long), batch.slots)
        assert pool.recv(1, max_slots=1).slots.tolist() == [0, 1, 2]
        assert pool.recv(1).slots.tolist() == [3, 4, 5, 6]
        assert len(pool.recv(0)) == 0


def test_slots_may_come_from_the_host():
    with cartpoles(4, groups=2) as pool:
        pool.recv(None)
        pool.send(np.zeros(2, int), [2, 3])
        pool.send(np.zeros(2, int), np.array([0, 1]))
        assert len(pool.recv(None)) == 4
        pool.send({"action": np.zeros(4, int)}, torch.arange(4))
        with pytest.raises(ValueError, match="not received"):
            pool.send(np.zeros(2, int), [2, 3])


def test_what_cannot_be_is_refused():
    with cartpoles(4, groups=2) as pool:
        slots = pool.recv(None).slots
        with pytest.raises(ValueError, match="for ever"):
            pool.recv(None)
        with pytest.raises(ValueError, match="whole groups"):
            pool.send(np.zeros(1, int), [1])
        with pytest.raises(ValueError, match="shape"):
            pool.send(torch.zeros(3, dtype=torch.long), slots)
        with pytest.raises(ValueError, match="integers"):
            pool.send(torch.zeros(4), slots)
        with pytest.raises(ValueError, match="group 2"):
            pool.recv(group=2)
    with pytest.raises(UsageError, match="no even groups"):
        TensorPool([Counter(1), Counter(3)])


def test_a_reward_that_is_no_number_is_raised_where_episodes_are_read():
    pool = TensorPool([Counter(3), Counter(3)])
    for step in range(6):
        actions = torch.ones(6)
        if step >= 3:
            actions[4] = float("inf") if step == 3 else float("nan")
        pool.send(actions, pool.recv(None).slots)
    with pytest.raises(SimulatorError, match=r"slot 4, seed \d+, episode 1, step 0\): the reward is inf"):
        pool.take_episodes()


def test_a_full_ring_keeps_the_latest_and_says_so(caplog):
    ring = EpisodeRing(4, torch.device("cpu"))
    for number in range(3):
        rows = torch.tensor([[slot, 10.0 * number + slot, number, 5 + number] for slot in range(3)])
        ring.write(torch.tensor([True, number == 1, True]), rows)
    assert [(e.slot, e.episode_return, e.length, e.match) for e in ring.take()] == [
        (1, 11, 1, 6),
        (2, 12, 1, 6),
        (0, 20, 2, 7),
        (2, 22, 2, 7),
    ]
    assert "7 episodes have ended since the last report; the metrics have the latest 4 of them" in caplog.text


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_seed_gives_the_same_stream(device):
    def run(pool, steps=40):
        stream = []
        for step in range(steps):
            batch = pool.recv(None)
            stream.append(batch.obs["obs"].clone())
            pool.send((torch.arange(8, device=device) + step // 3) % 2, batch.slots)
        return torch.stack(stream)

    with cartpoles(device=device) as one, cartpoles(device=device) as same, cartpoles(seed=4, device=device) as other:
        stream = run(one)
        assert (run(same) == stream).all()
        assert not (run(other) == stream).any(2).any(1).all()
        one.reset(3)
        assert one.take_episodes() == []
        assert (run(one) == stream).all()


@pytest.mark.parametrize("device", DEVICES)
def test_restore_continues_exactly(device):
    def advance(pool, steps, start):
        for step in range(start, start + steps):
            pool.send((torch.arange(8, device=device) + step // 2) % 2, slots)
            batch = pool.recv(None)
        return batch, pool.take_episodes()

    with cartpoles(groups=2, device=device) as pool, cartpoles(groups=2, seed=9, device=device) as other:
        slots = pool.recv(None).slots
        pool.send(torch.zeros(8, dtype=torch.long, device=device), slots)
        pool.recv(None)
        held, _ = advance(pool, 30, 0)
        state = pool.state()
        batch, episodes = advance(pool, 30, 30)
        other.restore(state)
        first = other.recv(None)
        assert (first.obs["obs"] == held.obs["obs"]).all()
        assert not first.reward.any()
        assert not first.ended().any()
        slots = first.slots
        again, same_episodes = advance(other, 30, 30)
        assert (again.obs["obs"] == batch.obs["obs"]).all()
        assert episodes
        assert same_episodes == episodes


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("groups", [1, 2])
def test_nothing_in_the_loop_waits_for_the_device(groups):
    with cartpoles(64, groups=groups, device="cuda") as pool:
        actions = torch.zeros(64 // groups, dtype=torch.long, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(50):
                batch = pool.recv(None, group=step % groups)
                assert batch.obs["obs"].is_cuda
                pool.send(actions, batch.slots)
            pool.recv(None)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert pool.take_episodes()


def test_ids():
    assert resolve("tensor:cartpole").backend == "tensor"
    with pytest.raises(UsageError, match="no tensor simulator 'cartpol', did you mean 'cartpole'"):
        resolve("tensor:cartpol")
    with pytest.raises(UsageError, match=r"option 'size' .*allowed: max_episode_steps"):
        resolve("tensor:cartpole?size=1")
    with pytest.raises(UsageError, match="max_episode_steps is 0"):
        resolve("tensor:cartpole?max_episode_steps=0").make(2)


def test_the_family_does_not_import_torch():
    code = (
        "import sys; from paceline.envs.registry import resolve; resolve('tensor:cartpole'); "
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
