"""The environment in the layers of habitat-lab, with the API of gym 0.22: a step has four results, a reset no seed."""

from types import SimpleNamespace

import numpy as np

from .datasets import make_dataset


class Box:
    def __init__(self, low, high, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)

    def contains(self, x):
        return x.shape == self.shape and bool((x >= self.low).all() and (x <= self.high).all())


class Discrete:
    def __init__(self, n):
        self.n = n

    def contains(self, x):
        return isinstance(x, int | np.integer) and 0 <= x < self.n


class Dict:
    def __init__(self, spaces):
        self.spaces = spaces


class Env:
    """The core environment."""

    def __init__(self, config, dataset):
        self._config, self._dataset = config, dataset
        self.task = SimpleNamespace(
            is_episode_active=False,
            measurements=SimpleNamespace(measures=dict.fromkeys(("success", "spl", "collisions"))),
        )
        self._setup_episode_iterator()
        self.current_episode = next(self._episode_iterator)
        self._from_iterator = False
        self.seeds = []

    def _setup_episode_iterator(self):
        options = dict(self._config.environment.iterator_options.items())
        self._episode_iterator = self._dataset.get_episode_iterator(**options, seed=self._config.seed)

    @property
    def episodes(self):
        return self._dataset.episodes

    @episodes.setter
    def episodes(self, episodes):
        self._dataset.episodes = episodes
        self._setup_episode_iterator()
        self._from_iterator = True

    def seed(self, seed):
        self.seeds.append(seed)

    def reset(self):
        if self._from_iterator:
            self.current_episode = next(self._episode_iterator)
        self._from_iterator = True
        self.goal, self.at, self._steps, self.task.is_episode_active = (
            int(self.current_episode.episode_id) + 1,
            0,
            0,
            True,
        )
        self.episode_over = False
        return self._observe()

    def step(self, action):
        assert not self.episode_over, "Episode over, call reset before calling step"
        if action == 0:
            self.task.is_episode_active = False
        self.at += action == 1
        self._steps += 1
        self.episode_over = not self.task.is_episode_active or self._steps >= self._config.environment.max_episode_steps
        return self._observe()

    def get_metrics(self):
        success = float(not self.task.is_episode_active and self.at == self.goal)
        return {
            "success": success,
            "spl": success * self.goal / max(self.goal, self._steps),
            "distance_to_goal_reward": 0.0,
            "collisions": {"count": 3, "is_collision": False},
            "top_down_map": {"map": np.zeros((2, 2))},
        }

    def _observe(self):
        side = self._config.simulator.resolution
        rgb = np.zeros((side, side, 3), np.uint8)
        rgb[0, 1] = (10, 20, 30)
        depth = np.full((side, side, 1), self.at / 10, np.float32)
        return {
            "rgb": rgb,
            "depth": depth,
            "pointgoal": np.array([self.goal - self.at, 0.0], np.float32),
            "extra": None,
        }


class RLTaskEnv:
    def __init__(self, config, dataset):
        self.config, self.habitat_env = config, Env(config, dataset)
        self.unwrapped = self

    @property
    def episodes(self):
        return self.habitat_env.episodes

    @episodes.setter
    def episodes(self, episodes):
        self.habitat_env.episodes = episodes

    def step(self, action):
        obs, metrics = self.habitat_env.step(action["action"]), self.habitat_env.get_metrics()
        success = bool(metrics[self.config.task.success_measure])
        reward = self.config.task.slack_reward + self.config.task.success_reward * success
        return obs, reward, self.habitat_env.episode_over or (self.config.task.end_on_success and success), metrics


class HabGymWrapper:
    def __init__(self, env):
        self.env, self.unwrapped = env, env
        side = env.config.simulator.resolution
        self.observation_space = Dict(
            {
                "rgb": Box(0, 255, (side, side, 3), np.uint8),
                "depth": Box(0.0, 1.0, (side, side, 1), np.float32),
                "pointgoal": Box(-np.inf, np.inf, (2,), np.float32),
            }
        )
        self.action_space = Box(-1.0, 1.0, (1,), np.float32) if env.config.task.continuous else Discrete(4)
        if env.config.task.two_agents:
            self.action_space = Dict({name: Discrete(4) for name in ("agent_0", "agent_1")})
        self.closed = False

    def seed(self, seed=None):
        self.env.habitat_env.seed(seed)

    def reset(self, *args, return_info=False, **kwargs):
        return self.env.habitat_env.reset()

    def step(self, action):
        assert self.action_space.contains(action), f"Invalid action {action} for action space {self.action_space}"
        if self.env.config.task.continuous:
            action = 1 if action[0] > 0.5 else 2
        return self.env.step({"action": action})

    def render(self, mode="human", **kwargs):
        assert mode == "rgb_array"
        return np.zeros((8, 8, 3), np.uint8)

    def close(self):
        self.closed = True


def make_gym_from_config(config, dataset=None):
    if "habitat" in config:
        config = config.habitat
    if dataset is None:
        dataset = make_dataset(config.dataset.type, config=config.dataset)
    env = HabGymWrapper(RLTaskEnv(config, dataset))
    env.seed(config.seed)
    return env
