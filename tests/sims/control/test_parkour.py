"""Parkour: terrain heights against rays, courses, observations, rewards, ends and saved states."""

from __future__ import annotations

import itertools
import math

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip("mujoco")

import mujoco

import paceline as pl
import paceline.sims.control
from paceline import recipes
from paceline.errors import UsageError
from paceline.pool import PoolConfig, make_pool
from paceline.sims.control.parkour.bodies import HIGHEST, LOWEST
from paceline.sims.control.parkour.env import ParkourEnv
from paceline.sims.control.parkour.limits import LIMITS
from paceline.sims.control.parkour.task import SPEED, Parkour

BODIES = ("walker", "humanoid")
SIZES = {"walker": (19, 101), "humanoid": (79, 461)}
TERRAINS = [(body, kind) for body in BODIES for kind in ("all", *LIMITS[body].kinds)]
TERRAIN_GROUP = np.array([1, 0, 0, 0, 0, 0], np.uint8)


class Rays:
    """Casts rays at a course without the body, which is far above it."""

    def __init__(self, env: ParkourEnv) -> None:
        self.model, self.data = env.model, mujoco.MjData(env.model)
        self.data.mocap_pos[:] = env.data.mocap_pos
        mujoco.mj_forward(self.model, self.data)
        root = self.model.joint(0).qposadr[0]
        self.data.qpos[root + (1 if self.model.nq == 9 else 2)] += 100.0
        mujoco.mj_forward(self.model, self.data)

    def hit(self, start, direction) -> float:
        """The distance to the first box, or infinity."""
        geom = np.zeros(1, np.int32)
        distance = mujoco.mj_ray(
            self.model, self.data, np.array(start, float), np.array(direction, float), TERRAIN_GROUP, 1, -1, geom
        )
        return distance if geom[0] >= 0 else math.inf

    def top(self, x: float, y: float, start: float = 10.0) -> float:
        return start - self.hit([x, y, start], [0, 0, -1])

    def underside(self, x: float, y: float) -> float:
        """The height of what is above the ground. A ray that begins inside a hurdle leaves it at its top."""
        height = 0.02 + self.hit([x, y, 0.02], [0, 0, 1])
        return height if height < self.top(x, y) - 1e-6 else math.inf


def at(env: ParkourEnv, x: float, y: float = 0.0, turn: float = 0.0, pitch: float = 0.0) -> None:
    """Move the body somewhere."""
    data = env.data
    if env.model.nq == 9:
        data.qpos[:3] = x, 0.0, pitch
    else:
        cosine, sine = math.cos(turn / 2), math.sin(turn / 2)
        data.qpos[:2], data.qpos[3:7] = (x, y), (cosine, 0.0, 0.0, sine)
    mujoco.mj_forward(env.model, data)


def relative(height: float, to: float) -> float:
    return min(max(height - to, LOWEST), HIGHEST)


@pytest.mark.parametrize("terrain", ["all", "gaps", "hurdles", "platforms"])
def test_heights_that_the_walker_sees_are_those_of_rays(terrain):
    env, random = ParkourEnv("walker", terrain), np.random.default_rng(1)
    for seed in range(3):
        env.reset(seed=seed)
        rays = Rays(env)
        for x in random.uniform(-3, 70, 6):
            at(env, x, pitch=random.uniform(-0.5, 0.5))
            z, seen = env.data.body("torso").xpos[2], env.task.observe(env.data)["terrain"]
            columns = x + np.linspace(-1.0, 3.9, 50)
            tops = [relative(rays.top(column, 0.0), z) for column in columns]
            undersides = [relative(rays.underside(column, 0.0), z) for column in columns]
            np.testing.assert_allclose(seen, [*tops, *undersides, relative(rays.top(x, 0.0, z), z)], atol=1e-5)


@pytest.mark.parametrize("terrain", ["all", "gaps", "hurdles", "walls"])
def test_heights_that_the_humanoid_sees_are_those_of_rays(terrain):
    env, random = ParkourEnv("humanoid", terrain), np.random.default_rng(2)
    for seed in range(2):
        env.reset(seed=seed)
        rays = Rays(env)
        for x, y, turn in random.uniform([-3, -1.5, -3], [70, 1.5, 3], (2, 3)):
            at(env, x, y, turn)
            axes, (x, y, z) = env.data.body("torso").xmat.reshape(3, 3), env.data.body("torso").xpos
            heading = math.atan2(axes[1, 0], axes[0, 0])
            seen = env.task.observe(env.data)["terrain"]
            for number, (ahead, left) in enumerate(
                (a, b) for a in np.linspace(-0.5, 5, 23) for b in np.linspace(-1.9, 1.9, 20)
            ):
                column = x + ahead * math.cos(heading) - left * math.sin(heading)
                row = y + ahead * math.sin(heading) + left * math.cos(heading)
                assert seen[number] == pytest.approx(relative(rays.top(column, row), z), abs=1e-5)
            assert seen[460] == pytest.approx(relative(rays.top(x, y, z), z), abs=1e-5)


def ends_of_obstacles(env: ParkourEnv) -> list[float]:
    """Found from MuJoCo's boxes alone."""
    model, data = env.model, env.data
    boxes = [
        (model.geom(geom).name.split("_")[0], data.geom_xpos[geom], model.geom_size[geom])
        for geom in range(model.ngeom)
        if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_BOX and data.geom_xpos[geom][2] > -10
    ]
    floors = sorted(
        (at[0] - half[0], at[0] + half[0], at[2] + half[2])
        for name, at, half in boxes
        if name in ("start", "tile", "runway")
    )
    found = [at[0] + half[0] for name, at, half in boxes if name in ("hurdle", "slab", "left")]
    found += [right for _, right, top in floors if abs(top) > 1e-9]
    found += [after[0] for before, after in itertools.pairwise(floors) if after[0] - before[1] > 1e-6]
    return sorted(found)


@pytest.mark.parametrize(("body", "terrain"), TERRAINS)
def test_obstacles_are_counted_when_their_ends_are_passed(body, terrain):
    env = ParkourEnv(body, terrain)
    env.reset(seed=5)
    ends = ends_of_obstacles(env)
    assert len(ends) == LIMITS[body].num_obstacles
    for x in np.linspace(-1, ends[-1] + 2, 200):
        at(env, x)
        torso, measures = env.data.body("torso").xpos[0], env.task.judge(env.data).measures
        assert measures["obstacles"] == sum(end < torso for end in ends)
    at(env, 0.0)
    measures = env.task.judge(env.data).measures
    assert measures["obstacles"] == len(ends), "obstacles that were passed stay passed"
    assert measures["distance"] == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize(("body", "terrain"), TERRAINS)
def test_a_course_is_continuous_and_has_the_sizes_of_its_difficulty(body, terrain):
    limits = LIMITS[body]
    env = ParkourEnv(body, terrain, difficulty=0.5)
    for seed in range(20):
        env.reset(seed=seed)
        _check_floors(env, limits)
        _check_obstacles(env, limits)


def _half(limits: tuple[float, float]) -> list[float]:
    """The bounds of a size at half of the difficulty, in ascending order."""
    return sorted((limits[0], (limits[0] + limits[1]) / 2))


def _boxes(env: ParkourEnv, group: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Low and high corners of the boxes in use, along x."""
    boxes, members = env.task.body.boxes, env.task.body.boxes.groups[group]
    centres, halves = env.data.mocap_pos[members], boxes.halves[members]
    found = [(at - half, at + half) for at, half in zip(centres, halves, strict=True) if at[2] > -10]
    return sorted(found, key=lambda box: box[0][0])


def _check_floors(env: ParkourEnv, limits) -> None:
    floors = [*_boxes(env, "start"), *_boxes(env, "tile"), *_boxes(env, "runway")]
    gap, step = _half(limits.gap), _half(limits.step)
    for (_, before), (after, _) in itertools.pairwise(floors):
        width = after[0] - before[0]
        assert abs(width) < 1e-9 or gap[0] - 1e-9 <= width <= gap[1] + 1e-9
    for _, high in floors:
        assert abs(high[2]) < 1e-9 or step[0] - 1e-9 <= abs(high[2]) <= step[1] + 1e-9


def _check_obstacles(env: ParkourEnv, limits) -> None:
    hurdle, clearance, opening = _half(limits.hurdle), _half(limits.clearance), _half(limits.opening)
    for _, high in _boxes(env, "hurdle"):
        assert hurdle[0] <= high[2] + 1e-9 and high[2] <= hurdle[1] + 1e-9
    if "platforms" in limits.kinds:
        for low, _ in _boxes(env, "slab"):
            assert clearance[0] - 1e-9 <= low[2] <= clearance[1] + 1e-9
    if "walls" in limits.kinds:
        for (_, right), (left, _) in zip(_boxes(env, "right"), _boxes(env, "left"), strict=True):
            assert opening[0] - 1e-9 <= left[1] - right[1] <= opening[1] + 1e-9
            assert -limits.width / 2 - 1e-9 <= right[1] and left[1] <= limits.width / 2 + 1e-9


@pytest.mark.parametrize("body", BODIES)
def test_the_easiest_obstacles_are_small_for_the_legs_and_the_hardest_are_within_reach(body):
    """A jump at the rewarded speed that lifts the body by a quarter of a leg is longer than the widest gap."""
    model, limits = ParkourEnv(body).model, LIMITS[body]
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    leg = data.body("right_thigh").xpos[2]
    assert 0.85 < leg < 0.95
    assert limits.gap[0] < 0.25 * leg and limits.hurdle[0] < 0.1 * leg and limits.step[0] < 0.1 * leg
    assert limits.gap[1] < SPEED * 2 * math.sqrt(2 * 0.25 * leg / 9.81)
    assert limits.hurdle[1] <= 0.5 * leg and limits.step[1] <= 0.5 * leg
    height = max(
        data.geom_xpos[geom][2] + model.geom_rbound[geom] for geom in range(model.ngeom) if model.geom_contype[geom]
    )
    if "platforms" in limits.kinds:
        assert limits.clearance[0] > height > limits.clearance[1] > 0.8 * height
    if "walls" in limits.kinds:
        assert limits.opening[1] > 1.5 * (data.body("left_upper_arm").xpos[1] - data.body("right_upper_arm").xpos[1])


def test_obstacles_become_harder_along_a_course():
    env, heights = ParkourEnv("walker", "hurdles"), []
    for seed in range(40):
        env.reset(seed=seed)
        heights.append([high[2] for _, high in _boxes(env, "hurdle")])
    early, late = np.mean(heights, 0)[[0, -1]]
    assert early < 0.1 and late > 0.2
    easy = ParkourEnv("walker", "hurdles", difficulty=0)
    easy.reset(seed=0)
    assert {round(high[2], 9) for _, high in _boxes(easy, "hurdle")} == {0.05}


@pytest.mark.parametrize("body", BODIES)
def test_a_diverged_parkour_ends_the_episode(body):
    env = ParkourEnv(body)
    env.reset(seed=0)
    env.data.qvel[:] = 1e12
    seen, reward, terminated, _, _ = env.step(np.zeros(env.action_space.shape))
    assert terminated and np.isfinite(reward) and all(np.isfinite(values).all() for values in seen.values())
    env.reset()
    assert not env.step(np.zeros(env.action_space.shape))[2]


@pytest.mark.parametrize("body", BODIES)
def test_gymnasium_accepts_parkour(body):
    check_env(ParkourEnv(body, render_mode=None), skip_render_check=True)


@pytest.mark.parametrize(("body", "numbers", "torques"), [("walker", 9, 6), ("humanoid", 28, 21)])
def test_bodies_and_observations_have_the_sizes_of_the_paper(body, numbers, torques):
    env = ParkourEnv(body)
    seen, _ = env.reset(seed=0)
    assert env.model.nq == numbers and env.model.nu == torques == env.action_space.shape[0]
    assert (len(seen["proprioception"]), len(seen["terrain"])) == SIZES[body]
    assert env.observation_space.contains(seen)


def test_what_the_walker_feels():
    env, random = ParkourEnv("walker"), np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(10):
        felt = env.step(random.uniform(-1, 1, 6))[0]["proprioception"]
    data = env.data
    pitch = data.joint("root_pitch").qpos[0]
    velocity = [data.joint(name).qvel[0] for name in ("root_x", "root_z", "root_pitch")]
    np.testing.assert_allclose(felt[:6], data.qpos[3:], rtol=1e-5)
    np.testing.assert_allclose(felt[6:12], data.qvel[3:], rtol=1e-5)
    np.testing.assert_allclose(felt[12:17], [math.sin(pitch), math.cos(pitch), *velocity], rtol=1e-5)


def test_what_the_humanoid_feels():
    """Positions and velocities in the torso's frame, by finite differences of the simulation."""
    env = ParkourEnv("humanoid")
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.full(21, 0.2))
    felt, data, model = env.task.observe(env.data)["proprioception"], env.data, env.model
    torso = data.body("torso")
    axes, origin, hand = torso.xmat.reshape(3, 3).copy(), torso.xpos.copy(), data.site("left_hand").xpos.copy()
    np.testing.assert_allclose(felt[45:48], axes.T @ (hand - origin), atol=1e-6)
    np.testing.assert_allclose(felt[60:66], [*axes.T @ [0, 0, 1], *axes.T @ [1, 0, 0]], atol=1e-6)
    centre = data.subtree_com[0].copy()
    np.testing.assert_allclose(felt[66:69], axes.T @ (centre - origin), atol=1e-6)
    moved, small = mujoco.MjData(model), 1e-6
    moved.mocap_pos[:], moved.qpos[:] = data.mocap_pos, data.qpos
    mujoco.mj_integratePos(model, moved.qpos, data.qvel, small)
    mujoco.mj_forward(model, moved)
    np.testing.assert_allclose(felt[54:57], axes.T @ (moved.body("torso").xpos - origin) / small, atol=1e-3)
    turned = axes.T @ moved.body("torso").xmat.reshape(3, 3)
    spin = np.array([turned[2, 1] - turned[1, 2], turned[0, 2] - turned[2, 0], turned[1, 0] - turned[0, 1]]) / 2
    np.testing.assert_allclose(felt[57:60], spin / small, atol=1e-3)
    np.testing.assert_allclose(felt[69:72], axes.T @ (moved.subtree_com[0] - centre) / small, atol=1e-3)
    assert felt[76] == pytest.approx(origin[1])


@pytest.mark.parametrize("body", BODIES)
def test_feet_on_the_floor_are_felt(body):
    env = ParkourEnv(body)
    env.reset(seed=0)
    felt = [env.step(np.zeros(env.action_space.shape))[0]["proprioception"] for _ in range(8)]
    touches = np.array(felt)[:, 17:] if body == "walker" else np.array(felt)[:, 72:76]
    assert (touches >= 0).all() and (touches <= 1).all() and touches.max() > 0.2
    at(env, 0.0)
    root = env.data.qpos[1:2] if body == "walker" else env.data.qpos[2:3]
    root += 0.5
    mujoco.mj_forward(env.model, env.data)
    felt = env.task.observe(env.data)["proprioception"]
    assert (felt[17:] == 0).all() if body == "walker" else (felt[72:76] == 0).all()
    if body == "humanoid":
        assert (felt[77:79] > 0.4).all(), "the feet's heights above the floor"


@pytest.mark.parametrize("body", BODIES)
def test_the_reward_is_the_share_of_the_speed_up_to_1(body):
    task = Parkour(body)
    env = ParkourEnv(body)
    env.task = task
    env.reset(seed=0)
    start = float(env.data.body("torso").xpos[0])
    for x, expected in ((0.03, 0.5), (0.09, 1.0), (0.29, 1.0), (0.26, -0.5), (0.0, -1.0)):
        at(env, x)
        outcome = task.judge(env.data)
        assert outcome.reward == pytest.approx(expected, abs=1e-3)
        assert outcome.measures["distance"] == pytest.approx(env.data.body("torso").xpos[0] - start)


def test_a_walker_that_lies_or_is_in_a_gap_has_fallen():
    env = ParkourEnv("walker", "gaps")
    env.reset(seed=0)
    assert not env.task.judge(env.data).terminated
    at(env, 0.0, pitch=1.5)
    assert not env.task.judge(env.data).terminated, "in the air"
    env.data.qpos[1] = -1.0
    mujoco.mj_forward(env.model, env.data)
    assert env.task.judge(env.data).terminated
    before, after = _boxes(env, "start")[0][1][0], _boxes(env, "tile")[0][0][0]
    at(env, (before + after) / 2)
    assert not env.task.judge(env.data).terminated, "above the gap"
    env.data.qpos[1] = -0.7
    mujoco.mj_forward(env.model, env.data)
    assert env.task.judge(env.data).terminated


def test_a_humanoid_beside_a_wall_has_not_fallen():
    env = ParkourEnv("humanoid", "walls")
    env.reset(seed=0)
    low, high = _boxes(env, "left")[0]
    at(env, (low[0] + high[0]) / 2, low[1] + 0.5)
    assert not env.task.judge(env.data).terminated
    env.data.qpos[2] = 0.3
    mujoco.mj_forward(env.model, env.data)
    assert env.task.judge(env.data).terminated


def energy(env: ParkourEnv) -> float:
    """In joules."""
    mujoco.mj_energyPos(env.model, env.data)
    mujoco.mj_energyVel(env.model, env.data)
    return env.data.energy.sum()


@pytest.mark.parametrize("body", BODIES)
def test_a_body_without_torques_falls_and_does_not_gain_energy(body):
    env = ParkourEnv(body)
    for seed in range(3):
        env.reset(seed=seed)
        start, terminated, steps = energy(env), False, 0
        while not terminated and steps < 400:
            _, _, terminated, _, _ = env.step(np.zeros(env.action_space.shape))
            steps += 1
            assert energy(env) <= start + 5.0
        assert terminated and steps > 10


@pytest.mark.parametrize("body", BODIES)
def test_random_torques_give_finite_numbers(body):
    env, random = ParkourEnv(body), np.random.default_rng(5)
    env.reset(seed=5)
    for _ in range(300):
        seen, reward, terminated, _, info = env.step(random.uniform(-1, 1, env.action_space.shape))
        assert env.observation_space.contains(seen) and all(np.isfinite(part).all() for part in seen.values())
        assert -1.0 <= reward <= 1.0 and math.isfinite(info["distance"])
        if terminated:
            env.reset()


@pytest.mark.parametrize("body", BODIES)
def test_a_seed_decides_an_episode_and_a_saved_state_continues_with_the_same_bits(body):
    first, second, third = (ParkourEnv(body) for _ in range(3))
    random = np.random.default_rng(3)
    for env in (first, second):
        env.reset(seed=9)
    third.reset(seed=1)
    assert not np.array_equal(first.data.mocap_pos, third.data.mocap_pos), "another seed, another course"
    for step in range(24):
        if step == 12:
            third.set_state(first.get_state())
            np.testing.assert_array_equal(first.data.mocap_pos, third.data.mocap_pos)
        action = random.uniform(-1, 1, first.action_space.shape)
        steps = [env.step(action) for env in (first, second, third)]
        for other in steps[1:] if step >= 12 else steps[1:2]:
            for name, values in steps[0][0].items():
                np.testing.assert_array_equal(values, other[0][name])
            assert steps[0][1:] == other[1:]
    for env in (first, second, third):
        env.reset()
    np.testing.assert_array_equal(first.data.mocap_pos, third.data.mocap_pos)


def test_environments_of_a_process_do_not_share_a_course():
    first, second = ParkourEnv("walker"), ParkourEnv("walker")
    first.reset(seed=0)
    before = first.task.observe(first.data)["terrain"]
    second.reset(seed=1)
    np.testing.assert_array_equal(first.task.observe(first.data)["terrain"], before)


@pytest.mark.parametrize("body", BODIES)
def test_an_episode_is_truncated_at_its_limit(body):
    env = ParkourEnv(body)
    env.reset(seed=0)
    env._steps = 998
    assert env.step(np.zeros(env.action_space.shape))[2:4] == (False, False)
    assert env.step(np.zeros(env.action_space.shape))[2:4] == (False, True)


def test_gymnasium_makes_parkour():
    env = gymnasium.make("paceline/Parkour-v0", body="humanoid", terrain="walls", difficulty=0.5)
    assert env.spec.max_episode_steps is None and env.reset(seed=0)[0]["terrain"].shape == (461,)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("parkour:walkr", "body 'walkr' does not exist, did you mean 'walker'.*allowed: walker, humanoid"),
        ("parkour:walker?terrain=walls", "terrain 'walls' of the walker.*allowed: all, gaps, hurdles, platforms"),
        ("parkour:humanoid?terrain=3", "terrain 3 of the humanoid does not exist"),
        ("parkour:walker?difficulty=2", "difficulty must be between 0 and 1, got 2"),
        ("parkour:walker?difficulty=hard", "difficulty must be between 0 and 1, got 'hard'"),
        ("parkour:walker?size=3", "option 'size'.*allowed: terrain, difficulty, max_episode_steps"),
    ],
)
def test_ids_are_checked_before_a_worker_starts(env, message):
    with pytest.raises(UsageError, match=message):
        make_pool(env, PoolConfig(kind="serial", num_envs=1))


@pytest.mark.parametrize(("body", "atoms"), [("walker", 51), ("humanoid", 101)])
def test_recipes_have_the_settings_of_the_paper(body, atoms):
    config = recipes.find(f"parkour_{body}")
    assert config.env == f"parkour:{body}" and config.pool.num_envs == 64 and config.replay.capacity == 1_000_000
    assert config.control.value.atoms == atoms and config.policy.reduced == ("terrain",)
    assert (config.d4pg.batch, config.d4pg.steps, config.d4pg.noise) == (512, 5, 0.3)
    assert config.d4pg.actor_rate == config.d4pg.critic_rate == 5e-5


@pytest.mark.parametrize("system", ["ddppo", "ver", "appo", "d4pg"])
def test_a_short_training_run_reports_obstacles_and_distance(tmp_path, system):
    if system == "d4pg":
        settings = {"limiter": {"minimum": 64}, "replay": {"capacity": 1000}}
    else:
        settings = {"rollout_steps": 50, "ppo": {"epochs": 1, "minibatches": 1}}
    run = pl.train(
        env="parkour:walker?difficulty=0.5",
        system=system,
        folder=tmp_path / "run",
        steps=600,
        device="cpu",
        policy={"reduced": ("terrain",)},
        pool={"kind": "serial", "num_envs": 4},
        **settings,
    )
    assert {"episode_obstacles", "episode_distance"} <= set(run.metrics)
