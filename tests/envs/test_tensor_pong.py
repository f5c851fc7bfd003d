"""Pong for two: the rules against a slow match in NumPy, both views, randomness, states, opponents and frames."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from paceline.envs import tensor_pong as pong
from paceline.envs.pong_match import HEIGHT, WIDTH, PongMatch, draw
from paceline.envs.pong_opponents import RandomOpponent, TrackerOpponent
from paceline.envs.registry import resolve
from paceline.envs.tensor_pong import ACTION_SPACE, OBSERVATION_SPACE, TensorPong
from paceline.errors import UsageError
from paceline.evaluation.video import open_camera
from paceline.pool import make_pool
from paceline.pool.config import PoolConfig
from paceline.pool.make_tensor import make_tensor_pool
from paceline.pool.seeds import env_seed
from paceline.sims.randomness import combine, mix

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]
F = np.float32


class SlowMatch:
    """One match of `TensorPong(points=2, max_episode_steps=140)`, a step and a branch at a time."""

    POINTS, LIMIT = 2, 140

    def __init__(self, seed, stream):
        self.key = combine(combine(mix(seed & 0xFFFFFFFF), seed >> 32), stream)
        self.balls = 0
        self.begin()

    def begin(self):
        self.paddles, self.points, self.steps = [F(0), F(0)], [0, 0], 0
        self.serve()

    def serve(self):
        bits = combine(self.key, self.balls)
        self.balls += 1
        y, slope = (F((bits >> shift) % 2**15) / F(2**14) - F(1) for shift in (0, 15))
        towards_right = (bits >> 30) % 2 == 1
        self.x, self.y = F(0), F(pong.START_Y) * y
        self.vx = F(pong.START_SPEED) if towards_right else -F(pong.START_SPEED)
        self.vy = F(pong.START_SLOPE * pong.START_SPEED) * slope

    def views(self):
        velocity = F(self.vx / F(pong.MAX_SPEED)), F(self.vy / F(pong.STEEPEST * pong.MAX_SPEED))
        left, right = self.paddles
        points, other = (F(count / self.POINTS) for count in self.points)
        return [
            [left, right, self.x, self.y, *velocity, points, other],
            [right, left, -self.x, self.y, -velocity[0], velocity[1], other, points],
        ]

    def step(self, actions):
        """The views before any reset, the left player's reward, terminated, truncated, the left player's win."""
        for player, action in enumerate(actions):
            moved = self.paddles[player] + F([0, pong.PADDLE_SPEED, -pong.PADDLE_SPEED][action])
            self.paddles[player] = np.clip(moved, F(pong.HALF_PADDLE - 1), F(1 - pong.HALF_PADDLE))
        reward = self.move_ball()
        if reward:
            self.points[0 if reward > 0 else 1] += 1
        self.steps += 1
        final, win = self.views(), 0.5 + 0.5 * np.sign(self.points[0] - self.points[1])
        terminated = max(self.points) == self.POINTS
        truncated = self.steps == self.LIMIT and not terminated
        if terminated or truncated:
            self.begin()
        elif reward:
            self.serve()
        return final, reward, terminated, truncated, win

    def move_ball(self):
        line = F(np.sign(self.vx))
        arrives = abs(self.x + self.vx) >= 1
        share = (line - self.x) / self.vx if arrives else F(1)
        self.x = line if arrives else self.x + self.vx
        self.y = self.y + self.vy * share
        if abs(self.y) > 1:
            self.y, self.vy = F(2 * np.sign(self.y)) - self.y, -self.vy
        if not arrives:
            return 0
        offset = (self.y - self.paddles[1 if line > 0 else 0]) / F(pong.HALF_PADDLE)
        if abs(offset) > 1:
            return int(line)
        self.vx = np.clip(-F(pong.SPEEDUP) * self.vx, -F(pong.MAX_SPEED), F(pong.MAX_SPEED))
        self.vy = abs(self.vx) * offset * F(pong.STEEPEST)
        return 0


def mixed_actions(obs, step):
    """Slots track the ball, so that rallies last. In turn some of them move at random, so that points are scored."""
    slots = torch.arange(len(obs), device=obs.device)
    random = RandomOpponent(OBSERVATION_SPACE, ACTION_SPACE)({"obs": obs})
    tracked = TrackerOpponent(OBSERVATION_SPACE, ACTION_SPACE)({"obs": obs})
    return torch.where((slots + step // 25) % 3 == 0, random, tracked)


@pytest.mark.parametrize("device", DEVICES)
def test_every_step_equals_a_slow_match(device):
    seed, num = 2**40 + 12345, 7
    simulator = TensorPong(num, device, points=2, max_episode_steps=140)
    matches = [SlowMatch(seed, stream) for stream in range(num)]
    obs, count = simulator.reset(seed)["obs"], {"points": 0, "terminated": 0, "truncated": 0, "hits": 0}
    for step in range(600):
        np.testing.assert_allclose(obs.cpu(), np.concatenate([match.views() for match in matches]), atol=1e-5)
        actions = mixed_actions(obs, step)
        result = simulator.step(actions)
        flags = torch.stack((result.terminated, result.truncated)).cpu().view(2, num, 2)
        reward, final = result.reward.cpu().view(num, 2), result.final_obs["obs"].cpu().view(num, 2, -1)
        wins = simulator.last_measures["win"].cpu().view(num, 2)
        for i, (match, pair) in enumerate(zip(matches, actions.view(num, 2).tolist(), strict=True)):
            before = match.vx
            want, points, terminated, truncated, win = match.step(pair)
            np.testing.assert_allclose(final[i], want, atol=1e-5)
            assert reward[i].tolist() == [points, -points]
            assert flags[:, i].tolist() == [[terminated] * 2, [truncated] * 2]
            if terminated or truncated:
                assert wins[i].tolist() == [win, 1 - win]
            count["points"] += abs(points)
            count["terminated"] += terminated
            count["truncated"] += truncated
            count["hits"] += bool(np.sign(before) != np.sign(match.vx) and not points and not truncated)
        obs = result.obs["obs"]
    assert min(count.values()) > 5, count


def test_both_players_see_the_same_match():
    """A mirrored match with swapped actions has the views swapped."""
    one, other = TensorPong(5), TensorPong(5)
    obs = one.reset(3)["obs"].view(5, 2, 8)
    other.reset(3)
    other._state[[pong.X, pong.VX]] *= -1
    for step in range(14):  # until the first balls arrive
        actions = (torch.arange(10) + step // 3) % 3
        obs = one.step(actions).obs["obs"].view(5, 2, 8)
        mirrored = other.step(actions.view(5, 2).flip(1).reshape(-1)).obs["obs"].view(5, 2, 8)
        assert (mirrored == obs.flip(1)).all()
    assert (obs[:, 0, 2] == -obs[:, 1, 2]).all()
    assert (obs[:, 0, :2] == obs[:, 1, :2].flip(1)).all()


def test_observations_stay_in_their_space_and_rewards_sum_to_zero():
    simulator = TensorPong(64, points=2)
    obs, total = simulator.reset(1)["obs"], 0
    for step in range(600):
        result = simulator.step(mixed_actions(obs, step))
        obs = result.obs["obs"]
        for seen in (obs, result.final_obs["obs"]):
            assert seen.abs().max() <= 1
        assert seen.dtype == torch.float32
        pairs = result.reward.view(-1, 2)
        assert (pairs.sum(1) == 0).all()
        total += int((pairs != 0).any(1).sum())
    assert total > 100


def test_the_fastest_ball_outruns_a_paddle_that_only_follows_it():
    assert pong.STEEPEST * pong.MAX_SPEED > 2 * pong.PADDLE_SPEED
    simulator, track = TensorPong(1), TrackerOpponent(OBSERVATION_SPACE, ACTION_SPACE)
    simulator.reset(0)
    start = [-0.8, 0.0, -0.9, -0.95, pong.MAX_SPEED, pong.STEEPEST * pong.MAX_SPEED / 2]
    simulator._state[: pong.VY + 1, 0] = torch.tensor(start)
    obs = simulator._observe(simulator._state)
    for _ in range(14):
        result = simulator.step(track({"obs": obs}))
        obs = result.obs["obs"]
        if result.reward.any():
            break
    assert result.reward.tolist() == [1, -1]


@pytest.mark.parametrize("device", DEVICES)
def test_a_match_does_not_depend_on_the_batch(device):
    def play(simulator, num):
        obs, seen = simulator.reset(11)["obs"], []
        for _ in range(150):
            seen.append(obs[-2 * num :])
            obs = simulator.step(RandomOpponent(OBSERVATION_SPACE, ACTION_SPACE)({"obs": obs})).obs["obs"]
        return torch.stack(seen)

    many = play(TensorPong(9, device), 2)
    assert (play(TensorPong(2, device, first_stream=7), 2) == many).all()
    assert (play(TensorPong(2, device, first_stream=6), 2) != many).any()


def test_balls_start_everywhere_and_to_both_sides():
    simulator = TensorPong(4000)
    _, _, x, y, vx, vy = simulator.reset(5)["obs"][::2, :6].unbind(1)
    assert not x.any()
    assert (vx.abs() == vx[0].abs()).all()
    assert 0.45 < (vx > 0).float().mean() < 0.55
    for values, limit in (
        (y, pong.START_Y),
        (vy, pong.START_SLOPE * pong.START_SPEED / pong.STEEPEST / pong.MAX_SPEED),
    ):
        assert values.abs().max() <= limit
        quarters = torch.histc(values, 4, -limit, limit) / len(values)
        assert (quarters - 0.25).abs().max() < 0.04
    assert torch.corrcoef(torch.stack((y, vx, vy))).triu(1).abs().max() < 0.06


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_pool_equals_single_matches(device, groups):
    """Streams, ends, episodes and wins, against one simulator per environment."""
    config = PoolConfig(num_envs=5, groups=groups)
    pool = make_tensor_pool(resolve("tensor:pong?points=1&max_episode_steps=60"), config, 3, device)
    assert (pool.spec.num_slots, pool.spec.agents, pool.spec.truncation_gap) == (10, ("left", "right"), 60)
    singles, obs = [], []
    for group in range(groups):
        for stream in range(len(pool.spec.group_envs(group))):
            singles.append(TensorPong(1, device, points=1, max_episode_steps=60, first_stream=stream))
            obs.append(singles[-1].reset(env_seed(3, group))["obs"])
    batch, totals, want = pool.recv(None), np.zeros((10, 2)), []
    for step in range(200):
        assert (batch.obs["obs"] == torch.cat(obs)).all()
        actions = mixed_actions(batch.obs["obs"], step)
        results = [one.step(pair) for one, pair in zip(singles, actions.view(5, 2), strict=True)]
        pool.send(actions, batch.slots)
        batch, obs = pool.recv(None), [result.obs["obs"] for result in results]
        for name in ("reward", "terminated", "truncated"):
            assert (getattr(batch, name) == torch.cat([getattr(result, name) for result in results])).all()
        ended = batch.ended()
        assert (batch.final_obs["obs"][ended] == torch.cat([r.final_obs["obs"] for r in results])[ended]).all()
        totals += np.column_stack([batch.reward.cpu(), np.ones(10)])
        wins = torch.cat([one.last_measures["win"] for one in singles]).tolist()
        for slot in np.flatnonzero(ended.cpu()).tolist():
            want.append((slot, *totals[slot], {"win": wins[slot]}))
            totals[slot] = 0
    assert [(e.slot, e.episode_return, e.length, e.info) for e in pool.take_episodes()] == want
    assert {win["win"] for *_, win in want} == {0.0, 0.5, 1.0}


@pytest.mark.parametrize("device", DEVICES)
def test_a_saved_match_continues_exactly(device):
    def play(simulator, obs, steps):
        rows = []
        for step in range(steps):
            result = simulator.step(mixed_actions(obs, step))
            obs = result.obs["obs"]
            rows.append(torch.cat((obs, result.reward[:, None], result.terminated[:, None]), 1))
        return torch.stack(rows), obs

    simulator, other = TensorPong(6, device, points=1), TensorPong(6, device, points=1)
    _, obs = play(simulator, simulator.reset(4)["obs"], 70)
    state = simulator.state_dict()
    want, _ = play(simulator, obs, 200)
    other.reset(5)
    other.load_state_dict(state)
    assert (play(other, obs, 200)[0] == want).all()


@pytest.mark.gpu
@needs_cuda
def test_nothing_waits_for_the_device_and_a_recording_plays_the_same_match():
    streams = []
    for cuda_graphs in (True, False):
        config = PoolConfig(num_envs=64, cuda_graphs=cuda_graphs)
        pool, seen = make_tensor_pool(resolve("tensor:pong"), config, 3, "cuda"), []
        batch = pool.recv(None)
        for step in range(200):
            if step == 20:
                torch.cuda.set_sync_debug_mode("error")
            try:
                pool.send(mixed_actions(batch.obs["obs"], step), batch.slots)
                batch = pool.recv(None)
                seen.append(torch.cat((batch.obs["obs"], batch.reward[:, None]), 1).clone())
            finally:
                torch.cuda.set_sync_debug_mode("default")
        streams.append((torch.stack(seen), pool.take_episodes()))
    assert (streams[0][0] == streams[1][0]).all()
    assert streams[0][1] == streams[1][1] != []


def test_the_single_match_is_a_stream_of_the_batch():
    match, batch = PongMatch(points=1, max_episode_steps=60), TensorPong(1, points=1, max_episode_steps=60)
    seen, obs = match.reset(seed=8)[0], batch.reset(8)["obs"]
    outcomes = set()
    for step in range(500):
        assert (np.stack([seen[agent] for agent in match.agents]) == obs.numpy()).all()
        actions = mixed_actions(obs, step)
        result = batch.step(actions)
        seen, reward, terminated, truncated, info = match.step(dict(zip(match.agents, actions.tolist(), strict=True)))
        assert (np.stack(list(seen.values())) == result.final_obs["obs"].numpy()).all()
        assert list(reward.values()) == result.reward.tolist()
        assert list(terminated.values()) == result.terminated.tolist()
        assert list(truncated.values()) == result.truncated.tolist()
        obs = result.obs["obs"]
        if not match.agents:
            outcomes.add((info["left"]["win"], info["right"]["win"]))
            assert [info["left"]["win"], info["right"]["win"]] == batch.last_measures["win"].tolist()
            with pytest.raises(ValueError, match="call reset"):
                match.step({"left": 0, "right": 0})
            seen, _ = match.reset()
    assert outcomes == {(1, 0), (0, 1), (0.5, 0.5)}


def test_single_matches_run_in_a_serial_pool_and_continue_from_a_state():
    with make_pool("tensor:pong?points=1", PoolConfig(kind="serial", num_envs=2), seed=3) as pool:
        assert pool.spec.agents_per_env == 2 and pool.spec.measures == ("win",)

        def play(num):
            rows = []
            for step in range(num):
                batch = pool.recv(min_slots=None)
                rows.append((batch.obs["obs"].tolist(), batch.reward.tolist(), batch.terminated.tolist()))
                pool.send(mixed_actions(torch.tensor(batch.obs["obs"]), step).numpy(), batch.slots)
            return rows, pool.take_episodes()

        play(40)
        pool.recv(min_slots=None)
        state = pool.state()
        pool.restore(state)
        want = play(100)
        assert {episode.info["win"] for episode in want[1]} == {0.0, 1.0}
        pool.recv(min_slots=None)
        pool.restore(state)
        assert play(100) == want


def test_frames_show_paddles_ball_and_score():
    blue, orange, white = (96, 176, 255), (255, 150, 92), (240, 240, 240)

    def where(frame, colour):
        return np.argwhere((frame == colour).all(2))

    frame = draw([0.8, -0.8, 0.5, 0.0, 0.0, 0.0, 2.0, 1.0, 9.0], points=3)
    assert frame.shape == (HEIGHT, WIDTH, 3)
    left, right, ball = where(frame[24:], blue), where(frame[24:], orange), where(frame[24:], white)
    assert left[:, 0].min() == 0 and left[:, 1].max() < 8
    assert right[:, 0].max() == HEIGHT - 25 and right[:, 1].min() > WIDTH - 8
    assert ball[:, 1].mean() == pytest.approx(0.75 * WIDTH, abs=6)
    assert ball[:, 0].mean() == pytest.approx((HEIGHT - 24) / 2, abs=4)
    assert len(where(frame[:24], blue)) == 2 * len(where(frame[:24], orange)) > 0
    for y in (-1.0, 1.0):
        for x in (-1.0, 1.0):
            assert len(where(draw([0.0, 0.0, x, y, 0, 0, 0, 0, 0], 3), white)) == 36


def test_a_match_can_be_filmed():
    camera, pool = open_camera("tensor:pong?points=1&max_episode_steps=50", seed=2)
    with pool:
        frames = []
        while not camera.is_over():
            batch = pool.recv(min_slots=None)
            frames += camera.look(batch)
            pool.send(np.zeros(2, np.int64), batch.slots)
    assert 10 < len(frames) <= 51
    assert camera.frames_per_second == 30
    assert any((a != b).any() for a, b in pairwise(frames))


def play_matches(left, right, num=200):
    """The left player's wins."""
    simulator, wins = TensorPong(100, points=1), []
    obs = simulator.reset(0)["obs"]
    is_left = torch.arange(200) % 2 == 0
    while len(wins) < num:
        result = simulator.step(torch.where(is_left, left({"obs": obs}), right({"obs": obs})))
        obs = result.obs["obs"]
        wins += simulator.last_measures["win"][(result.terminated | result.truncated) & is_left].tolist()
    return np.mean(wins)


def test_opponents():
    random, tracker = (made(OBSERVATION_SPACE, ACTION_SPACE) for made in (RandomOpponent, TrackerOpponent))
    assert play_matches(tracker, random) > 0.85
    assert play_matches(random, tracker) < 0.15
    assert 0.4 < play_matches(random, random) < 0.6
    obs = {"obs": torch.zeros(3, 8)}
    obs["obs"][:, 0], obs["obs"][:, 3] = 0.2, torch.tensor([0.5, -0.5, 0.21])
    assert tracker(obs).tolist() == [pong.UP, pong.DOWN, pong.STAY]
    many = {"obs": torch.rand(3000, 8, generator=torch.Generator().manual_seed(0))}
    assert (random(many) == random(many)).all()
    assert (torch.bincount(random(many), minlength=3) / 3000 - 1 / 3).abs().max() < 0.04


def test_what_is_not_allowed():
    with pytest.raises(UsageError, match="option 'size' .*allowed: points, max_episode_steps"):
        resolve("tensor:pong?size=1")
    for option in ("points=0", "points=1.5", "max_episode_steps=0"):
        with pytest.raises(UsageError, match=r"allowed: a whole number above 0"):
            resolve(f"tensor:pong?{option}").make(2)
    for made in (RandomOpponent, TrackerOpponent):
        with pytest.raises(UsageError, match="plays tensor:pong only"):
            made(OBSERVATION_SPACE, resolve("tensor:cartpole").make(1).action_space)


def test_the_id_does_not_import_torch():
    code = (
        "import sys; from paceline.envs.registry import resolve; resolve('tensor:pong?points=2'); "
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
