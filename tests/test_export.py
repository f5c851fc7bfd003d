"""Exported policies compute the same as the policy, without Paceline."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline import export as module
from paceline.errors import MissingExtra, UsageError
from paceline.evaluation.saved import SavedRun
from paceline.export import SUFFIX, ExportError, PolicyFunction, export, read_onnx, read_torchscript, verify
from paceline.files import DiskFull
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, HeadConfig, PolicyConfig
from paceline.nets.own_policy import OwnPolicy
from paceline.pool.protocol import PoolSpec
from tests.evaluation.runs import make_run
from tests.forks import run_paceline

CPU = torch.device("cpu")
RUNS = {
    "discrete": ("gym:CartPole-v1", PolicyConfig(hidden=(16,))),
    "recurrent": (
        "paceline.envs.memory:Memory?length=7",
        PolicyConfig(hidden=(8,), core=CoreConfig(kind="lstm", hidden=8, layers=2)),
    ),
    "box": ("tests.evaluation.runs:Reach", PolicyConfig(hidden=(16,), normalize_obs=True, critic="separate")),
    "image": ("tests.evaluation.runs:Blank?channels=3&start=5", PolicyConfig(encoder_size=8, normalize_obs=True)),
}
FORMATS = ["torchscript", "onnx"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    made = {}

    def find(name):
        if name not in made:
            made[name] = make_run(tmp_path_factory.mktemp("runs") / name, *RUNS[name])
        return made[name]

    return find


def open_exported(path):
    if path.suffix == ".pt":
        return read_torchscript(path)
    reader = read_onnx(path)
    assert reader is not None
    return reader[1]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", list(RUNS))
def test_exported_policies_equal_the_policy(runs, tmp_path, name, format):
    """Also for numbers of rows that were not traced. The reference is the policy, written out here again."""
    if format == "onnx":
        pytest.importorskip("onnx")
    done = export(runs(name), format, output=tmp_path / f"p{module.SUFFIX[format]}")
    assert done.verified_with is not None and list(tmp_path.iterdir()) == [done.path]
    run, execute = SavedRun.load(runs(name)), open_exported(done.path)
    spec = run.spec()
    policy = run.policy(spec, CPU)
    (leaf,) = spec.actions
    for num_rows in (1, 8):
        obs = torch.from_numpy(np.stack([spec.obs[0].space.sample() for _ in range(num_rows)]))
        state = torch.randn(num_rows, policy.core.state_size)
        params, value, new_state = policy.act({"obs": obs}, state)
        action = policy.head.env_actions(policy.head.mode(params))["action"] + int(leaf.offset)
        given = execute([obs, state] if policy.is_recurrent else [obs])
        assert len(given) == 2 + policy.is_recurrent
        for theirs, ours in zip(given, [action, value, new_state], strict=False):
            assert theirs.dtype == ours.dtype
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", FORMATS)
def test_an_exported_recurrent_state_lasts_through_an_episode(runs, tmp_path, format):
    """The returned state is the input of the next step, advanced exactly once."""
    if format == "onnx":
        pytest.importorskip("onnx")
    output = tmp_path / f"p{module.SUFFIX[format]}"
    execute = open_exported(export(runs("recurrent"), format, output=output).path)
    run = SavedRun.load(runs("recurrent"))
    policy = run.policy(run.spec(), CPU)
    ours = theirs = policy.initial_state(2)
    for _ in range(10):
        obs = torch.rand(2, 3)
        ours = policy.act({"obs": obs}, ours)[2]
        theirs = execute([obs, theirs])[-1]
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


def test_box_actions_are_within_bounds_and_observations_are_normalised(runs, tmp_path):
    execute = read_torchscript(export(runs("box"), "torchscript", output=tmp_path / "p.pt").path)
    action, _ = execute([500 + 100 * torch.randn(64, 3)])
    assert (action[:, 0].abs() <= 0.01).all() and (action[:, 1] >= 2).all() and (action[:, 1] <= 3).all()
    far, farther = (execute([torch.full((1, 3), size)])[1] for size in (1e8, 1e9))
    assert torch.equal(far, farther), "the normaliser's clip is part of the file"


def test_a_torchscript_file_says_what_its_inputs_and_outputs_are(runs, tmp_path):
    path = export(runs("recurrent"), "torchscript", output=tmp_path / "p.pt").path
    extra = {"signature.json": ""}
    torch.jit.load(str(path), _extra_files=extra)
    signature = json.loads(extra["signature.json"])
    assert [port["name"] for port in signature["inputs"]] == ["obs", "state"]
    assert [port["name"] for port in signature["outputs"]] == ["action", "value", "new_state"]
    assert signature["inputs"][1]["shape"] == [32]


def test_an_onnx_file_names_its_inputs_and_outputs(runs, tmp_path):
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(export(runs("recurrent"), "onnx", output=tmp_path / "p.onnx").path).graph
    assert [node.name for node in graph.input] == ["obs", "state"]
    assert [node.name for node in graph.output] == ["action", "value", "new_state"]
    assert {node.type.tensor_type.shape.dim[0].dim_param for node in [*graph.input, *graph.output]} == {"batch"}


@pytest.mark.parametrize("format", FORMATS)
def test_spaces_of_every_kind_can_be_exported(tmp_path, format):
    if format == "onnx":
        pytest.importorskip("onnx")
    spec = PoolSpec(
        observation_space=spaces.Dict(
            {
                "state": spaces.Box(-1.0, 1.0, (2,), np.float64),
                "game": spaces.Dict({"level": spaces.Discrete(4, start=-2), "dice": spaces.MultiDiscrete([6, 6])}),
                "action_mask": spaces.MultiBinary(5),
                "move": spaces.Box(0, 255, (3, 36, 36), np.uint8),
            }
        ),
        action_space=spaces.Dict(
            {
                "move": spaces.MultiDiscrete([2, 3], start=[1, 10]),
                "turn": spaces.Box(-2.0, 2.0, (2, 2), np.float32),
                "press": spaces.MultiBinary(3),
            }
        ),
        num_envs=1,
    )
    config = PolicyConfig(
        encoder_size=8,
        normalize_obs=True,
        core=CoreConfig(kind="gru", hidden=8),
        head=HeadConfig(squash=True),
    )
    policy = ActorCritic(spec, config).eval().requires_grad_(False)
    function = PolicyFunction(policy, spec)
    assert {port.name for port in function.inputs} == {
        *("obs.state", "game.level", "game.dice", "action_mask", "obs.move", "state")
    }
    assert {port.name for port in function.outputs} == {"action.move", "turn", "press", "value", "new_state"}
    path = tmp_path / f"p{module.SUFFIX[format]}"
    (module.write_onnx if format == "onnx" else module.write_torchscript)(function, path)
    verify(open_exported(path), policy, function)


@pytest.mark.parametrize("output", [0, 1, 2])
def test_a_file_that_differs_from_the_policy_is_noticed_and_not_kept(runs, tmp_path, monkeypatch, output):
    read = module.read_torchscript

    def read_wrongly(path):
        def run(inputs):
            given = list(read(path)(inputs))
            given[output] = (given[output] + 1) % 2 if output == 0 else given[output] + 0.01
            return given

        return run

    monkeypatch.setattr(module, "read_torchscript", read_wrongly)
    with pytest.raises(ExportError, match="differs"):
        export(runs("recurrent"), "torchscript", output=tmp_path / "p.pt")
    assert not list(tmp_path.iterdir())


def test_by_default_the_file_is_in_the_runs_folder_and_the_command_says_so(runs):
    done = run_paceline("export", runs("discrete"), "--format", "torchscript")
    assert done.returncode == 0, done.stderr
    assert (runs("discrete") / "policy.pt").is_file()
    for word in ("obs", "float32", "['batch', 4]", "action", "value", "verified"):
        assert word in done.stdout
    assert "Warning" not in done.stderr


def test_impossible_requests_say_what_is_allowed(runs, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="allowed: onnx, torchscript"):
        export(runs("discrete"), "tflite")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="does not exist"):
        export(runs("discrete"), "torchscript", output=tmp_path / "nowhere" / "p.pt")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"paceline\[onnx\]"):
        export(runs("discrete"), "onnx", output=tmp_path / "p.onnx")


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_reported_and_leaves_no_file(runs, tiny_disk, format):
    (tiny_disk / "large").write_bytes(bytes(300 * 1024 - 4096))
    with pytest.raises(DiskFull, match=r"policy.\w+ cannot be written: the disk is full"):
        export(runs("image"), format, output=tiny_disk / f"policy{SUFFIX[format]}")
    assert [path.name for path in tiny_disk.iterdir()] == ["large"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_tuple_of_actions_can_be_exported(tmp_path, format):
    """Its parts are called 0 and 1, and ONNX refuses such names."""
    if format == "onnx":
        pytest.importorskip("onnx")
    spec = PoolSpec(
        observation_space=spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)]),
        action_space=spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
        num_envs=1,
    )
    function = PolicyFunction(ActorCritic(spec, PolicyConfig(hidden=(8,))).eval(), spec)
    assert [port.name for port in (*function.inputs, *function.outputs)] == [
        "obs.0", "obs.1", "action.0", "action.1", "value",
    ]  # fmt: skip
    path = tmp_path / f"policy{SUFFIX[format]}"
    (module.write_onnx if format == "onnx" else module.write_torchscript)(function, path)
    verify(open_exported(path), function.policy, function)
    only = PoolSpec(observation_space=spec.obs[0].space, action_space=spec.action_space, num_envs=1)
    ports = PolicyFunction(ActorCritic(only, PolicyConfig(hidden=(8,))), only).outputs
    assert [port.name for port in ports] == ["action.0", "action.1", "value"]


@pytest.mark.parametrize("format", FORMATS)
def test_observations_that_the_policy_ignores_are_inputs(tmp_path, format):
    """PyTorch leaves them out of an ONNX graph, and a user could not feed what `Exported.inputs` names."""
    if format == "onnx":
        pytest.importorskip("onnx")
    box = spaces.Box(-1.0, 1.0, (3,), np.float32)
    spec = PoolSpec(
        observation_space=spaces.Dict(first=spaces.Discrete(4), obs=box, rest=spaces.Box(0, 255, (2, 2), np.uint8)),
        action_space=spaces.Discrete(3),
        num_envs=1,
    )
    policy = OwnPolicy(spec, PolicyConfig(kind="tests.nets.own_policies:Plain")).eval().requires_grad_(False)
    function = PolicyFunction(policy, spec)
    path = tmp_path / f"policy{SUFFIX[format]}"
    (module.write_onnx if format == "onnx" else module.write_torchscript)(function, path)
    verify(open_exported(path), policy, function)
    if format == "onnx":
        onnx = pytest.importorskip("onnx")
        found = [(node.name, node.type.tensor_type) for node in onnx.load(path).graph.input]
        assert [(name, kind.elem_type, len(kind.shape.dim)) for name, kind in found] == [
            ("first", onnx.TensorProto.INT64, 1),
            ("obs", onnx.TensorProto.FLOAT, 2),
            ("rest", onnx.TensorProto.UINT8, 3),
        ]
