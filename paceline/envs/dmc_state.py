"""The exact state of a task of dm_control's suite, in kilobytes. Its whole model takes megabytes."""

from __future__ import annotations

import copy
from typing import Any

import mujoco
import numpy as np

STATE = mujoco.mjtState.mjSTATE_INTEGRATION
LARGE = ("tex_", "mesh_", "skin_", "bvh_")
"""Arrays of the model whose names begin so are large, and no task changes them."""


class SuiteState:
    """Reads and sets the state of a task. Many tasks change their model for each episode.

    So the state has the arrays of the model that differ from those of a new one.
    """

    def __init__(self, env: Any) -> None:
        """`env` is new."""
        self._new = {name: array.copy() for name, array in _arrays(env.physics.model.ptr).items()}

    def get(self, env: Any) -> dict[str, Any]:
        model, data = env.physics.model.ptr, env.physics.data.ptr
        physics = np.empty(mujoco.mj_stateSize(model, STATE))
        mujoco.mj_getState(model, data, physics, STATE)
        arrays = _arrays(model).items()
        return {
            "model": {name: array.copy() for name, array in arrays if not np.array_equal(array, self._new[name])},
            "physics": physics,
            "task": copy.deepcopy(vars(env.task)),
            "steps": env._step_count,
            "is_over": env._reset_next_step,
        }

    def set(self, env: Any, state: dict[str, Any]) -> None:
        model, data = env.physics.model.ptr, env.physics.data.ptr
        for name, array in _arrays(model).items():
            value = state["model"].get(name, self._new[name])
            if not np.array_equal(array, value):
                array[:] = value
                if name == "hfield_data":
                    _show_terrain(env.physics)
        mujoco.mj_resetData(model, data)
        mujoco.mj_setState(model, data, state["physics"], STATE)
        mujoco.mj_step1(model, data)  # as a step of dm_control ends
        vars(env.task).update(copy.deepcopy(state["task"]))
        env._step_count, env._reset_next_step = state["steps"], state["is_over"]


def _arrays(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """The arrays of a model, as views, without the large ones."""
    found = {name: getattr(model, name) for name in dir(model) if not name.startswith(("_", *LARGE))}
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}


def _show_terrain(physics: Any) -> None:
    """Renderers have a copy of height fields."""
    with physics.contexts.gl.make_current() as renderer:
        for number in range(physics.model.nhfield):
            renderer.call(mujoco.mjr_uploadHField, physics.model.ptr, physics.contexts.mujoco.ptr, number)
