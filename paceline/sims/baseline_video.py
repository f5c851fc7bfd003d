"""Videos of baselines of batched simulators."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import gymnasium
import torch
from torch import Tensor

from paceline.evaluation.video import film_agent


class StreamAgent(Protocol):
    """A baseline; see `Agent` of navigation."""

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor: ...


def film_baseline(env: gymnasium.Env, agent: StreamAgent, path: Path, *, seed: int) -> int:
    """Write one episode of an agent that was made for the simulator of `env`, of one stream; the number of frames."""

    def act(obs: Any, is_first: bool) -> Any:
        together = {name: torch.as_tensor(values)[None] for name, values in obs.items()}
        return agent.act(together, torch.tensor([is_first]))[0].numpy()

    return film_agent(env, act, path, seed=seed)
