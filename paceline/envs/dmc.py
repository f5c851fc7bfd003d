"""`dmc:domain-task`: the DeepMind Control Suite by dm_control, or by EnvPool in C++ where it is installed.

`dmc:manipulation-task` are dm_control's tasks for a Jaco arm. With `pixels`, observations are images.

EnvPool has the suite's models and rewards. Some of its tasks observe more than dm_control's, or in another order. This
family gives dm_control's observations in dm_control's order, so that a policy trained with one runs with the other.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from paceline.envs.dmc_tasks import (
    MANIPULATION,
    ControlTask,
    PixelSettings,
    PixelTask,
    SuiteTask,
    has_images,
    manipulation,
    suite,
)
from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.envs.options import Options
from paceline.errors import UsageError, closest

if TYPE_CHECKING:
    from paceline.envs.envpool import EnvPoolTask

log = logging.getLogger(__name__)


CAMERAS = {"quadruped": 2}
"""Cameras of domains whose first camera does not follow the body."""
PIXELS_ONLY = ("stack", "camera", "shadows")
"""Options that describe images."""


def names() -> list[str]:
    return [*_suite_names(), *_manipulation_names()]


def _suite_names() -> list[str]:
    return [f"{domain}-{task}" for domain, task in suite().ALL_TASKS]


def _manipulation_names() -> list[str]:
    return [f"{MANIPULATION}-{task}" for task in manipulation().ALL]


def resolve(env_id: EnvId) -> Factory:
    """Options: `frameskip`, the control steps per action, and `flat`, one vector as the observation.

    `pixels` is the resolution of images, which are then the observation. `stack`, `camera` and `shadows` describe them.
    """
    options = Options(env_id, ["frameskip", "flat", "pixels", *PIXELS_ONLY])
    frameskip = options.integer("frameskip", 1, minimum=1)
    flat = options.flag("flat", False)
    domain, _, task = env_id.name.partition("-")
    # Importing the tasks of the arm takes a while.
    allowed = _manipulation_names() if domain == MANIPULATION else _suite_names()
    if env_id.name not in allowed:
        allowed = names()
        raise UsageError(
            f"task {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, allowed)}; "
            f"allowed: {', '.join(allowed)}"
        )
    if flat and ((domain == MANIPULATION and has_images(task)) or options.get("pixels") is not None):
        raise UsageError(f"option 'flat' of {str(env_id)!r} is for vectors only; allowed: no images")
    pixels = _pixels(options, domain, env_id)
    one = Factory(make=partial(_make, domain, task, frameskip, flat, pixels), frameskip=frameskip, label=str(env_id))
    in_envpool = frameskip == 1 and pixels is None and domain != MANIPULATION
    many = _in_envpool(domain, task, flat) if in_envpool else None
    return one if many is None else Factory(make=many, backend="envpool", label=str(env_id), single=one)


def _pixels(options: Options, domain: str, env_id: EnvId) -> PixelSettings | None:
    if options.get("pixels") is None:
        for name in PIXELS_ONLY:
            if options.get(name) is not None:
                raise UsageError(
                    f"option {name!r} of {str(env_id)!r} describes images; allowed: together with pixels=84"
                )
        return None
    if domain == MANIPULATION:
        raise UsageError(
            f"option 'pixels' of {str(env_id)!r} does not exist; allowed: the tasks whose names end in _vision"
        )
    width, height = options.sizes("pixels", (84, 84), count=2)
    return PixelSettings(
        resolution=(width, height),
        stack=options.integer("stack", 3, minimum=1),
        camera=options.integer("camera", CAMERAS.get(domain, 0)),
        shadows=options.flag("shadows", True),
    )


def _make(
    domain: str, task: str, frameskip: int, flat: bool, pixels: PixelSettings | None, env_index: int
) -> ControlTask | PixelTask:
    env = (ControlTask if domain == MANIPULATION else SuiteTask)(domain, task, frameskip, flat)
    return env if pixels is None else PixelTask(env, pixels)


@functools.cache
def _in_envpool(domain: str, task: str, flat: bool) -> EnvPoolTask | None:
    """EnvPool's version of a task. None unless it has dm_control's time limit and observations."""
    if importlib.util.find_spec("envpool") is None:
        return None
    try:
        from paceline.envs.envpool import EnvPoolTask, config_of
        from paceline.envs.envpool import names as envpool_names
    except ImportError as error:
        log.warning("EnvPool is installed but cannot be imported (%s): control tasks run in dm_control", error)
        return None
    words = f"{domain}_{task}".split("_")
    name = "".join(word[:1].upper() + word[1:] for word in words) + "-v1"
    if name not in envpool_names():
        return None
    env = suite().load(domain, task)
    sizes = {key: int(np.prod(spec.shape)) for key, spec in env.observation_spec().items()}
    limit = env._step_limit
    env.close()
    spec = EnvPoolTask(name).spec()
    shown = {key: int(np.prod(box.shape)) for key, box in spec.gymnasium_observation_space.spaces.items()}
    if config_of(spec)["max_episode_steps"] != limit or any(shown.get(key) != size for key, size in sizes.items()):
        return None
    return EnvPoolTask(name, vectors=tuple(sizes), flat=flat)
