"""`spaces.json` in a run folder: the observations and actions of the run's policies.

With it, a policy can be loaded where the simulator is not installed. It is no pickle of the spaces, because a pickle of
another user's run could execute code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.files import replace_text
from paceline.pool.protocol import PoolSpec

FILE = "spaces.json"


def save_spaces(spec: PoolSpec, folder: Path) -> None:
    """Write the spaces of every kind of agents."""
    kinds = [
        {"name": kind.name, "obs": to_json(kind.observation_space), "action": to_json(kind.action_space)}
        for kind in spec.kinds
    ]
    replace_text(folder / FILE, json.dumps({"kinds": kinds}) + "\n")


def load_spaces(folder: Path, policy: int) -> tuple[spaces.Space, spaces.Space] | None:
    """The observation and the action space of a policy. None for a run of an older version, which saved none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        kinds = json.loads(path.read_text())["kinds"]
        kind = kinds[policy % len(kinds)]
        return from_json(kind["obs"]), from_json(kind["action"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UsageError(f"{path} does not hold spaces of a run: {error}") from error


def to_json(space: spaces.Space) -> dict[str, Any]:
    """A space as JSON can hold it."""
    match space:
        case spaces.Dict():
            return {"kind": "dict", "spaces": _parts_to_json(space)}
        case spaces.Tuple():
            return {"kind": "tuple", "spaces": [to_json(part) for part in space.spaces]}
        case spaces.Box():
            bounds = {"low": _bounds_to_json(space.low), "high": _bounds_to_json(space.high)}
            return {"kind": "box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Discrete():
            return {"kind": "discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
        case spaces.MultiDiscrete():
            dtype, start = str(space.dtype), np.asarray(space.start).tolist()
            return {"kind": "multi_discrete", "nvec": space.nvec.tolist(), "start": start, "dtype": dtype}
        case spaces.MultiBinary():
            return {"kind": "multi_binary", "n": list(space.n) if isinstance(space.n, tuple) else int(space.n)}
    raise UsageError(f"{type(space).__name__} spaces are not supported")


def from_json(data: dict[str, Any]) -> spaces.Space:
    """The space that `to_json` wrote."""
    match data["kind"]:
        case "dict":
            # Pairs keep their order; of a plain dictionary, Gymnasium sorts the keys.
            parts = data["spaces"]
            pairs = parts.items() if isinstance(parts, dict) else parts
            return spaces.Dict([(name, from_json(part)) for name, part in pairs])
        case "tuple":
            return spaces.Tuple([from_json(part) for part in data["spaces"]])
        case "box":
            shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
            low, high = (_bounds_from_json(data[name], shape, dtype) for name in ("low", "high"))
            return spaces.Box(low, high, dtype=dtype.type)
        case "discrete":
            dtype = np.dtype(data.get("dtype", "int64"))
            other = {} if dtype == np.int64 else {"dtype": dtype.type}  # older versions of Gymnasium have only int64
            return spaces.Discrete(data["n"], start=data["start"], **other)
        case "multi_discrete":
            dtype = np.dtype(data["dtype"])
            return spaces.MultiDiscrete(np.array(data["nvec"]), dtype=dtype.type, start=np.array(data["start"]))
        case "multi_binary":
            return spaces.MultiBinary(data["n"])
    raise UsageError(f"{data['kind']!r} is not a kind of space")


def _parts_to_json(space: spaces.Dict) -> Any:
    """A dictionary of the parts. JSON has only texts as keys: where there are numbers, a list of pairs."""
    keys = list(space.spaces)
    if not all(isinstance(key, str | int | np.integer) for key in keys):
        raise UsageError(f"the Dict space has the keys {keys}; allowed: texts and whole numbers")
    pairs = [(key if isinstance(key, str) else int(key), to_json(part)) for key, part in space.spaces.items()]
    return dict(pairs) if all(isinstance(key, str) for key in keys) else pairs


def _bounds_to_json(bounds: np.ndarray) -> Any:
    """One number where all are equal, as for images. JSON has no infinity: it is a text."""
    flat = bounds.ravel().tolist()
    if flat and all(value == flat[0] for value in flat):
        return _number_to_json(flat[0])
    return [_number_to_json(value) for value in flat]


def _number_to_json(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


def _bounds_from_json(data: Any, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    if not isinstance(data, list):
        return np.full(shape, float(data) if isinstance(data, str) else data, dtype)
    return np.array([float(value) if isinstance(value, str) else value for value in data], dtype).reshape(shape)
