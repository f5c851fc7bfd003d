"""`OneStream`: one stream of a batched simulator, played as a Gymnasium environment is."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium
import numpy as np
from torch import Tensor

from paceline.pool.tensor import TensorStep

Observation = dict[str, np.ndarray]
RENDER_MODES = ("rgb_array",)


class StreamSimulator(Protocol):
    """A batched simulator, here of one stream."""

    @property
    def last_measures(self) -> dict[str, Tensor]:
        """[N] each, after the last step."""
        ...

    def reset(self, seed: int) -> dict[str, Tensor]: ...
    def begin_next(self) -> dict[str, Tensor]: ...
    def step(self, actions: Tensor) -> TensorStep: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OneStream:
    """At the end of an episode, the simulator has already begun the next one, and `reset` continues with it."""

    def __init__(self, simulator: StreamSimulator) -> None:
        self._simulator = simulator
        self._next: dict[str, Tensor] | None = None  # first observation of the episode that has already begun
        self._is_seeded = self._is_under_way = False

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended, and the simulator is in the next one."""
        return self._next is not None

    def reset(self, seed: int | None, random: np.random.Generator) -> Observation:
        """Begin an episode. Without any seed yet, `random` draws one."""
        if seed is None and not self._is_seeded:
            seed = int(random.integers(2**31))
        if seed is not None:
            first, self._is_seeded = self._simulator.reset(seed), True
        else:
            first = self._next if self._next is not None else self._simulator.begin_next()
        self._next, self._is_under_way = None, True
        return _host(first)

    def step(self, action: Tensor) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """What Gymnasium's `step` returns. The info of an episode's last step contains its measures."""
        if not self._is_under_way or self._next is not None:
            raise gymnasium.error.ResetNeeded("no episode is under way: call reset before step")
        step = self._simulator.step(action[None])
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        info: dict[str, Any] = {}
        if terminated or truncated:
            self._next = step.obs
            info = {name: float(values[0]) for name, values in self._simulator.last_measures.items()}
        return _host(step.final_obs), float(step.reward[0]), terminated, truncated, info

    def get_state(self) -> dict[str, Any]:
        """The state for an exact continuation."""
        flags = {"is_seeded": self._is_seeded, "is_under_way": self._is_under_way}
        return {"simulator": self._simulator.state_dict(), "next": self._next, **flags}

    def set_state(self, state: dict[str, Any]) -> None:
        self._simulator.load_state_dict(state["simulator"])
        self._next, self._is_seeded = state["next"], state["is_seeded"]
        self._is_under_way = state.get("is_under_way", True)  # older states do not have it


def checked_render_mode(mode: str | None) -> str | None:
    if mode not in (None, *RENDER_MODES):
        raise ValueError(f"render_mode {mode!r} does not exist; allowed: {', '.join(RENDER_MODES)}, or None")
    return mode


def _host(obs: dict[str, Tensor]) -> Observation:
    return {name: values[0].numpy().copy() for name, values in obs.items()}
