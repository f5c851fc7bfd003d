"""`NavigationEnv`: one stream of the simulator as a Gymnasium environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.rendering import maps, render
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.navigation.tasks.table import TASKS

RENDER_SIDE = 256
Observation = dict[str, np.ndarray]
Pose = tuple[float, float, float]


@dataclass(frozen=True)
class _Episode:
    """What `render` shows. The simulator may already be in the next episode."""

    row: int
    """See `Navigation.rows`."""
    poses: list[Pose]


class NavigationEnv(gymnasium.Env):
    """With seed s, it is stream number `stream` of `Navigation.reset(s)`. The info of an episode's last step contains
    its measures, named as in `Navigation.last_measures`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        task: str = "pointnav",
        *,
        render_mode: str | None = None,
        stream: int = 0,
        bank: SceneBank | None = None,
        **options: Any,
    ) -> None:
        """`task` is a name in `TASKS`. `options` are those of its configuration."""
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode {render_mode!r} does not exist; allowed: rgb_array, or None")
        self.render_mode = render_mode
        config = TASKS[task].config.of_options(options, TASKS[task].gym_id)
        self.simulator = Navigation(1, "cpu", config, bank=bank, first_stream=stream)
        self.observation_space = self.simulator.observation_space
        self.action_space = self.simulator.action_space
        self.measure_names = self.simulator.measure_names
        self._next: dict[str, Tensor] | None = None  # first observation of the episode that has already begun
        self._is_seeded = False
        self._episode: _Episode | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        if seed is None and not self._is_seeded:
            seed = int(self.np_random.integers(2**31))
        if seed is not None:
            first, self._is_seeded = self.simulator.reset(seed), True
        else:
            # At the end of an episode, the simulator has already begun the next one.
            first = self._next if self._next is not None else self.simulator.begin_next()
        self._next = None
        self._episode = _Episode(int(self.simulator.rows[0]), [self._pose()])
        return _host(first), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict]:
        if self._next is not None or self._episode is None:
            raise gymnasium.error.ResetNeeded("no episode is under way: call reset before step")
        step = self.simulator.step(torch.tensor([int(action)]))
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        info: dict[str, Any] = {}
        if terminated or truncated:
            self._next = step.obs
            info = {name: float(values[0]) for name, values in self.simulator.last_measures.items()}
        self._episode.poses.append(self._pose())
        return _host(step.final_obs), float(step.reward[0]), terminated, truncated, info

    def get_state(self) -> dict[str, Any]:
        """The state for an exact continuation. The recorded poses for `render` are not included."""
        return {"simulator": self.simulator.state_dict(), "next": self._next, "is_seeded": self._is_seeded}

    def set_state(self, state: dict[str, Any]) -> None:
        self.simulator.load_state_dict(state["simulator"])
        self._next, self._is_seeded = state["next"], state["is_seeded"]
        x, y, heading = self.simulator.poses[0].tolist()
        self._episode = _Episode(int(self.simulator.rows[0]), [(x, y, heading)])

    def render(self) -> np.ndarray | None:
        """uint8 [H, W, 3]: the camera image beside a map with the trajectory."""
        if self.render_mode is None or self._episode is None:
            return None
        episode, bank = self._episode, self.simulator.bank
        scene = episode.row // bank.num_episodes
        scenes, poses = torch.tensor([scene]), torch.tensor([episode.poses[-1]])
        camera = render.Camera(RENDER_SIDE)
        view = render.trace(bank, camera, scenes, poses, surfaces=True)
        seen = render.shade(bank, camera, scenes, poses, view)[0].permute(1, 2, 0).numpy()
        marks = self.simulator.task.marks(episode.row)._asdict()
        trajectory = np.array(episode.poses)[:, :2]
        above = maps.top_down(
            bank.scene(scene), size=RENDER_SIDE, trajectories=[trajectory], pose=episode.poses[-1], **marks
        )
        return np.concatenate([seen, maps.centered(above, RENDER_SIDE, RENDER_SIDE)], 1)

    def _pose(self) -> Pose:
        """The pose after the last step, before any reset."""
        x, y, heading = self.simulator.last_poses[0].tolist()
        return x, y, heading


def _host(obs: dict[str, Tensor]) -> Observation:
    return {name: values[0].numpy().copy() for name, values in obs.items()}
