"""`PongMatch`: one match of `tensor:pong` with PettingZoo's parallel API, for videos and for pools of single
environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.envs.tensor_pong import HALF_PADDLE, LEFT, LEFT_POINTS, RIGHT, RIGHT_POINTS, TensorPong, X, Y

WIDTH, HEIGHT, MARGIN = 256, 224, 24
"""Of a frame, in pixels. The score is in the margin."""
THICK = 6
"""The ball's side, and the width of a paddle."""
BACKGROUND, LINE, PLAYERS, BALL = (18, 22, 30), (52, 60, 74), ((96, 176, 255), (255, 150, 92)), (240, 240, 240)

ByAgent = dict[str, Any]


class PongMatch:
    """With seed s, its matches are those of stream 0 of `TensorPong.reset(s)`. The last info of an episode has its
    measures, named as in `TensorPong.last_measures`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30, "name": "pong"}  # noqa: RUF012 - PettingZoo's format
    render_mode = "rgb_array"
    measure_names = TensorPong.measure_names

    def __init__(self, points: int = 3, max_episode_steps: int = 1000) -> None:
        self._simulator = TensorPong(1, points=points, max_episode_steps=max_episode_steps)
        self._points = points
        self.possible_agents = list(TensorPong.agents)
        self.agents: list[str] = []
        self._next: Tensor | None = None  # first observation of the match that has already begun

    @property
    def unwrapped(self) -> PongMatch:
        return self

    def observation_space(self, agent: str) -> spaces.Space:
        return self._simulator.observation_space

    def action_space(self, agent: str) -> spaces.Space:
        return self._simulator.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        """Start a match. Without a seed it is the next one of the stream, or of a new stream if a match is under way
        or none has begun."""
        if seed is not None or self._next is None:
            seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
            self._next = self._simulator.reset(seed)["obs"]
        first, self._next = self._next, None
        self.agents = list(self.possible_agents)
        return self._by_agent(first.numpy().copy()), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        if not self.agents:
            raise ValueError("no match is under way: call reset before step")
        step = self._simulator.step(torch.tensor([int(actions[agent]) for agent in self.possible_agents]))
        ended = bool(step.terminated[0] | step.truncated[0])
        infos: ByAgent = {agent: {} for agent in self.agents}
        if ended:
            self._next, self.agents = step.obs["obs"], []
            for name, values in self._simulator.last_measures.items():
                for agent, value in self._by_agent(values.tolist()).items():
                    infos[agent][name] = value
        return (
            self._by_agent(step.final_obs["obs"].numpy().copy()),
            self._by_agent(step.reward.tolist()),
            self._by_agent(step.terminated.tolist()),
            self._by_agent(step.truncated.tolist()),
            infos,
        )

    def render(self) -> np.ndarray:
        """uint8 [H, W, 3]: the court, left player blue, right player orange, and one mark for each point."""
        return draw(self._simulator.last_state[:, 0].tolist(), self._points)

    def get_state(self) -> dict[str, Any]:
        return {"simulator": self._simulator.state_dict(), "next": self._next, "agents": list(self.agents)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._simulator.load_state_dict(state["simulator"])
        self._next, self.agents = state["next"], list(state["agents"])

    def close(self) -> None:
        """Does nothing: there is only memory to free."""

    def _by_agent(self, values: Any) -> ByAgent:
        return dict(zip(self.possible_agents, values, strict=True))


def draw(state: list[float], points: int) -> np.ndarray:
    """A frame of one match in `state` [9]."""
    frame = np.full((HEIGHT, WIDTH, 3), BACKGROUND, np.uint8)
    court = frame[MARGIN:]
    court[:: 2 * THICK, WIDTH // 2 - 1 : WIDTH // 2 + 1] = LINE
    frame[MARGIN - 2 : MARGIN] = LINE
    height, width = court.shape[0] - THICK, WIDTH - 3 * THICK

    def row(y: float) -> int:
        return round((1 - y) / 2 * height)

    def column(x: float) -> int:
        return THICK + round((x + 1) / 2 * width)

    for paddle, left, colour in zip((LEFT, RIGHT), (0, WIDTH - THICK), PLAYERS, strict=True):
        top, bottom = row(state[paddle] + HALF_PADDLE), row(state[paddle] - HALF_PADDLE)
        court[top : bottom + THICK, left : left + THICK] = colour
    court[row(state[Y]) : row(state[Y]) + THICK, column(state[X]) : column(state[X]) + THICK] = BALL
    pitch = min(2 * THICK, (WIDTH // 2 - THICK) / points)
    for score, side, colour in zip((LEFT_POINTS, RIGHT_POINTS), (-1, 1), PLAYERS, strict=True):
        for point in range(int(state[score])):
            centre = round(WIDTH / 2 + side * (THICK + pitch * (point + 0.5)))
            frame[8:16, centre - round(pitch / 3) : centre + max(1, round(pitch / 3))] = colour
    return frame
