"""Configs that are read-only but for `read_write`, as those of OmegaConf are."""

import contextlib
import json
import os
import re


class Node:
    """Attributes with dotted overrides. A nested node is read-only with its root."""

    def __init__(self, values, root=None):
        object.__setattr__(self, "_root", root or self)
        object.__setattr__(self, "_readonly", False)
        object.__setattr__(self, "_values", {})
        for name, value in values.items():
            self._values[name] = Node(value, self._root) if isinstance(value, dict) else value

    def __contains__(self, name):
        return name in self._values

    def __getattr__(self, name):
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"Missing key {name}") from None

    def __setattr__(self, name, value):
        if self._readonly or self._root._readonly:
            raise RuntimeError("Cannot change read-only config container")
        self._values[name] = value

    def items(self):
        return self._values.items()


@contextlib.contextmanager
def read_write(config):
    states = [(node, node._readonly) for node in (config, config._root)]
    for node, _ in states:
        object.__setattr__(node, "_readonly", False)
    yield config
    for node, state in states:
        object.__setattr__(node, "_readonly", state)


QUOTED = r"'((?:[^'\\]|\\.)*)'"


def parsed(value):
    """A value in the notation of Hydra 1.3, without nested lists. Special characters are allowed only in quotes."""
    if value.startswith("[") and value.endswith("]"):
        return [parsed(item[0]) for item in re.finditer(rf"{QUOTED}|[^,]+", value[1:-1])]
    if quoted := re.fullmatch(QUOTED, value):
        return re.sub(r"(\\*)('|\Z)", lambda found: found[1][: len(found[1]) // 2] + found[2], quoted[1])
    if special := re.search("[{=(,]", value):
        raise ValueError(f"mismatched input '{special[0]}' expecting <EOF>")
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


CONFIGS = os.path.dirname(__file__)


def get_config(config_path, overrides=None, configs_dir=CONFIGS):
    if not os.path.exists(config_path):
        config_path = os.path.join(configs_dir, config_path)
    if not os.path.exists(config_path):
        raise RuntimeError(f"No file found for config '{config_path}'")
    with open(config_path) as file:
        config = Node(json.load(file))
    for override in overrides or []:
        path, _, value = override.partition("=")
        *groups, last = path.split(".")
        node = config
        for name in groups:
            node = getattr(node, name, None)
            if node is None:
                raise ValueError(f"Could not override '{path}'.\nKey '{name}' is not in struct")
        if last not in node:
            raise ValueError(f"Could not override '{path}'.\nKey '{last}' is not in struct")
        setattr(node, last, parsed(value))
    object.__setattr__(config, "_readonly", True)
    return config
