"""`Navigation`: N agents in the apartments of a bank, as tensors on one device.

It moves the agents, renders their images and begins their episodes. A `Task` gives them something to do: it has the
goal, the reward and the measures. An episode ends when the agent stops, or is truncated after `max_episode_steps`.

Observations: `previous_action` [5] is the last action one-hot; the fifth entry means none yet. `depth` [1, H, W] and
`rgb` [3, H, W] depend on the sensors. A task adds its own.

`step` neither waits for the device nor reads values, and it writes all state in place, so a CUDA graph can capture it.
Random numbers are hashes of seed, stream, episode and step, so a stream is the same in a batch of any size.

Legend: N streams, K scenes, E episodes, C columns of the task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.errors import UsageError
from paceline.pool.tensor import TensorStep
from paceline.sims.navigation.config import NavigationConfig, PointNavConfig
from paceline.sims.navigation.layout import (
    ACTUATION,
    COLLISIONS,
    EPISODE,
    NUM_ACTIONS,
    NUM_POSE,
    PATH,
    SCENE,
    STEPS,
    STOP,
)
from paceline.sims.navigation.plans.bank import plan_bank
from paceline.sims.navigation.rendering.image_sensors import ImageSensors, Place, image_spaces
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.bank_cache import load_or_generate
from paceline.sims.navigation.scenes.geometry import move
from paceline.sims.navigation.scenes.paths import Paths
from paceline.sims.navigation.tasks.protocol import Streams, Task
from paceline.sims.navigation.tasks.table import TASKS
from paceline.sims.randomness import below, combine, normal, stream_keys
from paceline.wording import counted


class Navigation:
    """A `TensorSimulator`. Its stream i is stream `first_stream` + i of the seed."""

    frameskip = 1
    recordable = True
    """As a CUDA graph; see `TensorSimulator`. A recorded simulator does not support `load_episodes`."""

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        config: NavigationConfig | None = None,
        *,
        bank: SceneBank | None = None,
        first_stream: int = 0,
    ) -> None:
        """The task is that of `config`, PointGoal navigation by default."""
        self.config = config = config or PointNavConfig()
        if num_envs < 1:
            raise UsageError(f"{config.task}: num_envs is {num_envs}; allowed: 1 or more")
        self.num_envs, self.device = num_envs, torch.device(device)
        self.bank = (bank or load_bank(config)).to(self.device)
        self._images = ImageSensors(self.bank, config)
        self.truncation_gap = config.max_episode_steps
        self.last_measures: dict[str, Tensor] = {}
        """[N] each, after the last step: those of the task, and `collisions`, `path_length` and `steps`. They are final
        where that step ended the episode."""
        self.last_poses = torch.zeros(num_envs, NUM_POSE, device=self.device)
        """[N, 3]: the poses after the last step, before any reset."""
        self._is_noisy = config.is_noisy
        angle = math.radians(config.turn_angle)
        self._turns = torch.tensor([0.0, 0.0, angle, -angle], device=self.device)
        self._ways = torch.tensor([0.0, config.forward_step, 0.0, 0.0], device=self.device)
        self._one_hot = torch.eye(NUM_ACTIONS + 1, device=self.device)
        self._zeros = torch.zeros(num_envs, 3, device=self.device)
        self._streams = torch.arange(first_stream, first_stream + num_envs, device=self.device)
        self._keys = torch.zeros(2, num_envs, dtype=torch.int64, device=self.device)
        self._scenes, self._rows, self._numbers = (torch.zeros_like(self._streams) for _ in range(3))
        self._choices = torch.zeros(self.bank.num_scenes, dtype=torch.int64, device=self.device)
        self._open_scenes = torch.zeros_like(self._choices)
        self._num_open = torch.zeros((), dtype=torch.int64, device=self.device)
        self._paths = Paths(self.bank)
        streams = Streams(self.bank, self._paths, self._scenes, self._rows, self._choices)
        self.task: Task = TASKS[config.task].load()(config, streams)
        self.measure_names = self.task.measure_names
        self.observation_space = _observation_space(config, self.task)
        self.action_space = spaces.Discrete(NUM_ACTIONS)
        self._state = torch.zeros(num_envs, NUM_POSE + self.task.num_columns + 3, device=self.device)
        self._schedule: Tensor | None = None
        self.scenes_changed()
        self.bank.add_user(self)

    # Called by pools.

    def reset(self, seed: int) -> dict[str, Tensor]:
        """Begin the first episode of every stream."""
        self._set_keys(seed)
        self._schedule = None
        self._numbers.fill_(-1)
        return self.begin_next()

    @torch.no_grad()
    def step(self, actions: Tensor) -> TensorStep:
        state = self._walk(actions)
        self.last_poses = state[:, :NUM_POSE]
        steps = state[:, STEPS]
        terminated = actions == STOP
        truncated = (steps >= self.config.max_episode_steps).logical_and_(~terminated)
        ended = terminated | truncated
        reward, measures = self.task.judge(self._state, state, terminated)
        own = {"collisions": state[:, COLLISIONS], "path_length": state[:, PATH], "steps": steps}
        self.last_measures = {**measures, **own}
        before, rows = self._place(state), self._rows.clone()
        self._begin(ended, state)
        after = self._place(self._state)
        final_images, images = self._images.see_both(before, after, ended)
        # Both observations at once, because on a CPU the number of operations dominates the cost.
        vectors = self._vectors(
            torch.cat((state, self._state)),
            torch.cat((rows, self._rows)),
            torch.cat((actions, torch.where(ended, NUM_ACTIONS, actions))),
            torch.cat((before.noise_keys, after.noise_keys)),
        )
        final = {name: values[: self.num_envs] for name, values in vectors.items()}
        first = {name: values[self.num_envs :] for name, values in vectors.items()}
        return TensorStep({**images, **first}, reward, terminated, truncated, {**final_images, **final})

    # For training and evaluation.

    def scenes_changed(self) -> None:
        """Update what depends on the scenes of the bank; see `SceneBank.add_user`. Reads the device."""
        self._paths.scenes_changed()
        self.task.scenes_changed()
        scenes = self.bank.open_scenes[: int(self.bank.num_open)]
        self.check_open(scenes.tolist())
        playable = scenes[self._choices[scenes] > 0]
        self._open_scenes[: len(playable)].copy_(playable)
        self._num_open.fill_(len(playable))

    def check_scenes(self, rows: Mapping[str, Tensor]) -> None:
        """Refuse new scenes, given as rows of the bank's tensors; see `SceneBank.add_user`."""
        self.task.check_scenes(rows)

    def check_open(self, scenes: Sequence[int]) -> None:
        """Refuse to begin new episodes only in these scenes of the bank. Reads the device."""
        if not (self._choices[list(scenes)] > 0).any():
            problem = f"there is no episode of this task in {counted(len(scenes), 'scene')}"
            raise UsageError(f"{self.config.task}: {problem}; allowed: scenes with {self.config.needs}")

    def load_episodes(self, scenes: Sequence[int], episodes: Sequence[int]) -> dict[str, Tensor]:
        """Play a list of episodes until the next `reset`; returns the first observations.

        Stream i plays episodes i, i + N, i + 2N and so on of the list, and then repeats its last one.
        """
        if len(scenes) != len(episodes) or len(scenes) < self.num_envs:
            raise UsageError(
                f"{len(scenes)} scenes and {len(episodes)} episodes were given; allowed: equal numbers, and at least "
                f"one for each of the {self.num_envs} streams"
            )
        pairs = np.column_stack([scenes, episodes]).astype(np.int64)
        limits = (self.bank.num_scenes, self.bank.num_episodes)
        if (pairs < 0).any() or (pairs >= limits).any():
            raise UsageError(
                f"a scene or an episode does not exist; allowed: scenes 0 to {limits[0] - 1}, and episodes 0 to "
                f"{limits[1] - 1} of each"
            )
        rounds = -(-len(pairs) // self.num_envs)
        order = np.arange(rounds * self.num_envs)
        order[len(pairs) :] -= self.num_envs  # streams with one episode less repeat their last one
        flat = torch.from_numpy(pairs @ [limits[1], 1])[torch.from_numpy(order)]
        self._schedule = flat.view(rounds, self.num_envs).to(self.device)
        self._set_keys(0)
        self._numbers.fill_(-1)
        return self.begin_next()

    @torch.no_grad()
    def begin_next(self) -> dict[str, Tensor]:
        """Abandon all current episodes and begin the next ones; returns the first observations."""
        self._begin(torch.ones_like(self._streams, dtype=torch.bool), self._state)
        place = self._place(self._state)
        self.last_poses = place.poses.clone()
        none = torch.full_like(self._streams, NUM_ACTIONS)
        return {**self._images.see(place), **self._vectors(self._state, self._rows, none, place.noise_keys)}

    @property
    def poses(self) -> Tensor:
        """[N, 3]: x, y and heading in radians."""
        return self._state[:, :3].clone()

    @property
    def columns(self) -> Tensor:
        """[N, C]: the columns of the task; see `Task`."""
        return self._state[:, NUM_POSE:PATH].clone()

    @property
    def scenes(self) -> Tensor:
        """int64 [N]: the scene of each stream."""
        return self._scenes.clone()

    @property
    def rows(self) -> Tensor:
        """int64 [N]: the episode of each stream, scene * E + episode."""
        return self._rows.clone()

    @property
    def episode_numbers(self) -> Tensor:
        """int64 [N]: episodes that each stream has finished since `reset` or `load_episodes`."""
        return self._numbers.clone()

    def playable_episodes(self) -> dict[int, int]:
        """The scenes that new episodes are drawn from, each with the number of its first episodes that are drawn. Reads
        the device."""
        scenes = self._open_scenes[: int(self._num_open)]
        return dict(zip(scenes.tolist(), self._choices[scenes].tolist(), strict=True))

    def scenes_in_use(self) -> set[int]:
        """The scenes that streams are in. Reads the device."""
        return set(self._scenes.tolist())

    @torch.no_grad()
    def foresee(self, headings: Tensor) -> tuple[Tensor, Tensor]:
        """The positions [N, H, 2] after a step in each of `headings` [N, H], and the lengths of these steps [N, H].

        For planners that know the map. It has no noise.
        """
        several = headings.shape[1]
        positions, scenes = (values.repeat_interleave(several, 0) for values in (self._state[:, :2], self._scenes))
        steps = torch.stack((headings.cos(), headings.sin()), 2).mul_(self.config.forward_step).view(-1, 2)
        moved = move(positions, steps, self.bank.contact[scenes], self.config.slide)
        return moved.position.view(self.num_envs, several, 2), moved.travelled.view(self.num_envs, several)

    def state_dict(self) -> dict[str, Any]:
        tensors = {name: getattr(self, f"_{name}").clone() for name in _SAVED}
        schedule = None if self._schedule is None else self._schedule.clone()
        return {**tensors, **self.task.state_dict(), "schedule": schedule, "bank": self.bank.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.bank.load_state_dict(state["bank"])
        for name in _SAVED:
            getattr(self, f"_{name}").copy_(state[name])
        self.task.load_state_dict(state)
        self._schedule = None if state["schedule"] is None else state["schedule"].to(self.device)

    # Episodes.

    def _set_keys(self, seed: int) -> None:
        keys = stream_keys(seed, self._streams)
        for row, purpose in zip(self._keys, (SCENE, EPISODE), strict=True):
            row.copy_(combine(keys, purpose))

    def _begin(self, ended: Tensor, state: Tensor) -> None:
        """Continue from `state`, or from the start of the next episode for streams in `ended`."""
        self._numbers += ended
        rows = self._draw()
        fresh = torch.cat((self.task.begin(ended, rows), self._zeros), 1)
        self._state.copy_(torch.where(ended[:, None], fresh, state))
        self._rows.copy_(torch.where(ended, rows, self._rows))
        torch.floor_divide(self._rows, self.bank.num_episodes, out=self._scenes)

    def _draw(self) -> Tensor:
        """int64 [N]: the bank row (scene * E + episode) of each stream's current episode."""
        if self._schedule is not None:
            rounds = self._numbers.clamp(max=len(self._schedule) - 1)
            return self._schedule.gather(0, rounds[None])[0]
        for_scene, for_episode = combine(self._keys, self._numbers).unbind()
        scenes = self._open_scenes[below(for_scene, self._num_open)]
        return below(for_episode, self._choices[scenes]).add_(scenes, alpha=self.bank.num_episodes)

    # One step.

    def _walk(self, actions: Tensor) -> Tensor:
        """The state after `actions`, before any reset."""
        turn, way = self._turns[actions], self._ways[actions]
        if self.config.actuation_noise:
            keys = combine(self._noise_keys(self._state), ACTUATION)
            scale = normal(torch.stack((keys, combine(keys, 1)))).mul_(self.config.actuation_noise).add_(1.0)
            turn, way = turn * scale[0], (way * scale[1]).clamp_(min=0.0)
        state = self._state
        heading = state[:, 2] + turn
        step = torch.stack((heading.cos().mul_(way), heading.sin().mul_(way)), 1)
        moved = move(state[:, :2], step, self.bank.contact[self._scenes], self.config.slide)
        x, y = moved.position.unbind(1)
        columns = self.task.advance(state[:, NUM_POSE:PATH], moved.position)
        path, collisions, steps = state[:, PATH:].unbind(1)
        return torch.stack((x, y, heading, *columns, path + moved.travelled, collisions + moved.collided, steps + 1), 1)

    # Observations.

    def _place(self, state: Tensor) -> Place:
        """The places of the streams in `state`."""
        return Place(self._scenes.clone(), state[:, :NUM_POSE], self._noise_keys(state))

    def _vectors(self, state: Tensor, rows: Tensor, previous: Tensor, keys: Tensor) -> dict[str, Tensor]:
        return {**self.task.observe(state, rows, keys), "previous_action": self._one_hot[previous]}

    def _noise_keys(self, state: Tensor) -> Tensor:
        """int64 [N]: the random key of each stream's current step. Without noise, the values do not matter."""
        if not self._is_noisy:
            return self._numbers
        return combine(combine(self._keys[0], self._numbers), state[:, STEPS].long() + 1)


_SAVED = ("keys", "state", "scenes", "rows", "numbers")


def load_bank(config: NavigationConfig) -> SceneBank:
    """The scenes of a configuration."""
    if config.plans:
        return plan_bank(config.plans)
    if config.bank_file:
        return SceneBank.load(config.bank_file)
    return load_or_generate(config.tier, config.split, config.scenes, config.bank_seed)


def _observation_space(config: NavigationConfig, task: Task) -> spaces.Dict:
    previous_action = spaces.Box(0, 1, (NUM_ACTIONS + 1,), np.float32)
    return spaces.Dict({**image_spaces(config), **task.spaces, "previous_action": previous_action})
