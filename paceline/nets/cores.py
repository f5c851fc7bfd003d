"""Recurrent cores: the memory between a policy's encoders and its heads.

Legend: T steps, B rows, F features, H hidden units, S numbers of state, K sequences, M rows of all sequences together.

A state is one flat float32 row per slot: nothing outside a core knows its layers and gates. An episode starts with a
state of zeros.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from paceline.accel.lstm_scan import lstm_scan
from paceline.nets.config import CORES, CoreConfig
from paceline.nets.fit import require_core
from paceline.nets.registry import CORE, build


class Core(nn.Module):
    """LSTM, GRU or no memory. Without memory features and state pass unchanged, and a state has size 0.

    A state holds, layer after layer, the hidden vector and then (LSTM) the cell vector.
    """

    def __init__(self, in_features: int, config: CoreConfig) -> None:
        super().__init__()
        self.config = config
        self.out_features = in_features if config.kind == "none" else config.hidden
        self._vectors = {"none": 0, "lstm": 2, "gru": 1}[config.kind]
        self.state_size = config.layers * self._vectors * config.hidden
        self.layer_by_layer = False
        """Whether `scan` goes through an LSTM layer by layer: the same results, by fewer and larger products."""
        if config.kind != "none":
            self.rnn = (nn.LSTM if config.kind == "lstm" else nn.GRU)(in_features, config.hidden, config.layers)
            for name, values in self.rnn.named_parameters():
                (nn.init.zeros_ if "bias" in name else nn.init.orthogonal_)(values)
            # The gate that keeps the state, the second of both, starts open. At zero a state would halve with each
            # step. A GRU's opens wider: what it does not keep it overwrites, while an LSTM's cell adds up.
            for layer in range(config.layers):
                gate = getattr(self.rnn, f"bias_ih_l{layer}")[config.hidden : 2 * config.hidden]
                nn.init.constant_(gate, 1.0 if config.kind == "lstm" else 2.0)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One decision of each row: features [B, F] and states [B, S] before it to out [B, H] and states after it."""
        if self.config.kind == "none":
            return features, state
        # The cells, not the module over a length of 1: on a CPU nn.LSTM takes several times as long.
        vectors = state.split(self.config.hidden, dim=1)
        after: list[Tensor] = []
        out = features
        for layer in range(self.config.layers):
            weights = self._weights(layer)
            if self.config.kind == "lstm":
                out, cell = torch.lstm_cell(out, vectors[2 * layer : 2 * layer + 2], *weights)
                after += [out, cell]
            else:
                out = torch.gru_cell(out, vectors[layer], *weights)
                after.append(out)
        return out, torch.cat(after, dim=1).to(state.dtype)

    def sequence(self, features: Tensor, batch_sizes: Tensor, initial_state: Tensor) -> Tensor:
        """Whole sequences: features [M, F] to out [M, H], rows in the order of torch's PackedSequence.

        The K sequences are sorted by falling length. Row block t holds step t of the `batch_sizes[t]` sequences that
        are longer than t (int64, on the CPU). `initial_state` [K, S] has, in the same order, the state BEFORE each
        sequence's first row.
        """
        if self.config.kind == "none":
            return features
        layout = (-1, self.config.layers, self._vectors, self.config.hidden)
        vectors = [part.contiguous() for part in initial_state.view(layout).permute(2, 1, 0, 3).unbind()]
        packed, _ = self.rnn(
            PackedSequence(features, batch_sizes), tuple(vectors) if self.config.kind == "lstm" else vectors[0]
        )
        return packed.data

    def scan(self, features: Tensor, starts: Tensor, initial_state: Tensor) -> Tensor:
        """Columns of a rollout: features [T, B, F] to out [T, B, H], from the states [B, S] before the first row.

        Where `starts` [T, B] says that an episode begins, its state is zero. Shapes depend on T and B alone: unlike
        packed sequences, this can be recorded in a CUDA graph.
        """
        if self.config.kind == "none":
            return features
        if self.config.kind == "lstm" and self.layer_by_layer:
            return self.scan_layers(features, starts, initial_state)
        return scan_steps(self, features, starts, initial_state)

    def scan_layers(self, features: Tensor, starts: Tensor, initial_state: Tensor) -> Tensor:
        """`scan` of an LSTM, layer by layer."""
        vectors = initial_state.split(self.config.hidden, dim=1)
        out = features
        for layer in range(self.config.layers):
            weight_in, weight, bias_in, bias = self._weights(layer)
            gates_in = functional.linear(out, weight_in, bias_in + bias)
            out = lstm_scan(gates_in, starts, vectors[2 * layer], vectors[2 * layer + 1], weight)
        return out

    def _weights(self, layer: int) -> list[Tensor]:
        return [getattr(self.rnn, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def make_core(in_features: int, config: CoreConfig, option: str = "policy.core.kind") -> Core:
    """The core that `config.kind` names, set by `option`; one of the user's own has at least `step` of `Core`."""
    core = build(CORE, option, config.kind, dict.fromkeys(CORES, Core), in_features, config)
    if config.kind not in CORES:
        require_core(option, config.kind, core, in_features)
    return core


def sequence(core: nn.Module, features: Tensor, batch_sizes: Tensor, initial_state: Tensor) -> Tensor:
    """`Core.sequence`. A core of the user's own may have `step` alone."""
    whole = getattr(core, "sequence", None) or partial(sequence_steps, core)
    return whole(features, batch_sizes, initial_state)


def scan(core: nn.Module, features: Tensor, starts: Tensor, initial_state: Tensor) -> Tensor:
    """`Core.scan`. A core of the user's own may have `step` alone."""
    whole = getattr(core, "scan", None) or partial(scan_steps, core)
    return whole(features, starts, initial_state)


def scan_steps(core: nn.Module, features: Tensor, starts: Tensor, initial_state: Tensor) -> Tensor:
    """`Core.scan` by `step`, for any core."""
    outs, state = [], initial_state
    for row, start in zip(features.unbind(), starts.unbind(), strict=True):
        out, state = core.step(row, torch.where(start[:, None], 0.0, state))  # type: ignore[operator]
        outs.append(out)
    return torch.stack(outs)


def sequence_steps(core: nn.Module, features: Tensor, batch_sizes: Tensor, initial_state: Tensor) -> Tensor:
    """`Core.sequence` by `step`, for any core."""
    outs, state = [], initial_state
    for rows in features.split(batch_sizes.tolist()):
        out, state = core.step(rows, state[: len(rows)])  # type: ignore[operator]
        outs.append(out)
    return torch.cat(outs)
