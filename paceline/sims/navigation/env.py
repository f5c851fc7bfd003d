"""`NavigationEnv`: one stream of the simulator as a Gymnasium environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

from paceline.sims.navigation.rendering import maps, render
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.navigation.tasks.table import TASKS
from paceline.sims.one_stream import RENDER_MODES, Observation, OneStream, checked_render_mode

RENDER_SIDE = 256
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

    metadata = {"render_modes": [*RENDER_MODES], "render_fps": 10}  # noqa: RUF012 - as Gymnasium declares it

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
        self.render_mode = checked_render_mode(render_mode)
        config = TASKS[task].config.of_options(options, TASKS[task].gym_id)
        self.simulator = Navigation(1, "cpu", config, bank=bank, first_stream=stream)
        self.observation_space = self.simulator.observation_space
        self.action_space = self.simulator.action_space
        self.measure_names = self.simulator.measure_names
        self._stream = OneStream(self.simulator)
        self._episode: _Episode | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        first = self._stream.reset(seed, self.np_random)
        self._episode = _Episode(int(self.simulator.rows[0]), [self._pose()])
        return first, {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict]:
        result = self._stream.step(torch.tensor(int(action)))
        assert self._episode is not None
        self._episode.poses.append(self._pose())
        return result

    def get_state(self) -> dict[str, Any]:
        """The state for an exact continuation. The recorded poses for `render` are not included."""
        return self._stream.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._stream.set_state(state)
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
