"""Vector environments of identifiable numbers in all autoreset modes, and one such environment alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

MODES = [mode.name for mode in AutoresetMode]


class Alone:
    """One environment. Its observations are (number, episode, step); lengths and kinds of ends depend on the first two.
    An episode has one to five steps."""

    def __init__(self, number: int) -> None:
        self.number, self.episode, self.step_number = number, -1, 0
        self.reset()

    def reset(self) -> None:
        self.episode, self.step_number = self.episode + 1, 0

    def observe(self) -> list[float]:
        return [self.number, self.episode, self.step_number]

    def step(self, action: int) -> tuple[float, bool, bool]:
        """Reward, terminated, truncated. Every fifth end is both."""
        self.step_number += 1
        draw = (7 * self.number + 5 * self.episode + self.number * self.episode) % 10
        ended = self.step_number > draw % 5
        return action * 10 + self.step_number, ended and draw % 5 != 3, ended and draw % 5 in (0, 3)


class Foreign:
    """An array that has nothing but `__dlpack__`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


KINDS = {"torch": lambda tensor: tensor, "numpy": lambda tensor: tensor.numpy(), "dlpack": Foreign}


class Numbers(VectorEnv):
    """`Alone` n times. Results are always in the same memory, as those of many simulators are."""

    measure_names = ("length",)

    def __init__(
        self, num_envs: int, device: str = "cpu", mode: str = "SAME_STEP", arrays: str = "torch", nested: bool = False
    ) -> None:
        self.num_envs, self._array, self._nested = num_envs, KINDS[arrays], nested
        self.metadata = {"autoreset_mode": AutoresetMode[mode]}
        self._mode = mode
        box = spaces.Box(0, np.inf, (3,), np.float32)
        choice = spaces.Discrete(1000, start=5)
        self.single_observation_space = spaces.Dict({"it": box, "more": spaces.Tuple((choice,))}) if nested else box
        self.single_action_space = spaces.Dict({"a": spaces.Discrete(3, start=2)}) if nested else spaces.Discrete(3)
        dtype = torch.float64 if nested else torch.float32
        self._obs, self._reward = torch.zeros(num_envs, 3, dtype=dtype), torch.zeros(num_envs)
        self._flags = torch.zeros(2, num_envs, dtype=torch.bool)

    def reset(self, *, seed=None, options=None):
        if options is None:
            self.envs = [Alone(number) for number in range(self.num_envs)]
            self._flags.zero_()
        else:
            mask = options["reset_mask"]
            assert self._mode == "DISABLED" and any(mask.tolist())
            for env, one in zip(self.envs, mask.tolist(), strict=True):
                if one:
                    env.reset()
            self._flags.zero_()
        return self._observation(), {}

    def step(self, actions):
        chosen = (np.asarray(actions["a"]) - 2 if self._nested else np.asarray(actions)).tolist()
        before = self._flags.any(0).tolist()
        last = torch.zeros_like(self._obs)
        length = torch.zeros(self.num_envs)
        for row, (env, action) in enumerate(zip(self.envs, chosen, strict=True)):
            if before[row] and self._mode == "NEXT_STEP":
                env.reset()
                self._reward[row], self._flags[:, row] = 0.0, False
                continue
            assert not (before[row] and self._mode == "DISABLED"), "it was not reset"
            reward, terminated, truncated = env.step(action)
            self._reward[row], self._flags[0, row], self._flags[1, row] = reward, terminated, truncated
            last[row], length[row] = torch.tensor(env.observe()), env.step_number
            if (terminated or truncated) and self._mode == "SAME_STEP":
                env.reset()
        infos: dict[str, Any] = {"length": self._array(length)}
        if self._mode == "SAME_STEP" and self._flags.any():
            infos = {"final_obs": self._tree(last), "final_info": infos}
        flags = [self._array(flags) for flags in self._flags]
        return self._observation(), self._array(self._reward), *flags, infos

    def _observation(self):
        self._obs.copy_(torch.tensor([env.observe() for env in self.envs]))
        return self._tree(self._obs)

    def _tree(self, obs: torch.Tensor) -> Any:
        if not self._nested:
            return self._array(obs)
        return {"it": self._array(obs), "more": (self._array(obs[:, 2].int() + 5),)}
