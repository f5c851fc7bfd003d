"""Spaces are the same after they were written and read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.pool.protocol import PoolSpec
from paceline.saved_spaces import FILE, from_json, load_spaces, save_spaces, to_json

SPACES = [
    spaces.Discrete(5, start=-2),
    spaces.Discrete(5, start=1, dtype=np.int32),
    spaces.Dict([(2, spaces.Discrete(2)), ("a", spaces.Discrete(3)), (0, spaces.Dict({1: spaces.MultiBinary(2)}))]),
    spaces.MultiDiscrete([3, 4], start=[1, 2]),
    spaces.MultiDiscrete([[3, 4], [5, 6]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Box(0, 255, (3, 72, 128), np.uint8),
    spaces.Box(-np.inf, np.inf, (4,), np.float32),
    spaces.Box(np.array([-1.0, -np.inf, 0.1], np.float32), np.array([1.0, 2.0, np.inf], np.float32)),
    spaces.Box(-1e300, 1e300, (), np.float64),
    spaces.Dict(z=spaces.Discrete(2), b=spaces.Tuple([spaces.MultiBinary(2), spaces.Box(0, 1, (0, 2))])),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_is_read_as_it_was_written(space):
    found = from_json(json.loads(json.dumps(to_json(space), allow_nan=False)))
    assert found == space and str(found) == str(space), "the order of a dictionary's keys counts, too"
    assert [part.dtype for part in _parts(found)] == [part.dtype for part in _parts(space)]


def _parts(space):
    inner = space.spaces.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", None)
    return [space] if inner is None else [leaf for part in inner for leaf in _parts(part)]


def test_a_run_folder_without_them_has_none(tmp_path):
    assert load_spaces(tmp_path, 0) is None
    save_spaces(PoolSpec(observation_space=SPACES[8], action_space=SPACES[0], num_envs=3), tmp_path)
    assert load_spaces(tmp_path, 7) == (SPACES[8], SPACES[0])


@pytest.mark.parametrize("text", ["", "{}", '{"kinds": []}', '{"kinds": [{"obs": {"kind": "ball"}}]}'])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError, match="spaces.json does not hold spaces|not a kind of space"):
        load_spaces(tmp_path, 0)


def test_keys_that_json_cannot_hold_are_refused():
    with pytest.raises(UsageError, match="allowed: texts and whole numbers"):
        to_json(spaces.Dict({(1, 2): spaces.Discrete(2)}))
