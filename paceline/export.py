"""`paceline export`: a trained policy as one file for use without Paceline, checked against the policy itself.

Legend: B rows (any number), D numbers of recurrent state.

The exported function takes the observation leaves [B, ...] and, for a recurrent policy, `state` [B, D], which is zero
at the start of an episode. It returns the most likely action of each action leaf, as the environment takes it: within
its bounds, discrete values from the environment's own start. Then follow `value` [B] and, for a recurrent policy,
`new_state` [B, D] for the next step. Observation normalisation is included. A policy of d4pg returns only its action.

Both formats are made by tracing. PyTorch's newer ONNX exporter, based on torch.export, fixes the number of rows of
policies with action masks and needs another package.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from paceline.distributed.runtime import choose_device
from paceline.errors import MissingExtra, PacelineError, UsageError
from paceline.evaluation.saved import SavedRun
from paceline.files import replacing
from paceline.nets.deterministic import DeterministicPolicy
from paceline.nets.distributions import Gaussians
from paceline.nets.ppo_policy import PPOPolicy
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import Leaf

Format = Literal["onnx", "torchscript"]
SUFFIX = {"onnx": ".onnx", "torchscript": ".pt"}
OPSET = 18
SIGNATURE = "signature.json"
"""An extra file in a TorchScript file. It names the inputs and outputs, which are positional there."""
EXAMPLE_ROWS = 3
CHECKED_ROWS = (1, 5)
"""They differ from the traced number, so that a file with a fixed number of rows is noticed."""
CHECKED_STEPS = 4
TOLERANCE = 1e-4

Policy = PPOPolicy | DeterministicPolicy
Runner = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class ExportError(PacelineError):
    """The written file does not compute the same as the policy."""


@dataclass(frozen=True)
class Port:
    """An input or output: [B, *shape]."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A written file."""

    path: Path
    checkpoint: str
    policy: str
    """Number of the policy, or K@STEP for a past self."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    verified_with: str | None
    """The program that executed the file to compare it with the policy; None if none is installed."""


def export(
    folder: Path,
    format: Format,
    *,
    checkpoint: str = "latest",
    policy: str | None = None,
    output: Path | None = None,
    trust: bool = False,
) -> Exported:
    """Write a deterministic policy of the run in `folder`, by default into that folder as policy.onnx or policy.pt.
    `policy` is as in `SavedRun.load`.

    The file gets its name only after it has been compared with the policy. The environment that the folder names is
    made, for its spaces; with `trust`, also if somebody else wrote the folder.
    """
    if format not in get_args(Format):
        raise UsageError(f"format {format!r} does not exist; allowed: {', '.join(get_args(Format))}")
    path = output or folder / f"policy{SUFFIX[format]}"
    if not path.absolute().parent.is_dir():
        raise UsageError(f"output {str(path)!r}: the folder {path.absolute().parent} does not exist")
    run = SavedRun.load(folder, checkpoint, policy=policy, trust=trust)
    spec = run.spec()
    module = run.policy(spec, choose_device("cpu"))
    function = PolicyFunction(module, spec)
    with replacing(path) as temporary:
        (write_onnx if format == "onnx" else write_torchscript)(function, temporary)
        reader = read_onnx(temporary) if format == "onnx" else ("PyTorch", read_torchscript(temporary))
        if reader is not None:
            verify(reader[1], module, function)
    return Exported(
        path=path,
        checkpoint=run.checkpoint,
        policy=run.policy_name,
        inputs=function.inputs,
        outputs=function.outputs,
        verified_with=reader[0] if reader is not None else None,
    )


class PolicyFunction(nn.Module):
    """A deterministic policy as a function from tensors to tensors, in the order of `inputs` and `outputs`."""

    def __init__(self, policy: Policy, spec: PoolSpec) -> None:
        super().__init__()
        has_value = isinstance(policy, PPOPolicy)
        self.policy = _without_deviations(policy) if isinstance(policy, PPOPolicy) else policy
        self.spec = spec
        self.is_recurrent = isinstance(policy, PPOPolicy) and policy.is_recurrent
        taken = [leaf.name for leaf in (*spec.obs, *spec.actions)]
        taken += ["state", "value", "new_state"] if has_value else []
        self.inputs = tuple(_port(leaf, "obs", taken) for leaf in spec.obs)
        self.outputs = tuple(_port(leaf, "action", taken) for leaf in spec.actions)
        self.outputs += (Port("value", "float32", ()),) if has_value else ()
        if self.is_recurrent:
            shape = policy.initial_state(1).shape[1:]
            self.inputs += (Port("state", "float32", tuple(shape)),)
            self.outputs += (Port("new_state", "float32", tuple(shape)),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        obs = self.observations(inputs)
        state = inputs[-1] if self.is_recurrent else self.policy.initial_state(1)  # unused without memory
        rest: tuple[Tensor, ...] = ()
        if isinstance(self.policy, PPOPolicy):
            params, value, new_state = self.policy.act(obs, state)
            actions = self.policy.head.env_actions(self.policy.head.mode(params))
            rest = (value, new_state) if self.is_recurrent else (value,)
        else:
            actions, _ = self.policy.play(obs, state)
        return (*(_shifted(actions[leaf.name], leaf, 1) for leaf in self.spec.actions), *rest)

    def observations(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """The observations among `inputs`, as the policy takes them."""
        leaves = zip(self.spec.obs, inputs[: len(self.spec.obs)], strict=True)
        return {leaf.name: _shifted(values, leaf, -1) for leaf, values in leaves}

    def examples(self, num_rows: int, seed: int) -> list[Tensor]:
        """Random observations, and the state at the start of an episode."""
        inputs = []
        for leaf in self.spec.obs:
            leaf.source.seed(seed)
            rows = np.stack([leaf.source.sample() for _ in range(num_rows)]).astype(leaf.dtype)
            inputs.append(torch.from_numpy(rows))
        return [*inputs, self.policy.initial_state(num_rows)] if self.is_recurrent else inputs


def _without_deviations(policy: PPOPolicy) -> PPOPolicy:
    """A copy with standard deviations of one for Box actions. The most likely action does not depend on them.

    Learned deviations are expanded to the number of rows, which tracing would fix.
    """
    policy = copy.deepcopy(policy)
    for family in getattr(policy.head, "families", ()):  # a head of the user's own has none
        if isinstance(family, Gaussians) and family.log_std is not None:
            family.params = _with_unit_deviations  # type: ignore[method-assign, assignment]
    return policy


def _with_unit_deviations(means: Tensor) -> Tensor:
    return torch.cat([means, torch.zeros_like(means)], dim=1)


def _port(leaf: Leaf, side: str, taken: list[str]) -> Port:
    """A leaf under its own name. `side` is a prefix if the name is taken twice, or is a number, which ONNX refuses."""
    is_own = taken.count(leaf.name) == 1 and not leaf.name[0].isdigit()
    return Port(leaf.name if is_own else f"{side}.{leaf.name}", str(leaf.dtype), leaf.shape)


def _shifted(values: Tensor, leaf: Leaf, sign: int) -> Tensor:
    """Discrete values from the environment's start to zero (-1) or back (1)."""
    offset = np.asarray(leaf.offset)
    return values + sign * torch.as_tensor(offset, dtype=values.dtype) if offset.any() else values


def write_torchscript(function: PolicyFunction, path: Path) -> None:
    with _quiet():
        traced = torch.jit.trace(function, tuple(function.examples(EXAMPLE_ROWS, 0)))
        signature = {side: [asdict(port) for port in getattr(function, side)] for side in ("inputs", "outputs")}
        written = io.BytesIO()  # with a path, PyTorch hides errors of the disk
        torch.jit.save(traced, written, _extra_files={SIGNATURE: json.dumps(signature)})
        path.write_bytes(written.getvalue())


def read_torchscript(path: Path) -> Runner:
    with _quiet():
        module = torch.jit.load(str(path))
    return lambda inputs: module(*inputs)


def write_onnx(function: PolicyFunction, path: Path) -> None:
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra("an ONNX export", "onnx", error) from error
    inputs, outputs = ([port.name for port in ports] for ports in (function.inputs, function.outputs))
    with _quiet():
        torch.onnx.export(
            function,
            tuple(function.examples(EXAMPLE_ROWS, 0)),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes={name: {0: "batch"} for name in [*inputs, *outputs]},
        )
    model = onnx.load(str(path))
    _declare_inputs(model.graph, function.inputs)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def _declare_inputs(graph: Any, ports: Sequence[Port]) -> None:
    """Give an ONNX graph all of the inputs. PyTorch leaves out those that the policy does not read."""
    from onnx import helper

    inputs = []
    for port in ports:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype))
        inputs.append(helper.make_tensor_value_info(port.name, kind, ["batch", *port.shape]))
    del graph.input[:]
    graph.input.extend(inputs)


def read_onnx(path: Path) -> tuple[str, Runner] | None:
    """The name of an installed program that executes the file, and how to run it; None if there is none."""
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [node.name for node in session.get_inputs()]
        return "onnxruntime", lambda inputs: _run(session, names, inputs)
    try:
        from onnx.reference import ReferenceEvaluator
    except ImportError:
        return None
    evaluator = ReferenceEvaluator(str(path))
    return "ONNX's reference evaluator", lambda inputs: _run(evaluator, evaluator.input_names, inputs)


def _run(session: Any, names: Sequence[str], inputs: Sequence[Tensor]) -> list[Tensor]:
    feed = {name: values.numpy() for name, values in zip(names, inputs, strict=True)}
    return [torch.from_numpy(np.asarray(values)) for values in session.run(None, feed)]


@torch.no_grad()
def verify(run: Runner, policy: Policy, function: PolicyFunction) -> None:
    """Compare a file, executed by `run`, with the policy: random observations, several steps, several numbers of rows.

    File and policy each continue with their own recurrent state, as in use.
    """
    for num_rows in CHECKED_ROWS:
        state = given_state = policy.initial_state(num_rows)
        for step in range(CHECKED_STEPS):
            inputs = function.examples(num_rows, seed=step + 1)
            if function.is_recurrent:
                inputs[-1] = given_state
            given = dict(zip((port.name for port in function.outputs), run(inputs), strict=True))
            state = _compare(given, function.observations(inputs), state, policy, function)
            given_state = given.get("new_state", state)


def _compare(
    given: dict[str, Tensor], obs: dict[str, Tensor], state: Tensor, policy: Policy, function: PolicyFunction
) -> Tensor:
    """Raise if `given` differs from what the policy computes from `obs` and `state`; the policy's new state."""
    ports = [port.name for port in function.outputs]
    if isinstance(policy, DeterministicPolicy):
        actions, state = policy.play(obs, state)
        _expect_close(ports[0], given[ports[0]], actions[policy.name])
        return state
    params, value, state = policy.act(obs, state)
    mode = policy.head.mode(params)
    bounded, chosen = policy.head.env_actions(mode), dict(mode)
    for leaf, port in zip(function.spec.actions, ports, strict=False):
        if isinstance(leaf.space, spaces.Box):
            _expect_close(port, given[port], bounded[leaf.name])
        else:
            chosen[leaf.name] = _shifted(given[port], leaf, -1)
    # Discrete choices are compared by probability: rounding may decide between two that are equally likely.
    _expect_close("log-probability", policy.head.log_prob(params, chosen), policy.head.log_prob(params, mode))
    _expect_close("value", given["value"], value)
    if function.is_recurrent:
        _expect_close("new_state", given["new_state"], state)
    return state


def _expect_close(name: str, given: Tensor, expected: Tensor) -> None:
    if given.shape != expected.shape:
        raise ExportError(
            f"the exported {name!r} has shape {list(given.shape)}, the policy's own {list(expected.shape)}"
        )
    if not torch.allclose(given, expected, rtol=TOLERANCE, atol=TOLERANCE):
        difference = float((given - expected).abs().max())
        raise ExportError(f"the exported policy differs from the policy itself: {name!r} by up to {difference:.2g}")


def _quiet() -> warnings.catch_warnings:
    """Ignore warnings: tracing warns about every number that it fixes. `verify` finds real mistakes."""
    return warnings.catch_warnings(action="ignore")
