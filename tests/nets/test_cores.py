"""Cores: `sequence` and `scan` equal `step` after `step`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.errors import UsageError
from paceline.nets.config import CoreConfig
from paceline.nets.cores import Core

KINDS = ["none", "lstm", "gru"]


def step_through(core: Core, sequence: Tensor, state: Tensor) -> Tensor:
    """The oracle: one sequence [L, F] from its own state [S], one step after the other."""
    outs = []
    state = state[None]
    for features in sequence:
        out, state = core.step(features[None], state)
        outs.append(out)
    return torch.cat(outs)


@settings(max_examples=40)
@given(
    kind=st.sampled_from(KINDS),
    layers=st.integers(1, 2),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_sequence_equals_steps(kind, layers, lengths, seed):
    torch.manual_seed(seed)
    core = Core(3, CoreConfig(kind=kind, hidden=5, layers=layers))
    for name, values in core.named_parameters():
        if "bias" in name:  # with zero biases a missing one would not be seen
            torch.nn.init.normal_(values)
    lengths = sorted(lengths, reverse=True)
    sequences = [torch.randn(length, 3) for length in lengths]
    states = torch.randn(len(lengths), core.state_size)
    packed = torch.nn.utils.rnn.pack_sequence(sequences)
    out = core.sequence(packed.data, packed.batch_sizes, states)
    unpacked = torch.nn.utils.rnn.unpack_sequence(packed._replace(data=out))
    for sequence, state, got in zip(sequences, states, unpacked, strict=True):
        torch.testing.assert_close(got, step_through(core, sequence, state))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
def test_sizes(kind, layers):
    core = Core(3, CoreConfig(kind=kind, hidden=5, layers=layers))
    assert core.state_size == {"none": 0, "lstm": 2 * layers * 5, "gru": layers * 5}[kind]
    assert core.out_features == (3 if kind == "none" else 5)
    out, state = core.step(torch.rand(4, 3), torch.zeros(4, core.state_size))
    assert out.shape == (4, core.out_features)
    assert state.shape == (4, core.state_size)
    assert state.dtype == torch.float32


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_step_leaves_the_state_before_it_untouched(kind):
    core = Core(3, CoreConfig(kind=kind, hidden=5))
    before = torch.rand(4, core.state_size)
    kept = before.clone()
    core.step(torch.rand(4, 3), before)
    assert torch.equal(before, kept)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_rows_keep_their_own_state(kind):
    core = Core(3, CoreConfig(kind=kind, hidden=5, layers=2))
    features, state = torch.rand(4, 3), torch.rand(4, core.state_size)
    out, after = core.step(features, state)
    order = torch.tensor([2, 0, 3, 1])
    out_permuted, after_permuted = core.step(features[order], state[order])
    torch.testing.assert_close(out_permuted, out[order])
    torch.testing.assert_close(after_permuted, after[order])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_of_sequence_equal_those_of_steps(kind):
    torch.manual_seed(0)
    core = Core(3, CoreConfig(kind=kind, hidden=5, layers=2))
    sequence, state = torch.randn(6, 3), torch.randn(core.state_size)
    core.sequence(sequence, torch.ones(6, dtype=torch.int64), state[None]).square().sum().backward()
    whole = {name: values.grad.clone() for name, values in core.named_parameters()}
    core.zero_grad()
    step_through(core, sequence, state).square().sum().backward()
    for name, values in core.named_parameters():
        torch.testing.assert_close(values.grad, whole[name])


@pytest.mark.parametrize(("kind", "openness"), [("lstm", 1.0), ("gru", 2.0)])
def test_the_gate_that_keeps_the_state_starts_open(kind, openness):
    """Weights are orthogonal, all other biases are zero."""
    core = Core(4, CoreConfig(kind=kind, hidden=4))
    weight = core.rnn.weight_hh_l0
    torch.testing.assert_close(weight.T @ weight, torch.eye(4))
    assert core.rnn.bias_ih_l0.view(-1, 4).tolist() == [
        [openness * (gate == 1)] * 4 for gate in range(len(weight) // 4)
    ]
    assert not core.rnn.bias_hh_l0.any()
    with torch.no_grad():
        for bias in (core.rnn.weight_ih_l0, core.rnn.weight_hh_l0):
            bias.zero_()
    # Without weights only the gate acts: the cell (LSTM) or the hidden vector (GRU) shrinks by its sigmoid.
    state = torch.ones(1, core.state_size)
    _, after = core.step(torch.zeros(1, 4), state)
    torch.testing.assert_close(after[0, -4:], torch.full((4,), torch.sigmoid(torch.tensor(openness)).item()))


def test_state_survives_bf16_autocast_in_float32():
    core = Core(3, CoreConfig(kind="lstm", hidden=5))
    with torch.autocast("cpu", torch.bfloat16):
        _, state = core.step(torch.rand(2, 3, dtype=torch.bfloat16), torch.zeros(2, core.state_size))
    assert state.dtype == torch.float32


def test_refusals_say_what_is_allowed():
    with pytest.raises(UsageError, match="none, lstm, gru"):
        CoreConfig(kind="rnn")
    with pytest.raises(UsageError, match="1 or 2"):
        CoreConfig(layers=3)
    with pytest.raises(UsageError, match="at least 1"):
        CoreConfig(hidden=0)
