"""Spaces as flat arrays: what goes in comes out, and what a space does not allow is refused."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import ActionReader, BadValue, ObservationWriter, check_actions, leaves, own_values
from paceline.pool.table import SlotTable

shapes = st.lists(st.integers(1, 3), min_size=0, max_size=3).map(tuple)
leaf_spaces = st.one_of(
    shapes.map(lambda shape: spaces.Box(-2, 2, shape, np.float32)),
    shapes.map(lambda shape: spaces.Box(-2, 2, shape, np.float64)),
    shapes.map(lambda shape: spaces.Box(0, 255, shape, np.uint8)),
    st.tuples(st.integers(1, 9), st.integers(-5, 5)).map(lambda p: spaces.Discrete(p[0], start=p[1])),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(lambda n: spaces.MultiDiscrete(n, start=[2] * len(n))),
    st.integers(1, 4).map(spaces.MultiBinary),
)
any_space = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def close(left, right) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(close, left, right))
    return np.allclose(left, right, atol=1e-6) and np.shape(left) == np.shape(right)


@settings(max_examples=60)
@given(space=any_space, seed=st.integers(0, 1000))
def test_any_value_survives_the_way_through_the_table(space, seed):
    """Written as an observation and read back as an action of the same space, a value is the same (to float32)."""
    space.seed(seed)
    table = SlotTable(PoolSpec(observation_space=space, action_space=space, num_envs=3))
    writer, reader = ObservationWriter(space, table.obs), ActionReader(space, table.actions)
    values = [space.sample() for _ in range(3)]
    for slot, value in enumerate(values):
        writer.write(value, slot)
    for array in table.obs:
        name = "action" if array == "obs" else array
        table.actions[name][:] = table.obs[array]
    for slot, value in enumerate(values):
        read = reader.read(slot)
        assert close(value, read)
        assert space.contains(read) or not space.contains(value), (space, read)


def test_leaves_have_dotted_names_and_canonical_spaces():
    space = spaces.Dict(
        screen=spaces.Box(0, 255, (3, 4, 5), np.uint8),
        game=spaces.Dict(health=spaces.Box(0, 1e300, (1,), np.float64), weapon=spaces.Discrete(3, start=1)),
        pair=spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])]),
    )
    found = {leaf.name: leaf for leaf in leaves(space, "obs")}
    assert set(found) == {"screen", "game.health", "game.weapon", "pair.0", "pair.1"}
    assert found["game.health"].dtype == np.float32 and np.isinf(found["game.health"].space.high).all()
    assert found["game.weapon"].space == spaces.Discrete(3)
    assert found["screen"].dtype == np.uint8


def test_a_single_leaf_is_named_after_its_root():
    assert [leaf.name for leaf in leaves(spaces.Discrete(2), "action")] == ["action"]


@pytest.mark.parametrize(
    "space",
    [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Dict(a=spaces.Dict(b=spaces.Text(3))), spaces.Dict()],
)
def test_unsupported_spaces_are_refused_with_what_is_allowed(space):
    with pytest.raises(UsageError, match="allowed: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple"):
        leaves(space, "obs")


def test_two_leaves_of_one_name_are_refused():
    space = spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(2))})
    with pytest.raises(UsageError, match="same dotted name"):
        leaves(space, "obs")


BOX = spaces.Box(-1, 1, (4,), np.float32)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (BOX, np.zeros(3, np.float32), r"shape \(3,\); its space says \(4,\)"),
        (BOX, np.zeros((1, 4), np.float32), "shape"),
        (BOX, np.float32(0), "shape"),  # would broadcast silently
        (BOX, np.zeros(4, np.complex64), "dtype complex64; its space says float32"),
        (BOX, None, "shape"),
        (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.float32), "dtype float32; its space says uint8"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([300, 1], np.uint16), "numbers that uint8 cannot hold"),
        (spaces.Box(-100, 100, (1,), np.int8), np.array([-200]), "numbers that int8 cannot hold"),
        (spaces.Discrete(3), 3, "outside"),
        (spaces.Discrete(3), -1, "outside"),
        (spaces.Discrete(3), 1.5, "dtype"),
        (spaces.MultiDiscrete([2, 2]), np.array([0, 2]), "outside"),
        (spaces.Dict(a=BOX, b=BOX), {"a": np.zeros(4, np.float32)}, "no 'b'"),
    ],
)
def test_wrong_observations_are_refused(space, value, message):
    table = SlotTable(PoolSpec(observation_space=space, action_space=BOX, num_envs=1))
    with pytest.raises(BadValue, match=message):
        ObservationWriter(space, table.obs).write(value, 0)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_rounding_moves_no_action_out_of_its_bounds(dtype):
    """As float32, 0.1 is above 0.1, and 0.3 is above 0.3 in half precision."""
    space = spaces.Box(np.array([-0.1, 0.3], dtype), np.array([0.1, 0.7], dtype), dtype=dtype)
    table = SlotTable(PoolSpec(observation_space=BOX, action_space=space, num_envs=2))
    table.actions["action"][:] = [space.low.astype(np.float32), space.high.astype(np.float32)]
    reader = ActionReader(space, table.actions)
    assert space.contains(reader.read(0)) and space.contains(reader.read(1))
    (leaf,) = leaves(space, "action")
    batch = own_values(leaf, table.actions["action"])
    assert batch.dtype == dtype and all(space.contains(row) for row in batch)


def test_discrete_actions_have_the_dtype_of_their_space():
    space = spaces.Discrete(4, start=1, dtype=np.int32)
    table = SlotTable(PoolSpec(observation_space=BOX, action_space=space, num_envs=1))
    table.actions["action"][:] = 2
    action = ActionReader(space, table.actions).read(0)
    assert action == 3 and action.dtype == np.int32 and space.contains(action)


def test_actions_handed_to_an_environment_are_its_own():
    """An environment may keep its last action; the next one must not change it."""
    table = SlotTable(PoolSpec(observation_space=BOX, action_space=BOX, num_envs=1))
    reader = ActionReader(BOX, table.actions)
    first = reader.read(0)
    table.actions["action"][:] = 1
    assert not first.any()


def test_a_nan_action_is_refused_and_named():
    (leaf,) = leaves(BOX, "action")
    actions = np.zeros((2, 4), np.float32)
    actions[1, 2] = np.nan
    with pytest.raises(ValueError, match="slot 7 is not finite"):
        check_actions(actions, leaf, np.array([3, 7]))


@settings(max_examples=30)
@given(slots=st.lists(st.integers(0, 9), min_size=1, unique=True))
def test_batches_hold_the_rows_of_their_slots(slots):
    table = SlotTable(PoolSpec(observation_space=BOX, action_space=BOX, num_envs=10))
    table.obs["obs"][:] = np.arange(40).reshape(10, 4)
    table.reward[:] = np.arange(10)
    slots = np.array(sorted(slots))
    contiguous = slots[-1] - slots[0] + 1 == len(slots)
    rows = slice(int(slots[0]), int(slots[-1]) + 1) if contiguous else slots
    batch = table.batch(slots, rows, np.zeros(len(slots), bool))
    assert (batch.obs["obs"] == np.arange(40).reshape(10, 4)[slots]).all()
    assert (batch.reward == slots).all()
    assert np.shares_memory(batch.obs["obs"], table.obs["obs"]) == contiguous


def test_table_arrays_do_not_overlap():
    space = spaces.Dict(a=spaces.Box(0, 255, (3,), np.uint8), b=spaces.Box(0, 1, (5,), np.float64))
    table = SlotTable(PoolSpec(observation_space=space, action_space=BOX, num_envs=3))
    arrays = [*table.obs.values(), *table.final_obs.values(), *table.actions.values()]
    arrays += [
        table.reward,
        table.terminated,
        table.truncated,
        table.active,
        table.step_seconds,
        table.episode,
        table.step,
    ]
    for index, array in enumerate(arrays):
        array[...] = index
    assert all((array == array.dtype.type(index)).all() for index, array in enumerate(arrays))
