"""`RearrangementEnv`: one robot as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from paceline.sims.one_stream import RENDER_MODES, Observation, OneStream, checked_render_mode
from paceline.sims.rearrangement.rendering.ongoing_pictures import OngoingPictures
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.simulator import Rearrangement
from paceline.sims.rearrangement.tasks.table import task_config


class RearrangementEnv(gymnasium.Env):
    """The first `reset(seed=s)` begins stream number `stream` of `Rearrangement.reset(s)`.

    The info of an episode's last step contains its measures, named as in `Rearrangement.last_measures`.
    """

    metadata = {"render_modes": [*RENDER_MODES], "render_fps": 30}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        task: str = "pick",
        *,
        render_mode: str | None = None,
        stream: int = 0,
        bank: HouseBank | None = None,
        **options: Any,
    ) -> None:
        """`task` is a name in `SKILLS`. `options` are those of `RearrangementConfig`."""
        self.render_mode = checked_render_mode(render_mode)
        config = task_config(task, options, f"paceline/Rearrange-v0 ({task})")
        self.simulator = Rearrangement(1, "cpu", task, config, bank=bank, first_stream=stream)
        self.observation_space = self.simulator.observation_space
        self.action_space = self.simulator.action_space
        self.measure_names = self.simulator.measure_names
        self._stream = OneStream(self.simulator)
        self._pictures = OngoingPictures(self.simulator)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        first = self._stream.reset(seed, self.np_random)
        self._pictures.begin()
        return first, {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict]:
        chosen = np.asarray(action, np.float32)
        if not np.isfinite(chosen).all():
            raise ValueError(f"action {chosen.tolist()} is not finite; allowed: numbers from -1 to 1")
        result = self._stream.step(torch.as_tensor(chosen))
        assert self.simulator.last_facts is not None and self.simulator.last_stream is not None
        self._pictures.step(self.simulator.last_facts, self.simulator.last_stream)
        return result

    def get_state(self) -> dict[str, Any]:
        """The state for an exact continuation. What `render` shows of the past is not included."""
        return self._stream.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._stream.set_state(state)
        self._pictures.begin()

    def render(self) -> np.ndarray | None:
        """uint8 [H, W, 3]: what the robot sees, the robot from outside, and the house from above, with the path since
        the first `render`."""
        return None if self.render_mode is None else self._pictures.picture()
