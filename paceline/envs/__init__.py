"""Environments and their adapters: every family of ids, resolved to something a pool can step."""

from paceline.envs.ids import EnvId
from paceline.envs.registry import FAMILIES, Factory, resolve

__all__ = ["FAMILIES", "EnvId", "Factory", "resolve"]
