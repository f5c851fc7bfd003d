"""An encoder trained by supervision: its labels, and that runs can begin with it."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from benchmarks.supervised_encoder import KINDS, PLACES, Plan, labels, run_plan, train, write
from paceline import recipes
from paceline.checkpoint import CheckpointFolder
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.session import Session
from paceline.sims.navigation.rendering.render import CAMERA_HEIGHT, MAX_DEPTH, Camera, trace
from paceline.sims.navigation.scenes.scene import CEILING

ENV = "pointnav:small?resolution=16&scenes=4"


def test_labels_are_what_a_ray_hits():
    """The height of the point that is seen says whether it is on the floor or on the ceiling, and a camera among walls
    alone sees what is behind the furniture."""
    simulator = resolve(ENV).make(64, "cpu")
    simulator.reset(0)
    camera = Camera(PLACES)
    found = labels(simulator, camera)
    assert found.shape == (64, PLACES, PLACES) and set(found.unique().tolist()) == set(range(len(KINDS)))
    depth = trace(simulator.bank, camera, simulator.scenes, simulator.poses).depth * MAX_DEPTH
    height = CAMERA_HEIGHT + depth / camera.inverse_up[:, None]
    for kind, level in (("floor", 0.0), ("ceiling", CEILING)):
        away = (height - level).abs()
        clear = (depth < MAX_DEPTH) & ((away < 1e-5) | (away > 1e-2))  # not at the edge of a wall
        assert clear.float().mean() > 0.9
        assert torch.equal((found == KINDS.index(kind))[clear], (away < 1e-5)[clear])
    simulator.bank.heights.fill_(-9.0)  # furniture below the floor is not seen
    without = labels(simulator, camera)
    furniture = found == KINDS.index("furniture")
    assert not (without == KINDS.index("furniture")).any()
    assert torch.equal(found[~furniture], without[~furniture])


def test_a_run_begins_with_the_encoder(tmp_path, capsys):
    run_plan(Plan(recipe="pointnav-small", env=ENV, run_dir=tmp_path / "old", updates=150, images=32, device="cpu"))
    last = re.findall(r"accuracy (\S+); a constant answer has (\S+)", capsys.readouterr().out)[-1]
    assert float(last[0]) > float(last[1]) + 0.03
    config = dataclasses.replace(recipes.find("pointnav-small"), env=ENV, pool=PoolConfig(num_envs=4))
    config = dataclasses.replace(config, init_from=str(tmp_path / "old"), init="encoder", freeze="encoder")
    with Session(config, tmp_path / "new") as session:
        assert not any(values.requires_grad for values in session.learners[0].policy.trunk.images.parameters())
    with pytest.raises(UsageError, match="the policy of .* does not fit: there is no perceptron"):
        Session(dataclasses.replace(config, init="encoder+policy"), tmp_path / "other").__enter__()
    with pytest.raises(UsageError, match="holds a run already"):
        run_plan(Plan(recipe="pointnav-small", env=ENV, run_dir=tmp_path / "old"))


def test_pictures_of_goals_are_not_labelled(tmp_path):
    """The labels are those of the agent's own view."""
    env = "imagenav:small?resolution=16&scenes=4"
    plan = Plan(recipe="pointnav-small", env=env, run_dir=tmp_path, updates=2, images=8, device="cpu")
    config = dataclasses.replace(recipes.find("pointnav-small"), env=env)
    policy, names = train(plan, config, torch.device("cpu"))
    pairs = zip(policy.trunk.image_names, policy.trunk.images, strict=True)
    learned = {name: any(values.grad is not None for values in encoder.parameters()) for name, encoder in pairs}
    assert learned == {"depth": True, "goal_depth": False}
    write(policy, names, plan, config)
    saved = CheckpointFolder(tmp_path / "checkpoints").load().state["agent"]["parts"]["encoder"]
    assert list(saved) == ["encoder of depth"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"updates": 0}, "updates must be at least 1"),
        ({"env": "gym:CartPole-v1"}, "allowed: environments of navigation"),
        ({"env": "tensor:cartpole"}, "allowed: environments of navigation"),
        ({"recipe": "pointnaf"}, "recipe 'pointnaf' does not exist"),
    ],
)
def test_bad_input_is_refused(tmp_path, changes, words):
    plan = Plan(recipe="pointnav-small", run_dir=tmp_path / "run", images=2, device="cpu")
    with pytest.raises(UsageError, match=words):
        run_plan(dataclasses.replace(plan, **changes))
    assert not (tmp_path / "run").exists()
