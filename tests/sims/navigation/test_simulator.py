"""Episodes worked out by hand: rewards, ends, measures and observations."""

import math

import numpy as np
import pytest
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.layout import FORWARD, LEFT, RIGHT, STOP
from paceline.sims.navigation.scenes.free_space import REST
from paceline.sims.navigation.simulator import Navigation
from tests.sims.navigation.rooms import bank_of_one, divided_room, random_steps, room


def one(scene=None, start=(1.0, 2.0), heading=0.0, goal=(2.0, 2.0), **options):
    options.setdefault("sensors", "blind")
    bank = bank_of_one(scene or room(), start, heading, goal)
    simulator = Navigation(1, "cpu", PointNavConfig(**options), bank=bank)
    simulator.reset(0)
    return simulator


def act(simulator, *actions):
    return [simulator.step(torch.tensor([action])) for action in actions]


def measures(simulator):
    return {name: float(values[0]) for name, values in simulator.last_measures.items()}


def test_straight_to_the_goal():
    simulator = one()
    steps = act(simulator, *[FORWARD] * 4, STOP)
    for step in steps[:4]:
        assert float(step.reward) == pytest.approx(0.25 - 0.01, abs=1e-5)
        assert not (step.terminated | step.truncated)
    assert float(steps[-1].reward) == pytest.approx(2.5 - 0.01, abs=1e-5)
    assert bool(steps[-1].terminated)
    assert not bool(steps[-1].truncated)
    assert measures(simulator) == pytest.approx(
        {
            "success": 1,
            "spl": 1,
            "soft_spl": 1,
            "distance_to_goal": 0,
            "collisions": 0,
            "geodesic": 1,
            "path_length": 1,
            "steps": 5,
        },
        abs=1e-5,
    )


def test_success_is_within_20_cm():
    simulator = one(goal=(2.19, 2.0))
    assert float(act(simulator, *[FORWARD] * 4, STOP)[-1].reward) == pytest.approx(2.49, abs=1e-4)
    simulator = one(goal=(2.21, 2.0))
    assert float(act(simulator, *[FORWARD] * 4, STOP)[-1].reward) == pytest.approx(-0.01, abs=1e-5)
    assert measures(simulator)["success"] == 0
    assert measures(simulator)["spl"] == 0


def test_stopping_early_is_failure():
    simulator = one()
    last = act(simulator, FORWARD, STOP)[-1]
    assert bool(last.terminated)
    assert float(last.reward) == pytest.approx(-0.01, abs=1e-6)
    got = measures(simulator)
    assert got["success"] == got["spl"] == 0
    assert got["soft_spl"] == pytest.approx(0.25, abs=1e-5)
    assert got["distance_to_goal"] == pytest.approx(0.75, abs=1e-5)


def test_a_detour_costs_spl():
    """One metre away, back, and to the goal: a path of 3 m instead of 1 m."""
    simulator = one(start=(3.0, 2.0), heading=math.pi, goal=(4.0, 2.0))
    rewards = [float(s.reward) for s in act(simulator, *[FORWARD] * 4, *[LEFT] * 18, *[FORWARD] * 8, STOP)]
    assert rewards[:4] == pytest.approx([-0.26] * 4, abs=1e-5)
    assert rewards[4:22] == pytest.approx([-0.01] * 18, abs=1e-6)
    assert rewards[-1] == pytest.approx(2.5 / 3 - 0.01, abs=1e-4)
    assert measures(simulator)["spl"] == pytest.approx(1 / 3, abs=1e-4)
    assert measures(simulator)["path_length"] == pytest.approx(3.0, abs=1e-4)


def test_distance_is_around_walls_and_not_through_them():
    """15 cm from the goal in a straight line, with a thin wall in between."""
    thin = room(boxes=[(2.95, 0.0, 3.0, 3.0, 0.0, 2.5)])
    simulator = one(thin, start=(2.84, 1.0), goal=(3.11, 1.0), success_distance=0.3)
    assert np.hypot(0.27, 0.0) < 0.3
    last = act(simulator, STOP)[-1]
    assert measures(simulator)["success"] == 0
    assert float(last.reward) == pytest.approx(-0.01)
    assert measures(simulator)["distance_to_goal"] > 4.0


def test_collisions_and_sliding():
    simulator = one(room(3, 3), start=(2.5, 1.5), heading=math.pi / 4, goal=(1.0, 1.0))
    act(simulator, *[FORWARD] * 5)
    assert measures(simulator)["collisions"] == 3
    x, y, _ = simulator.poses[0].tolist()
    assert x == pytest.approx(3 - REST, abs=1e-4)
    assert y == pytest.approx(1.5 + 5 * 0.25 * math.sin(math.pi / 4), abs=1e-3)
    stiff = one(room(3, 3), start=(2.5, 1.5), heading=math.pi / 4, goal=(1.0, 1.0), slide=False)
    act(stiff, *[FORWARD] * 5)
    x, y, _ = stiff.poses[0].tolist()
    assert x == pytest.approx(3 - REST, abs=1e-4)
    assert y == pytest.approx(1.5 + 0.4, abs=2e-3)
    assert measures(stiff)["collisions"] == 3


def test_turns_are_ten_degrees():
    simulator = one()
    act(simulator, LEFT, LEFT, RIGHT, LEFT)
    assert float(simulator.poses[0, 2]) == pytest.approx(math.radians(20), abs=1e-6)
    act(simulator, FORWARD)
    want = [1 + 0.25 * math.cos(math.radians(20)), 2 + 0.25 * math.sin(math.radians(20))]
    assert simulator.poses[0, :2].tolist() == pytest.approx(want, abs=1e-6)


def test_an_episode_is_truncated_at_its_limit_and_the_next_begins():
    simulator = one(max_episode_steps=3)
    steps = act(simulator, *[FORWARD] * 6)
    assert [bool(step.truncated) for step in steps] == [False, False, True] * 2
    assert not any(bool(step.terminated) for step in steps)
    assert steps[2].final_obs["goal"][0].tolist() == pytest.approx([0.25, 1, 0], abs=1e-5)
    assert steps[2].obs["goal"][0].tolist() == pytest.approx([1.0, 1, 0], abs=1e-5)
    assert simulator.episode_numbers.tolist() == [2]
    # Stopping on the last step is an end, not a cut.
    last = act(one(max_episode_steps=3), FORWARD, FORWARD, STOP)[-1]
    assert bool(last.terminated)
    assert not bool(last.truncated)
    assert Navigation(1, bank=simulator.bank).config.max_episode_steps == 500


def test_the_goal_is_seen_from_the_agent():
    simulator = one(start=(3.0, 2.0), heading=math.pi / 2, goal=(2.0, 2.0))
    obs = simulator.reset(0)
    assert obs["goal"][0].tolist() == pytest.approx([1.0, 0.0, 1.0], abs=1e-6)  # to the left
    left = act(simulator, *[LEFT] * 9)[-1]
    assert left.obs["goal"][0].tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-5)
    assert act(simulator, FORWARD)[-1].obs["goal"][0].tolist() == pytest.approx([0.75, 1.0, 0.0], abs=1e-5)


def test_without_gps_the_goal_stays_where_it_was():
    simulator = one(start=(3.0, 2.0), heading=math.pi / 2, goal=(2.0, 2.0), gps=False)
    first = simulator.reset(0)["goal"]
    for step in act(simulator, LEFT, FORWARD, FORWARD, RIGHT):
        assert torch.equal(step.obs["goal"], first)


def test_without_gps_each_episode_has_its_own_goal(small_bank):
    simulator = Navigation(6, "cpu", PointNavConfig(sensors="blind", gps=False, max_episode_steps=4), bank=small_bank)
    goals = simulator.reset(0)["goal"]
    for step in random_steps(simulator, 12):
        assert torch.equal(step.final_obs["goal"], goals)
        ended = step.terminated | step.truncated
        assert (step.obs["goal"] != goals).any(1).tolist() == ended.tolist()
        goals = step.obs["goal"]


def test_the_previous_action_is_seen():
    simulator = one()
    assert simulator.reset(0)["previous_action"].tolist() == [[0, 0, 0, 0, 1]]
    forward, stop = act(simulator, FORWARD, STOP)
    assert forward.obs["previous_action"].tolist() == [[0, 1, 0, 0, 0]]
    assert stop.final_obs["previous_action"].tolist() == [[1, 0, 0, 0, 0]]
    assert stop.obs["previous_action"].tolist() == [[0, 0, 0, 0, 1]]


@pytest.mark.parametrize("sensors", ["depth", "rgb", "depth+rgb", "blind"])
def test_observations_are_in_their_space(sensors, small_bank):
    for dtype in ("float32", "float16", "uint8"):
        config = PointNavConfig(sensors=sensors, resolution=8, depth_dtype=dtype, image_noise=0.1, gps_noise=0.05)
        simulator = Navigation(3, "cpu", config, bank=small_bank)
        obs = simulator.reset(0)
        assert set(obs) == {"goal", "previous_action"} | ({"depth"} if "depth" in sensors else set()) | (
            {"rgb"} if "rgb" in sensors else set()
        )
        for step in random_steps(simulator, 5):
            for leaves in (step.obs, step.final_obs):
                for stream in range(3):
                    sample = {name: values[stream].numpy() for name, values in leaves.items()}
                    assert simulator.observation_space.contains(sample)


def test_a_curriculum_of_distances(small_bank):
    simulator = Navigation(64, "cpu", PointNavConfig(sensors="blind", max_distance=2.5), bank=small_bank)
    stop = torch.zeros(64, dtype=torch.long)

    def farthest():
        return max(
            float(simulator.step(stop).obs["goal"][:, 0].max() * 0 + simulator._state[:, 5].max()) for _ in range(20)
        )

    simulator.reset(0)
    nearest = float(small_bank.episodes[:, 0, 5].max())
    assert farthest() <= max(2.5, nearest)
    simulator.task.set_max_distance(4.0)
    assert 2.5 < farthest() <= 4.0
    simulator.task.set_max_distance(torch.tensor(math.inf))
    assert farthest() > 4.0
    simulator.task.set_max_distance(0.0)  # the nearest goal of each scene remains
    assert farthest() <= nearest


def test_listed_episodes_are_played_in_order(small_bank):
    simulator = Navigation(3, "cpu", PointNavConfig(sensors="blind"), bank=small_bank)
    scenes, episodes = [5, 1, 0, 7, 3], [10, 20, 30, 40, 50]
    simulator.load_episodes(scenes, episodes)
    stop = torch.zeros(3, dtype=torch.long)
    seen = [simulator._rows.tolist()]
    for _ in range(3):
        simulator.step(stop)
        seen.append(simulator._rows.tolist())
    flat = [s * small_bank.num_episodes + e for s, e in zip(scenes, episodes, strict=True)]
    assert seen == [flat[:3], [*flat[3:], flat[2]], [*flat[3:], flat[2]], [*flat[3:], flat[2]]]
    with pytest.raises(UsageError, match="at least one for each of the 3 streams"):
        simulator.load_episodes([1], [1])
    with pytest.raises(UsageError, match="allowed: scenes 0 to 11, and episodes 0 to 255 of each"):
        simulator.load_episodes([1, 2, 12], [1, 2, 3])


def test_noise_is_off_by_default_and_has_the_size_asked_for(small_bank):
    def run(**options):
        simulator = Navigation(8, "cpu", PointNavConfig(resolution=8, **options), bank=small_bank)
        simulator.reset(0)
        steps = [simulator.step(torch.full((8,), action)) for action in (LEFT, RIGHT, LEFT)]
        return steps[-1].obs, simulator.poses

    plain, poses = run()
    for options, name in (({"image_noise": 0.01}, "depth"), ({"gps_noise": 0.01}, "goal")):
        noisy, same = run(**options)
        assert torch.equal(poses, same)
        difference = (noisy[name] - plain[name]).abs()
        assert 0 < float(difference.max()) < 0.1
        assert torch.equal(run(**options)[0][name], noisy[name])
    _, moved = run(actuation_noise=0.05)
    assert 0 < float((moved - poses).abs().max()) < 0.1


def test_noise_has_the_standard_deviation_that_the_options_say(small_bank):
    def run(action, **options):
        simulator = Navigation(512, "cpu", PointNavConfig(resolution=8, **options), bank=small_bank)
        simulator.reset(0)
        before = simulator.poses
        obs = simulator.step(torch.full((512,), action)).obs
        return obs, simulator.poses - before, simulator.last_measures

    plain, exact, _ = run(LEFT)
    _, turned, _ = run(LEFT, actuation_noise=0.1)
    assert float(turned[:, :2].abs().max()) == 0.0
    assert abs(float((turned[:, 2] / exact[:, 2]).std()) - 0.1) < 0.01
    _, walked, measures = run(FORWARD, actuation_noise=0.1)
    free = measures["collisions"] == 0
    assert float(walked[:, 2].abs().max()) == 0.0  # a step does not turn
    assert abs(float((walked[free, :2].norm(dim=1) / 0.25).std()) - 0.1) < 0.01
    seen = run(LEFT, image_noise=0.1)[0]["depth"]
    near = plain["depth"] < 0.6  # no noise reaches 10 m, where it would be clipped
    assert abs(float((seen / plain["depth"])[near].std()) - 0.1) < 0.01
    placed = run(LEFT, gps_noise=0.1)[0]["goal"]
    assert abs(float((placed[:, 0] - plain["goal"][:, 0]).std()) - 0.1) < 0.01
    distance, *_ = plain["goal"].unbind(1)
    far = distance > 2.0
    angles = [torch.atan2(goal[far, 2], goal[far, 1]) for goal in (placed, plain["goal"])]
    error = torch.remainder(angles[0] - angles[1] + math.pi, 2 * math.pi) - math.pi
    expected = 0.1 * (1.0 + distance[far] ** -2).sqrt()  # of the heading, and of the position
    assert abs(float((error / expected).std()) - 1.0) < 0.1


def test_noise_of_pixels_does_not_foretell_noise_of_turns(small_bank):
    def first(noise):
        config = PointNavConfig(resolution=8, image_noise=noise, actuation_noise=0.1)
        simulator = Navigation(256, "cpu", config, bank=small_bank)
        return simulator.reset(0)["depth"].flatten(1), simulator

    seen, simulator = first(0.05)
    pixels = seen - first(0.0)[0]
    before = simulator.poses[:, 2]
    simulator.step(torch.full((256,), LEFT))
    together = torch.corrcoef(torch.cat((pixels.T, (simulator.poses[:, 2] - before)[None])))[-1, :-1]
    assert float(together.nan_to_num().abs().max()) < 0.4


def test_noise_of_colours_has_mean_zero(small_bank):
    def first(noise):
        config = PointNavConfig(resolution=16, sensors="rgb", image_noise=noise)
        return Navigation(64, "cpu", config, bank=small_bank).reset(0)["rgb"].float()

    plain = first(0.0)
    inside = (plain > 60) & (plain < 195)  # far from black and white, where it is clipped
    assert abs(float((first(0.04) - plain)[inside].mean())) < 0.2


def test_bad_options_say_what_is_allowed(small_bank):
    for options, message in [
        ({"tier": "tiny"}, "tier is 'tiny'; allowed: small, full"),
        ({"split": "dev"}, "split is 'dev'; allowed: train, val, test"),
        ({"sensors": "lidar"}, "sensors is 'lidar'; allowed: depth, rgb, depth\\+rgb, blind"),
        ({"resolution": 0}, "resolution is 0; allowed: 1 to 1024"),
        ({"resolution": 6.5}, "resolution is 6.5; allowed: a whole number"),
        ({"resolution": True}, "resolution is True"),
        ({"scenes": 0}, "scenes is 0; allowed: 1 to"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
        ({"gps": 1}, "gps is 1; allowed: true or false"),
        ({"depth_dtype": "float64"}, "depth_dtype is 'float64'; allowed: float32, float16, uint8"),
        ({"image_noise": -1}, "image_noise is -1; allowed: 0 to 1"),
        ({"success_distance": float("nan")}, "success_distance is nan; allowed: 0 or more"),
    ]:
        with pytest.raises(UsageError, match=message):
            PointNavConfig(**options)
    with pytest.raises(UsageError, match="num_envs is 0"):
        Navigation(0, bank=small_bank)
    with pytest.raises(UsageError, match="there is no scene file"):
        Navigation(1, config=PointNavConfig(bank_file="/nowhere"))


def test_foresee_predicts_the_next_step(small_bank):
    simulator = Navigation(12, "cpu", PointNavConfig(sensors="blind"), bank=small_bank)
    simulator.reset(0)
    for _ in range(20):
        headings = simulator.poses[:, 2:3] + torch.tensor([[0.0, 1.0]])
        places, travelled = simulator.foresee(headings)
        before = simulator._state.clone()
        simulator.step(torch.ones(12, dtype=torch.long))
        torch.testing.assert_close(simulator.poses[:, :2], places[:, 0])
        torch.testing.assert_close(simulator._state[:, 7] - before[:, 7], travelled[:, 0])


def test_the_next_place_is_the_next_bend():
    simulator = one(divided_room(), start=(1.0, 1.0), goal=(5.0, 1.0))
    task, columns = simulator.task, simulator.columns
    assert task.next_places(columns, simulator.poses[:, :2])[0].tolist() == pytest.approx([2.8, 3.1], abs=1e-3)
    assert float(task.distances(columns, torch.tensor([[4.0, 1.0]]))) == pytest.approx(1.0)
