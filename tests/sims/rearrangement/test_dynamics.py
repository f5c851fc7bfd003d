"""Rearrangement in MuJoCo, against the kinematic simulator: kinematics, images, rewards, and what physics adds."""

from __future__ import annotations

import math
import os
import sys

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

pytest.importorskip("mujoco")

import mujoco

from paceline.envs import resolve
from paceline.errors import MissingExtra, UsageError
from paceline.pool.env_state import env_state, restore_env
from paceline.sims.rearrangement.dynamics.config import TASKS
from paceline.sims.rearrangement.dynamics.env import DynamicRearrangementEnv
from paceline.sims.rearrangement.dynamics.house import HouseDynamics
from paceline.sims.rearrangement.dynamics.robot import BODY
from paceline.sims.rearrangement.env import RearrangementEnv
from paceline.sims.rearrangement.evaluation.oracle.agent import RobotOracle
from paceline.sims.rearrangement.objects import HALF_EXTENTS
from paceline.sims.rearrangement.physics.world import FRIDGE, NOTHING, arm_of, handle_places, moving_boxes
from paceline.sims.rearrangement.rendering.pictures import GAP, SIDE
from paceline.sims.rearrangement.robot.arm import LIMITS
from paceline.sims.rearrangement.robot.body import OWN_BODY
from paceline.sims.rearrangement.scenes.bank import HouseBank
from tests.forks import run_python

CUP = 7
"""The number of the grip in an action."""


@pytest.fixture
def make(kitchens):
    def made(task: str = "open_fridge", **options) -> DynamicRearrangementEnv:
        return DynamicRearrangementEnv(task, bank=kitchens, scenes=4, **{"sensors": "blind", **options})

    return made


def random_actions(num: int, seed: int = 0) -> np.ndarray:
    """With an open cup."""
    actions = np.random.default_rng(seed).uniform(-1, 1, (num, 10)).astype(np.float32)
    actions[:, CUP] = -1.0
    return actions


@pytest.mark.parametrize("task", TASKS)
def test_gymnasiums_checker_accepts_every_task(make, task):
    check_env(make(task, sensors="depth", renderer="traced", resolution=8), skip_render_check=True)


def test_an_episode_begins_as_in_the_kinematic_simulator(kitchens, make):
    for task in ("pick", "open_drawer"):
        dynamic, kinematic = make(task), RearrangementEnv(task, bank=kitchens, scenes=4, sensors="blind")
        assert dynamic.observation_space == kinematic.observation_space
        assert dynamic.action_space == kinematic.action_space
        for seed in (5, None):
            first, expected = dynamic.reset(seed=seed)[0], kinematic.reset(seed=seed)[0]
            assert {name: values.tolist() for name, values in first.items()} == {
                name: values.tolist() for name, values in expected.items()
            }


def test_arm_and_doors_are_where_the_kinematic_simulator_has_them(make):
    env = make()
    env.reset(seed=1)
    stream, random = env.simulator.stream, np.random.default_rng(0)
    low, high = np.array(LIMITS).T
    for _ in range(20):
        state = stream.state._replace(
            pose=torch.from_numpy(random.uniform(-3, 3, (1, 3))).float(),
            angles=torch.from_numpy(random.uniform(low, high)[None]).float(),
            values=torch.from_numpy(random.uniform(0, [[2.2, 0.45, 0.45]])).float(),
        )
        env.house.place(state)
        world = env.simulator.world_of(stream)
        assert np.allclose(env.house.suction.tip(), arm_of(state).tip[0].numpy(), atol=1e-5)
        assert np.allclose(env.house.suction.handles(), handle_places(world, state.values)[0].numpy(), atol=1e-5)
        found = {tuple(place) for place in np.round(env.house.data.geom_xpos, 3)}
        boxes = np.round(moving_boxes(world, state.values)[0, :, :3].double().numpy(), 3)
        assert all(min(math.dist(box, place) for place in found) < 3e-3 for box in boxes)


def test_free_motions_are_as_long_as_in_the_kinematic_simulator(make):
    """Once the robot has its speed: it has a mass."""
    env = make("pick")
    env.reset(seed=0)
    action = np.zeros(10, np.float32)
    action[[0, 3, 9]], action[CUP] = (0.4, -0.5, 0.6), -1.0
    for _ in range(4):
        before = env.simulator.stream.state
        env.step(action)
    after = env.simulator.stream.state
    assert (after.angles - before.angles)[0, [0, 3]].tolist() == pytest.approx([0.02, -0.025], abs=1e-3)
    assert float(after.pose[0, 2] - before.pose[0, 2]) == pytest.approx(0.6 * 0.075, abs=1e-3)


def test_the_base_drives_and_a_wall_stops_it(make):
    env = make("pick")
    env.reset(seed=0)
    action = np.zeros(10, np.float32)
    action[8], action[CUP] = -1.0, -1.0
    lengths = []
    for _ in range(120):
        before = env.simulator.stream.state.pose[0].numpy()
        env.step(action)
        way = env.simulator.stream.state.pose[0].numpy() - before
        lengths.append(way[:2] @ -np.array([math.cos(before[2]), math.sin(before[2])]))
    assert max(lengths) == pytest.approx(0.05, abs=2e-3)
    assert abs(lengths[-1]) < 5e-3
    assert float(env.simulator.stream.counters[0, 1]) > 20


@pytest.mark.parametrize("task", ["pick", "open_fridge", "close_drawer"])
def test_rewards_and_ends_are_those_of_the_kinematic_task(make, task):
    """The task judges MuJoCo's states in a batch, as it judges those of the kinematic simulator."""
    env = make(task)
    env.reset(seed=2)
    streams, facts, judged, rewards, ends = [], [], [], [], []
    judge = env._judged

    def noted(before, chosen, motion):
        after, fact, judgement = judge(before, chosen, motion)
        streams.append(before)
        facts.append(env.simulator.facts_of(after)._replace(**{n: getattr(fact, n) for n in ("taken", "dropped")}))
        judged.append(fact.collided)
        return after, fact, judgement

    env._judged = noted
    for action in random_actions(30):
        action[CUP] = 1.0 if len(rewards) > 15 else -1.0
        _, reward, terminated, *_ = env.step(action)
        rewards.append(reward)
        ends.append(terminated)
        if terminated:
            break
    together = type(facts[0])(
        *(
            type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))
            if isinstance(parts[0], tuple)
            else torch.cat(parts)
            for parts in zip(*facts, strict=True)
        )
    )._replace(collided=torch.cat(judged))
    found = env.simulator.task.judge(torch.cat([stream.columns for stream in streams]), together)
    assert rewards == pytest.approx(found.reward.tolist(), abs=1e-4)
    assert ends == found.terminated.tolist()


def test_a_seed_decides_an_episode(make):
    def played() -> list:
        env = make("pick")
        seen = [env.reset(seed=4)[0], *(env.step(action)[0] for action in random_actions(20))]
        return [{name: values.tolist() for name, values in obs.items()} for obs in seen]

    assert played() == played()


@pytest.mark.parametrize(("task", "is_handle"), [("pick", False), ("open_fridge", True)])
def test_a_saved_state_continues_exactly(make, task, is_handle):
    """With an object or a handle in the hand."""
    env, other = make(task), make(task)
    env.reset(seed=4)
    other.reset(seed=9)
    for action in random_actions(10):
        env.step(action)
    held = env.simulator.stream.state.objects.shape[1] + FRIDGE if is_handle else 3
    env.house.suction.take(held)
    restore_env(other, env_state(env))
    assert other.house.suction.held == held
    for action in random_actions(10, seed=1):
        action[CUP] = 1.0
        first, second = env.step(action), other.step(action)
        assert first[1:] == second[1:]
        assert all((first[0][name] == second[0][name]).all() for name in first[0])
        assert (env.house.data.qpos == other.house.data.qpos).all()
        if first[2]:
            break


def test_random_actions_give_finite_numbers_and_measures_at_the_end(make):
    env = make("pick", max_episode_steps=60)
    env.reset(seed=0)
    for action in np.random.default_rng(1).uniform(-1, 1, (150, 10)).astype(np.float32):
        obs, reward, terminated, truncated, info = env.step(action)
        assert math.isfinite(reward) and all(np.isfinite(values).all() for values in obs.values())
        assert all(obs[name].dtype == env.observation_space[name].dtype for name in obs)
        if terminated or truncated:
            assert set(env.measure_names) <= set(info)
            env.reset()
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.full(10, np.nan))


def test_the_door_opens_when_its_handle_is_pulled(make):
    env = make()
    env.reset(seed=0)
    house = env.house
    state = env.simulator.stream.state
    house.place(state)
    hinge, pulled = house.model.joint("fridge").qposadr[0], mujoco.mj_name2id(house.model, 1, "fridge")
    assert house.data.qpos[hinge] == 0.0
    normal = house.data.xaxis[house.model.joint("fridge").id]
    for _ in range(60):
        handle = house.suction.handles()[FRIDGE]
        force = np.cross(normal, handle - house.data.xpos[pulled])
        force *= 20.0 / np.linalg.norm(force)
        house.data.qfrc_applied[:] = 0.0
        mujoco.mj_applyFT(house.model, house.data, force, np.zeros(3), handle, pulled, house.data.qfrc_applied)
        mujoco.mj_step(house.model, house.data)
    assert house.data.qpos[hinge] > 0.3


def solved(env: DynamicRearrangementEnv, seeds: range) -> float:
    """The share of episodes that the oracle of the kinematic simulator solves."""
    oracle, success = RobotOracle(env.simulator), []
    for seed in seeds:
        env.reset(seed=seed)
        began, over, info = torch.ones(1, dtype=torch.bool), False, {}
        while not over:
            action = oracle.act({}, began)[0].numpy()
            *_, terminated, truncated, info = env.step(action)
            began, over = torch.zeros(1, dtype=torch.bool), terminated or truncated
        success.append(info["success"])
    return sum(success) / len(success)


@pytest.mark.parametrize("task", ["pick", "open_fridge"])
def test_the_kinematic_oracle_solves_episodes_in_mujoco(make, task):
    assert solved(make(task), range(2)) >= 0.5


def test_the_cup_carries_an_object_and_drops_it(make):
    env = make("pick")
    env.reset(seed=0)
    house, state = env.house, env.simulator.stream.state
    objects = state.objects.clone()
    objects[0, 2, :3] = torch.from_numpy(house.suction.tip()) - torch.tensor([0.0, 0.0, 0.16])
    house.place(state._replace(objects=objects))
    house.suction.take(2)
    body = house.model.body("object2").id
    for _ in range(10):
        house.advance(np.zeros(7), 0.0, 0.03, True)
    assert np.linalg.norm(house.data.xpos[body] - house.suction.tip()) == pytest.approx(0.16, abs=5e-3)
    height = house.data.xpos[body][2]
    assert house.advance(np.zeros(7), 0.0, 0.0, False).dropped == 2
    for _ in range(8):
        house.advance(np.zeros(7), 0.0, 0.0, False)
    assert house.suction.held == NOTHING and house.data.xpos[body][2] < height - 0.2


def test_the_trunk_and_the_head_stop_a_held_object(make):
    env = make("pick")
    env.reset(seed=0)
    house, state = env.house, env.simulator.stream.state
    x, y, heading = state.pose[0].tolist()
    geom = house.model.geom("object2").id
    for along, across, height, *_ in OWN_BODY:
        objects = state.objects.clone()
        objects[0, 2, 0] = x + along * math.cos(heading) - across * math.sin(heading)
        objects[0, 2, 1] = y + along * math.sin(heading) + across * math.cos(heading)
        objects[0, 2, 2] = height
        house.place(state._replace(objects=objects))
        house.suction.take(2)
        mujoco.mj_forward(house.model, house.data)
        touched = {other for pair in house.data.contact.geom if geom in pair for other in pair.tolist()}
        assert BODY in house.model.geom_contype[[*touched]]


def test_objects_have_the_sizes_of_the_episode_and_models_are_not_shared(kitchens):
    first, second = (HouseDynamics(kitchens, 1, episode, 8) for episode in (0, 1))
    for house, episode in ((first, 0), (second, 1)):
        for number, kind in enumerate(kitchens.object_kinds[1, episode].tolist()):
            assert house.model.geom(f"object{number}").size == pytest.approx(HALF_EXTENTS[kind])
    assert first.model is not second.model


def test_two_custom_banks_have_their_own_houses():
    """Both are labelled "custom". The second used to get the compiled houses of the first."""
    for seed in (0, 1):
        bank = HouseBank.of_seeds([seed], "small", details=["tidy_house"])
        model = HouseDynamics(bank, 0, 0, 8).model
        assert model.body("fridge").pos[:2] == pytest.approx(bank.joints[0, FRIDGE, 1:3].tolist(), abs=1e-5)


def test_pictures_show_the_path_from_a_camera_that_stays(kitchens):
    env = DynamicRearrangementEnv("pick", bank=kitchens, scenes=4, sensors="blind", render_mode="rgb_array")
    assert env.render() is None
    env.reset(seed=0)
    env.render()
    pictures = env._pictures._pictures
    for action in random_actions(3):
        env.step(action)
    assert env.render().shape == (SIDE, 3 * SIDE + 2 * GAP, 3)
    assert env._pictures._pictures is pictures, "with the same camera"
    assert env._pictures._record.record().bases.shape == (4, 3)
    env.reset()
    env.render()
    assert env._pictures._record.record().bases.shape == (1, 3)


@pytest.fixture(scope="module")
def renderer(kitchens):
    """Skips where nothing renders."""
    try:
        DynamicRearrangementEnv("pick", bank=kitchens, scenes=4, resolution=8).close()
    except UsageError as error:
        pytest.skip(str(error))


def test_mujocos_images_are_those_of_our_own_renderer(make, renderer):
    for seed in range(3):
        images = [
            make("pick", sensors="depth", renderer=name, resolution=32).reset(seed=seed)[0]["depth"]
            for name in ("mujoco", "traced")
        ]
        assert images[0].shape == (1, 32, 32)
        assert (np.abs(images[0] - images[1]) > 0.005).mean() < 0.02


def test_a_missing_renderer_is_one_line(tmp_path):
    (tmp_path / "program.py").write_text(
        "from paceline.sims.rearrangement.dynamics import camera; import mujoco; from types import SimpleNamespace;"
        "from paceline.sims.rearrangement.dynamics.config import DynamicsConfig;"
        "model = mujoco.MjModel.from_xml_string('<mujoco/>');"
        "camera.OpenGLDepth(DynamicsConfig()).see(SimpleNamespace(model=model), None)"
    )
    done = run_python(tmp_path / "program.py", env={**os.environ, "MUJOCO_GL": "off"})
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("paceline.errors.UsageError: MuJoCo cannot render here with MUJOCO_GL=off")
    assert "renderer=traced" in last


def test_a_missing_package_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("paceline.sims.rearrangement.dynamics.")]:
        monkeypatch.delitem(sys.modules, name)
    factory = resolve("rearrange_mujoco:pick")
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtra, match=r"pip install 'paceline\[mujoco\]'"):
        factory.make(0)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("rearrange_mujoco:place", "'place'.*allowed: pick, open_fridge"),
        ("rearrange_mujoco:pick?renderer=gl", "renderer is 'gl'; allowed: mujoco, traced"),
        ("rearrange_mujoco:pick?slide=false", "slide is False; allowed: true"),
        ("rearrange_mujoco:pick?walls=2", "option 'walls'.*allowed: tier"),
    ],
)
def test_wrong_ids_are_refused(env, message):
    with pytest.raises(UsageError, match=message):
        resolve(env)
