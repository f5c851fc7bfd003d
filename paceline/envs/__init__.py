"""Environments and their adapters: every family of ids, resolved to a factory that a pool can use."""

from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.envs.registry import FAMILIES, resolve

__all__ = ["FAMILIES", "EnvId", "Factory", "resolve"]
