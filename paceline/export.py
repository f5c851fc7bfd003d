"""`paceline export`: a trained policy as one file for use without Paceline, checked against the policy itself.

Legend: B rows (any number), D numbers of recurrent state.

The function exported takes the observation leaves [B, ...] and, if the policy is recurrent, `state` [B, D], which is
zero at the start of an episode. It gives the likeliest action for each action leaf, as the environment takes it (within
its bounds, discrete values from the environment's own start), then `value` [B], and the `new_state` [B, D] to go on
with. Normalisation is part of it.

Both formats are made by tracing. The ONNX exporter over torch.export would be torch's first choice, but of what is
exported here it fixes the number of rows (action masks) and needs another package; the traced one does neither.
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
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.deterministic import DeterministicPolicy
from paceline.nets.distributions import Gaussians
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import Leaf

Format = Literal["onnx", "torchscript"]
SUFFIX = {"onnx": ".onnx", "torchscript": ".pt"}
OPSET = 18
SIGNATURE = "signature.json"
"""In a TorchScript file, the extra file that names its inputs and outputs, which are positional there."""
EXAMPLE_ROWS = 3
CHECKED_ROWS = (1, 5)
"""Not the number that was traced: a number of rows that got fixed is noticed."""
CHECKED_STEPS = 4
TOLERANCE = 1e-4

Runner = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class ExportError(PacelineError):
    """The file that was written does not do what the policy does."""


@dataclass(frozen=True)
class Port:
    """An input or output: [B, *shape]."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written."""

    path: Path
    checkpoint: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    verified_with: str | None
    """What executed the file to compare it with the policy; None if nothing installed could."""


def export(
    folder: Path, format: Format, *, checkpoint: str = "latest", output: Path | None = None, trust: bool = False
) -> Exported:
    """Write the deterministic policy of the run in `folder`, by default into that folder as policy.onnx or policy.pt.

    The file appears under its name only when it is found to give what the policy gives. With `trust`, the environment that
    the folder names is made, for its spaces, whoever wrote it.
    """
    if format not in get_args(Format):
        raise UsageError(f"format {format!r} does not exist; allowed: {', '.join(get_args(Format))}")
    path = output or folder / f"policy{SUFFIX[format]}"
    if not path.absolute().parent.is_dir():
        raise UsageError(f"output {str(path)!r}: the folder {path.absolute().parent} does not exist")
    run = SavedRun.load(folder, checkpoint, trust=trust)
    spec = run.spec()
    policy = run.policy(spec, choose_device("cpu", 0))
    function = PolicyFunction(policy, spec) if isinstance(policy, ActorCritic) else ControlFunction(policy, spec)
    with replacing(path) as temporary:
        (write_onnx if format == "onnx" else write_torchscript)(function, temporary)
        reader = read_onnx(temporary) if format == "onnx" else ("PyTorch", read_torchscript(temporary))
        if reader is not None:
            verify(reader[1], policy, function)
    return Exported(
        path=path,
        checkpoint=run.checkpoint,
        inputs=function.inputs,
        outputs=function.outputs,
        verified_with=reader[0] if reader is not None else None,
    )


class PolicyFunction(nn.Module):
    """A deterministic policy as a function from tensors to tensors, in the order of `inputs` and `outputs`."""

    def __init__(self, policy: ActorCritic, spec: PoolSpec) -> None:
        super().__init__()
        self.policy = _without_deviations(policy)
        self.spec = spec
        taken = [leaf.name for leaf in (*spec.obs, *spec.actions)] + ["state", "value", "new_state"]
        self.inputs = tuple(_port(leaf, "obs", taken) for leaf in spec.obs)
        self.outputs = (*(_port(leaf, "action", taken) for leaf in spec.actions), Port("value", "float32", ()))
        if policy.is_recurrent:
            self.inputs += (Port("state", "float32", (policy.core.state_size,)),)
            self.outputs += (Port("new_state", "float32", (policy.core.state_size,)),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        recurrent = self.policy.is_recurrent
        obs = {
            leaf.name: _shifted(values, leaf, -1) for leaf, values in zip(self.spec.obs, inputs, strict=not recurrent)
        }
        # Without memory nobody looks at the state.
        params, value, state = self.policy.act(obs, inputs[-1] if recurrent else self.policy.initial_state(1))
        actions = self.policy.head.env_actions(self.policy.head.mode(params))
        outputs = [_shifted(actions[leaf.name], leaf, 1) for leaf in self.spec.actions]
        return (*outputs, value, *([state] if recurrent else []))

    def examples(self, num_rows: int, seed: int) -> list[Tensor]:
        """Random inputs; a state is that of an episode's start."""
        inputs = random_observations(self.spec, num_rows, seed)
        return [*inputs, self.policy.initial_state(num_rows)] if self.policy.is_recurrent else inputs


class ControlFunction(nn.Module):
    """The same of a policy that d4pg trained: it gives the action and nothing else, and remembers nothing."""

    def __init__(self, policy: DeterministicPolicy, spec: PoolSpec) -> None:
        super().__init__()
        self.policy, self.spec = policy, spec
        taken = [leaf.name for leaf in (*spec.obs, *spec.actions)]
        self.inputs = tuple(_port(leaf, "obs", taken) for leaf in spec.obs)
        self.outputs = tuple(_port(leaf, "action", taken) for leaf in spec.actions)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        obs = {leaf.name: _shifted(values, leaf, -1) for leaf, values in zip(self.spec.obs, inputs, strict=True)}
        return (self.policy.env_actions(self.policy(obs)),)

    def examples(self, num_rows: int, seed: int) -> list[Tensor]:
        """Random inputs."""
        return random_observations(self.spec, num_rows, seed)


Function = PolicyFunction | ControlFunction


def random_observations(spec: PoolSpec, num_rows: int, seed: int) -> list[Tensor]:
    """As the environment's spaces sample them."""
    rows = []
    for leaf in spec.obs:
        leaf.source.seed(seed)
        rows.append(np.stack([leaf.source.sample() for _ in range(num_rows)]).astype(leaf.dtype))
    return [torch.from_numpy(values) for values in rows]


def _without_deviations(policy: ActorCritic) -> ActorCritic:
    """A copy in which Boxes have a standard deviation of one: the likeliest action does not depend on it.

    The learned ones are expanded to as many rows as there are, and tracing would fix that number.
    """
    policy = copy.deepcopy(policy)
    for family in getattr(policy.head, "families", ()):  # a head of the user's own has none
        if isinstance(family, Gaussians) and family.log_std is not None:
            family.params = _with_deviations_of_one  # type: ignore[method-assign, assignment]
    return policy


def _with_deviations_of_one(means: Tensor) -> Tensor:
    return torch.cat([means, torch.zeros_like(means)], dim=1)


def _port(leaf: Leaf, side: str, taken: list[str]) -> Port:
    """A leaf under its own name, or with the side before it where that would name two things."""
    name = leaf.name if taken.count(leaf.name) == 1 else f"{side}.{leaf.name}"
    return Port(name, str(leaf.dtype), leaf.shape)


def _shifted(values: Tensor, leaf: Leaf, sign: int) -> Tensor:
    """Discrete values from the environment's own start to ours (-1) or back (1)."""
    offset = np.asarray(leaf.offset)
    if not offset.any():
        return values
    return values + sign * torch.as_tensor(offset, dtype=values.dtype)


def write_torchscript(function: Function, path: Path) -> None:
    with _quiet():
        traced = torch.jit.trace(function, tuple(function.examples(EXAMPLE_ROWS, 0)))
        signature = {side: [asdict(port) for port in getattr(function, side)] for side in ("inputs", "outputs")}
        written = io.BytesIO()  # given a path, torch does not say what is wrong with the disk
        torch.jit.save(traced, written, _extra_files={SIGNATURE: json.dumps(signature)})
        path.write_bytes(written.getvalue())


def read_torchscript(path: Path) -> Runner:
    with _quiet():
        module = torch.jit.load(str(path))
    return lambda inputs: module(*inputs)


def write_onnx(function: Function, path: Path) -> None:
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra("an ONNX export", "onnx", error) from error
    names = [[port.name for port in ports] for ports in (function.inputs, function.outputs)]
    with _quiet():
        torch.onnx.export(
            function,
            tuple(function.examples(EXAMPLE_ROWS, 0)),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=names[0],
            output_names=names[1],
            dynamic_axes={name: {0: "batch"} for name in [*names[0], *names[1]]},
        )
    onnx.checker.check_model(str(path), full_check=True)


def read_onnx(path: Path) -> tuple[str, Runner] | None:
    """What is to execute the file, and its name; None if nothing here can."""
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
def verify(run: Runner, policy: ActorCritic | DeterministicPolicy, function: Function) -> None:
    """Compare a file, executed by `run`, with the policy: random observations, several steps, several numbers of rows.

    Each goes on with its own recurrent state, as they would in use.
    """
    if isinstance(function, ControlFunction):
        for num_rows in CHECKED_ROWS:
            inputs = function.examples(num_rows, seed=num_rows)
            for port, found, expected in zip(function.outputs, run(inputs), function(*inputs), strict=True):
                _expect_close(port, found, expected)
        return
    assert isinstance(policy, ActorCritic)
    for num_rows in CHECKED_ROWS:
        state = given_state = policy.initial_state(num_rows)
        for step in range(CHECKED_STEPS):
            obs = function.examples(num_rows, seed=step + 1)[: len(function.spec.obs)]
            given = list(run([*obs, given_state] if policy.is_recurrent else obs))
            state = _compare(given, obs, state, policy, function)
            given_state = given[-1]


def _compare(
    given: list[Tensor], obs: list[Tensor], state: Tensor, policy: ActorCritic, function: PolicyFunction
) -> Tensor:
    """Raise unless `given` is what the policy gives for `obs` and `state`; the policy's state after it."""
    spec, head = function.spec, policy.head
    seen = {leaf.name: _shifted(values, leaf, -1) for leaf, values in zip(spec.obs, obs, strict=True)}
    params, value, state = policy.act(seen, state)
    mode = head.mode(params)
    bounded = head.env_actions(mode)
    chosen = dict(mode)
    for leaf, port, values in zip(spec.actions, function.outputs, given, strict=False):
        if isinstance(leaf.space, spaces.Box):
            _expect_close(port, values, bounded[leaf.name])
        else:
            chosen[leaf.name] = _shifted(values, leaf, -1)
    # Another choice among discrete ones is no mistake where rounding decides between two that are equally likely.
    _expect_close(Port("log-probability", "float32", ()), head.log_prob(params, chosen), head.log_prob(params, mode))
    _expect_close(function.outputs[len(spec.actions)], given[len(spec.actions)], value)
    if policy.is_recurrent:
        _expect_close(function.outputs[-1], given[-1], state)
    return state


def _expect_close(port: Port, given: Tensor, expected: Tensor) -> None:
    if given.shape != expected.shape:
        raise ExportError(
            f"the exported {port.name!r} has shape {list(given.shape)}, the policy's own {list(expected.shape)}"
        )
    if not torch.allclose(given, expected, rtol=TOLERANCE, atol=TOLERANCE):
        difference = float((given - expected).abs().max())
        raise ExportError(
            f"the exported policy differs from the policy itself: {port.name!r} by up to {difference:.2g}"
        )


def _quiet() -> warnings.catch_warnings:
    """Tracing warns of every number that it fixes, and of its own age; what it gets wrong `verify` finds."""
    return warnings.catch_warnings(action="ignore")
