"""`VectorSimulator`: a Gymnasium `VectorEnv` as a `TensorSimulator`, in each of its autoreset modes.

Legend: N environments.

At the end of an episode, by autoreset mode:

- `SAME_STEP`: the observation is the first of the next episode, and `infos["final_obs"]` has the last one.
- `NEXT_STEP`: the observation is the last one. The next step ignores the action, and returns the first observation of
  the next episode. Meanwhile the slot is not `active`, so that this step is not experience.
- `DISABLED`: the observation is the last one, and `reset(options={"reset_mask": ...})` returns the first of the next
  episode. The host has to know whether to reset, so it waits for the device at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from paceline.errors import UsageError
from paceline.pool.spaces import leaves
from paceline.pool.tensor import TensorStep
from paceline.pool.vector_arrays import ArrayReader, action_tree, branch, converter_to

try:
    from gymnasium.vector import AutoresetMode
except ImportError:  # before Gymnasium 1.1
    AutoresetMode = None  # type: ignore[assignment, misc]

MODES = "gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED"
FINAL_OBS = ("final_obs", "final_observation")
"""Names of last observations in `infos`. ManiSkill uses the older one."""


class VectorSimulator:
    """A `TensorSimulator`. Errors begin with `label`."""

    def __init__(self, env: VectorEnv, num_envs: int, device: str, label: str) -> None:
        self._env, self._label, self._mode = env, label, _mode_of(env, label)
        missing = [
            name
            for name in ("num_envs", "single_observation_space", "single_action_space")
            if getattr(env, name, None) is None
        ]
        if missing:
            raise UsageError(f"{label} lacks {', '.join(missing)}, which a gymnasium.vector.VectorEnv has")
        if env.num_envs != num_envs:
            raise UsageError(f"{label} has num_envs {env.num_envs}; allowed: {num_envs}, as the function is given")
        self.num_envs, self.device = num_envs, torch.device(device)
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.frameskip = getattr(env, "frameskip", 1)
        self.truncation_gap = getattr(env, "truncation_gap", 1)
        self.measure_names = tuple(getattr(env, "measure_names", ()))
        self.last_measures: dict[str, Tensor] = {}
        self._obs_leaves, self._action_leaves = (
            leaves(self.observation_space, "obs"),
            leaves(self.action_space, "action"),
        )
        self._arrays = ArrayReader(num_envs, self.device, label)
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._zero = torch.zeros(num_envs, device=self.device)
        self._resets = self._never
        """[N] bool: with `NEXT_STEP`, environments whose next step only resets them."""
        self._lacks_final_obs = torch.zeros((), dtype=torch.bool, device=self.device)
        """Whether an episode was truncated without a last observation."""

    @property
    def active(self) -> Tensor | None:
        """[N] bool: observations that need a decision. None: all."""
        return ~self._resets if self._mode == "NEXT_STEP" else None

    def reset(self, seed: int) -> dict[str, Tensor]:
        seen, _ = self._env.reset(seed=seed)
        self._resets = self._never
        self._to_env = converter_to(branch(seen, self._obs_leaves[0], self._label))
        return self._arrays.observations(seen, self._obs_leaves)

    def step(self, actions: Any) -> TensorStep:
        named = actions if isinstance(actions, dict) else {self._action_leaves[0].name: actions}
        seen, reward, terminated, truncated, infos = self._env.step(
            action_tree(self.action_space, named, self._action_leaves, self._to_env)
        )
        obs, reward = self._arrays.observations(seen, self._obs_leaves), self._arrays.rewards(reward)
        terminated = self._arrays.flags(terminated, "terminated")
        truncated = self._arrays.flags(truncated, "truncated") & ~terminated
        step = TensorStep(obs, reward, terminated, truncated, obs)
        if self._mode == "SAME_STEP":
            self._add_final_obs(step, infos)
        elif self._mode == "NEXT_STEP":
            step = self._without_resets(step)
        self._measure(infos, step)
        return self._reset_ended(step) if self._mode == "DISABLED" else step

    def _add_final_obs(self, step: TensorStep, infos: Mapping[str, Any]) -> None:
        """With `SAME_STEP`: take the last observations from `infos`."""
        found = next((infos[name] for name in FINAL_OBS if infos.get(name) is not None), None)
        if found is None:
            self._lacks_final_obs |= step.truncated.any()
        elif isinstance(found, np.ndarray) and found.dtype == object:
            step.final_obs = self._from_objects(found, step)
        else:
            step.final_obs = self._arrays.observations(found, self._obs_leaves, FINAL_OBS[0])

    def _from_objects(self, found: np.ndarray, step: TensorStep) -> dict[str, Tensor]:
        """Last observations as Gymnasium's own vector environments give them: one by one, None where there is none."""
        rows = [row for row, one in enumerate(found) if one is not None]
        self._lacks_final_obs |= step.truncated.any() & ~step.truncated[rows].sum().eq(step.truncated.sum())
        final = {name: values.clone() for name, values in step.obs.items()}
        for leaf in self._obs_leaves:
            for row in rows:
                value = np.asarray(branch(found[row], leaf, self._label)) - leaf.offset
                final[leaf.name][row] = torch.as_tensor(value, dtype=final[leaf.name].dtype)
        return final

    def _without_resets(self, step: TensorStep) -> TensorStep:
        """With `NEXT_STEP`: a step that only reset an environment has no outcome."""
        was_reset, self._resets = self._resets, step.terminated | step.truncated
        return TensorStep(
            step.obs,
            torch.where(was_reset, self._zero, step.reward),
            step.terminated & ~was_reset,
            step.truncated & ~was_reset,
            step.final_obs,
        )

    def _reset_ended(self, step: TensorStep) -> TensorStep:
        """With `DISABLED`: reset the environments whose episodes ended."""
        ended = step.terminated | step.truncated
        if not ended.any():
            return step
        # The environment may write the reset into the memory of its last results.
        last = {name: values.clone() for name, values in step.obs.items()}
        reward, terminated, truncated = step.reward.clone(), step.terminated.clone(), step.truncated.clone()
        self.last_measures = {name: values.clone() for name, values in self.last_measures.items()}
        seen, _ = self._env.reset(options={"reset_mask": self._to_env(ended)})
        first = self._arrays.observations(seen, self._obs_leaves)
        obs = {name: torch.where(_as_wide(ended, first[name]), first[name], values) for name, values in last.items()}
        return TensorStep(obs, reward, terminated, truncated, last)

    def _measure(self, infos: Mapping[str, Any], step: TensorStep) -> None:
        """Read the announced measures of this step. Where no episode has ended, they may be absent."""
        if not self.measure_names:
            return
        if self._mode == "SAME_STEP":
            infos = infos.get("final_info", dict.fromkeys(self.measure_names, self._zero))
        absent = [name for name in self.measure_names if name not in infos]
        if absent and (step.terminated | step.truncated).any():
            raise UsageError(f"{self._label} announces the measure {absent[0]!r}, which is not in its infos")
        self.last_measures = {
            name: self._arrays.read(infos.get(name, self._zero), f"measure {name!r}", (), torch.float32)
            for name in self.measure_names
        }

    def check(self) -> None:
        """Raise for what went wrong since the last call. Waits for the device."""
        if self._lacks_final_obs:
            raise UsageError(
                f"{self._label} truncated an episode in the autoreset mode SAME_STEP without its last observation; "
                f"allowed: infos[{FINAL_OBS[0]!r}] with the form of the observations"
            )

    def state_dict(self) -> dict[str, Any]:
        """The state of the environment, if it has methods of this name."""
        for name in ("state_dict", "load_state_dict"):
            if not hasattr(self._env, name):
                raise UsageError(f"{self._label} cannot be saved, because it has no {name}")
        state = self._env.state_dict()  # type: ignore[attr-defined]
        if (odd := _not_plain(state)) is not None:
            raise UsageError(
                f"{self._label} cannot be saved, because its state_dict holds a {odd}; allowed: tensors, numbers, "
                "strings, and lists and dictionaries of them"
            )
        return {"env": state, "resets": self._resets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._env.load_state_dict(state["env"])  # type: ignore[attr-defined]
        self._resets = state["resets"].to(self.device)

    def close(self) -> None:
        self._env.close()


def _mode_of(env: VectorEnv, label: str) -> str:
    """The name of the autoreset mode that the environment announces."""
    if AutoresetMode is None:
        raise UsageError(f"{label} is a vector environment, which needs Gymnasium 1.1 or later")
    found = (env.metadata or {}).get("autoreset_mode")
    if found is None:
        raise UsageError(f"the metadata of {label} has no 'autoreset_mode'; allowed: {MODES}")
    try:
        return AutoresetMode(found).name
    except ValueError:
        raise UsageError(f"the metadata of {label} has the autoreset_mode {found!r}; allowed: {MODES}") from None


def _not_plain(state: Any) -> str | None:
    """The type of the first value that only running code could load again; None if there is none."""
    if isinstance(state, Mapping):
        state = [*state.keys(), *state.values()]
    if type(state) in (list, tuple):
        return next((odd for part in state if (odd := _not_plain(part)) is not None), None)
    plain = isinstance(state, Tensor) or state is None or type(state) in (bool, int, float, str, bytes)
    return None if plain else f"{type(state).__module__}.{type(state).__qualname__}"


def _as_wide(mask: Tensor, like: Tensor) -> Tensor:
    """A mask [N] that can be combined with [N, ...]."""
    return mask.view(-1, *[1] * (like.ndim - 1))
