"""`RearrangementEnv`: one robot as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from paceline.sims.rearrangement.rendering.pictures import picture
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.simulator import Rearrangement
from paceline.sims.rearrangement.tasks.table import task_config

Observation = dict[str, np.ndarray]


class RearrangementEnv(gymnasium.Env):
    """The first `reset(seed=s)` begins stream number `stream` of `Rearrangement.reset(s)`.

    The info of an episode's last step contains its measures, named as in `Rearrangement.last_measures`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as Gymnasium declares it

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
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode {render_mode!r} does not exist; allowed: rgb_array, or None")
        self.render_mode = render_mode
        config = task_config(task, options, f"paceline/Rearrange-v0 ({task})")
        self.simulator = Rearrangement(1, "cpu", task, config, bank=bank, first_stream=stream)
        self.observation_space = self.simulator.observation_space
        self.action_space = self.simulator.action_space
        self.measure_names = self.simulator.measure_names
        self._next: dict[str, Tensor] | None = None  # first observation of the episode that has already begun
        self._is_seeded = self._is_under_way = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        if seed is None and not self._is_seeded:
            seed = int(self.np_random.integers(2**31))
        if seed is not None:
            first, self._is_seeded = self.simulator.reset(seed), True
        else:
            # At the end of an episode, the simulator has already begun the next one.
            first = self._next if self._next is not None else self.simulator.begin_next()
        self._next, self._is_under_way = None, True
        return _host(first), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict]:
        if not self._is_under_way or self._next is not None:
            raise gymnasium.error.ResetNeeded("no episode is under way: call reset before step")
        chosen = np.asarray(action, np.float32)
        if not np.isfinite(chosen).all():
            raise ValueError(f"action {chosen.tolist()} is not finite; allowed: numbers from -1 to 1")
        step = self.simulator.step(torch.as_tensor(chosen)[None])
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        info: dict[str, Any] = {}
        if terminated or truncated:
            self._next = step.obs
            info = {name: float(values[0]) for name, values in self.simulator.last_measures.items()}
        return _host(step.final_obs), float(step.reward[0]), terminated, truncated, info

    def get_state(self) -> dict[str, Any]:
        """The state for an exact continuation."""
        flags = {"is_seeded": self._is_seeded, "is_under_way": self._is_under_way}
        return {"simulator": self.simulator.state_dict(), "next": self._next, **flags}

    def set_state(self, state: dict[str, Any]) -> None:
        self.simulator.load_state_dict(state["simulator"])
        self._next, self._is_seeded, self._is_under_way = state["next"], state["is_seeded"], state["is_under_way"]

    def render(self) -> np.ndarray | None:
        """uint8 [H, W, 3]: what the robot sees beside the house from above."""
        if self.render_mode is None or not self._is_under_way:
            return None
        # After the last step of an episode the simulator is in the next one already.
        stream = self.simulator.last_stream if self._next is not None else self.simulator.stream
        assert stream is not None
        return picture(self.simulator, stream)


def _host(obs: dict[str, Tensor]) -> Observation:
    return {name: values[0].numpy().copy() for name, values in obs.items()}
