"""A stand-in of habitat-lab for tests of the adapter, with the interface and the habits that the adapter relies on.

It mirrors these functions and classes of habitat-lab 0.3.3 (commit 0fb6f43), with their signatures:

    habitat.get_config(config_path, overrides)            habitat/config/default.py
    habitat.make_dataset(id_dataset, **kwargs)            habitat/datasets/registration.py
    habitat.config.read_write(config)                     habitat/config/read_write.py
    habitat.gym.make_gym_from_config(config, dataset)     habitat/gym/gym_definitions.py
    HabGymWrapper, RLTaskEnv, RLEnv, Env                  habitat/gym/gym_wrapper.py, core/environments.py, core/env.py
    EpisodeIterator                                       habitat/core/dataset.py

The world is a line. The agent starts at 0, and `turn_left` does nothing.
"""

from .config import get_config, read_write
from .datasets import make_dataset

__all__ = ["get_config", "make_dataset", "read_write"]
