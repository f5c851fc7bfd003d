"""Records of episodes, maps of houses, pictures from outside, and videos."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.env import RearrangementEnv
from paceline.sims.rearrangement.episode_record import EpisodeRecord, Happened, OngoingRecord, StreamSnapshot
from paceline.sims.rearrangement.evaluation.recorder import RobotRecorder
from paceline.sims.rearrangement.physics.world import NOTHING, arm_of
from paceline.sims.rearrangement.rendering.goals import goals_of
from paceline.sims.rearrangement.rendering.house_map import GRASP, LARGEST_MAP, TARGET, house_map, thinned
from paceline.sims.rearrangement.rendering.painter import EYE_HEIGHT, HousePainter
from paceline.sims.rearrangement.rendering.pictures import SIDE, EpisodePictures, depth_colors, enlarged, moments_of
from paceline.sims.rearrangement.rendering.watching import FARTHEST, Watcher
from paceline.sims.rearrangement.scenes.bank import load_or_generate_houses
from paceline.sims.rearrangement.simulator import Rearrangement

BLIND = RearrangementConfig(sensors="blind", max_episode_steps=4)


def recorded(simulator: Rearrangement, count: int) -> list[EpisodeRecord]:
    """The first episodes of the list, with random motions."""
    generator = torch.Generator().manual_seed(0)

    def act(obs, began):
        return torch.rand(simulator.num_envs, simulator.actions.size, generator=generator) * 2 - 1

    recorder = RobotRecorder(simulator, act)
    numbers = list(range(count))
    obs, began = simulator.load_episodes([0] * count, numbers), torch.ones(simulator.num_envs, dtype=torch.bool)
    for _ in range(-(-count // simulator.num_envs) * simulator.num_steps):
        step = simulator.step(recorder.act(obs, began))
        obs, began = step.obs, step.terminated | step.truncated
    return recorder.episodes(count)


@pytest.fixture(scope="module")
def episodes(kitchens):
    return recorded(Rearrangement(2, "cpu", "navigate", BLIND, bank=kitchens), 4)


@pytest.fixture(scope="module")
def painter(kitchens):
    return HousePainter(kitchens)


def test_a_record_has_every_state_of_its_episode(episodes, kitchens):
    assert [(episode.scene, episode.number) for episode in episodes] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    for episode in episodes:
        assert len(episode.steps) == 4 and episode.bases.shape == (5, 3) and episode.targets.shape == (5, 3)
        starts = kitchens.far_starts[0, episode.number].double().numpy()
        assert np.abs(starts - episode.bases[0]).sum(1).min() < 1e-5, "the first state is the start"
        assert np.abs(np.diff(episode.bases, axis=0)).max() < 0.1, "the last one is not in the next episode"
        np.testing.assert_allclose(episode.tips, arm_of(episode.states).tip, atol=1e-6)
    shorter = episodes[0].until(2)
    assert len(shorter.steps) == 2 and shorter.bases.shape == (3, 3)


def test_the_last_stream_stays_in_its_episode(kitchens):
    """The next episode used to be written over its scene."""
    simulator = Rearrangement(8, "cpu", "navigate", BLIND, bank=kitchens)
    simulator.reset(1)
    before = simulator.stream
    for _ in range(4):
        step = simulator.step(torch.zeros(8, simulator.actions.size))
    assert step.truncated.all()
    for name in ("scenes", "episodes", "start"):
        assert torch.equal(getattr(simulator.last_stream, name), getattr(before, name))
    assert torch.equal(simulator.last_facts.scenes, before.scenes)
    assert not torch.equal(simulator.stream.episodes, before.episodes)


def at_rest(episode: EpisodeRecord, *steps: Happened) -> EpisodeRecord:
    return episode.until(len(steps))._replace(steps=list(steps))


def pixels_of(image: np.ndarray, color: tuple[int, int, int]) -> int:
    return int((np.abs(image.astype(int) - color).sum(-1) < 12).sum())


def test_maps_mark_goals_grasps_and_the_start(episodes, painter):
    nothing = Happened(NOTHING, NOTHING, False, False)
    still = at_rest(episodes[0], nothing, nothing)
    goals = goals_of("navigate", painter.bank, still)
    assert [(goal.x, goal.y) for goal in goals] == [tuple(still.targets[0, :2])]
    image = house_map(painter, still, goals, 300)
    assert image.dtype == np.uint8 and max(image.shape[:2]) == 300
    assert pixels_of(image, TARGET) > 20 and not pixels_of(image, GRASP)
    grasped = at_rest(episodes[0], nothing, nothing._replace(taken=3))
    assert grasped.grasps() == [2] and pixels_of(house_map(painter, grasped, goals, 300), GRASP) > 10


def test_a_large_house_is_shown_in_part():
    painter = HousePainter(load_or_generate_houses("full", num_scenes=1))
    area = painter.bank.scene(0).interior
    assert max(area.width, area.depth) > LARGEST_MAP
    simulator = Rearrangement(1, "cpu", "tidy_house", BLIND, bank=painter.bank)
    (episode,) = recorded(simulator, 1)
    goals = goals_of("tidy_house", painter.bank, episode)
    assert len(goals) == 5 and all(goal.color is not None for goal in goals)
    near = [goal for goal in goals if math.dist((goal.x, goal.y), episode.bases[0, :2]) < 3.0]
    part, whole = (house_map(painter, episode, near, 200, whole=whole) for whole in (False, True))
    robot = (55, 65, 81)
    assert pixels_of(part, robot) > 1.5 * pixels_of(whole, robot)


def test_paths_are_thinned_to_visible_steps():
    points = np.column_stack([np.linspace(0.0, 1.0, 501), np.zeros(501)])
    kept = thinned(points)
    assert len(kept) < 30 and (kept[0] == points[0]).all() and (kept[-1] == points[-1]).all()


def test_pictures_show_depth_the_robot_and_the_map(episodes, painter):
    pictures = EpisodePictures(painter, "navigate", 0, 16)
    image = pictures.picture(episodes[0], 96)
    assert image.shape == (96, 3 * 96 + 16, 3)
    assert all(part.std() > 10 for part in (image[:, :96], image[:, 104:200], image[:, 208:]))
    depth = depth_colors(painter.depth(moments_of(episodes[0], [-1]), 16))[0]
    np.testing.assert_array_equal(image[:, :96], enlarged(depth, 96))


def test_the_camera_outside_sees_the_robot(episodes, painter):
    solids = painter.solids(0)
    watcher = Watcher(solids)
    x, y, heading = watcher.look(episodes[0].bases[0], episodes[0].targets[0])
    bx, by, _ = episodes[0].bases[0]
    apart = math.hypot(bx - x, by - y)
    assert 0.5 < apart < 1.5 * FARTHEST
    assert math.cos(heading - math.atan2(by - y, bx - x)) > 0.9
    for share in np.linspace(0.0, 0.95, 50):
        point = np.array([x + share * (bx - x), y + share * (by - y), EYE_HEIGHT + share * (0.9 - EYE_HEIGHT)])
        assert not (np.abs(point - solids[:, :3]) < solids[:, 3:6]).all(1).any()
    assert watcher.look(episodes[0].bases[1], episodes[0].targets[1])[:2] == (x, y), "it stays where it is"


def test_near_is_dark_and_far_is_bright():
    colors = depth_colors(np.array([0.0, 0.1, 0.5, 1.0])).astype(int).sum(-1)
    assert colors[0] < colors[1] < colors[2] == colors[3]


def test_steps_are_recorded_from_the_first_picture_on(kitchens, monkeypatch):
    """Every environment of a pool can render. Most never do, and used to record all the same."""
    snapshots = []
    made = StreamSnapshot.of
    monkeypatch.setattr(StreamSnapshot, "of", lambda *given: snapshots.append(made(*given)) or snapshots[-1])
    env = RearrangementEnv("pick", bank=kitchens, sensors="blind", render_mode="rgb_array")
    env.reset(seed=1)
    for _ in range(3):
        env.step(np.ones(env.action_space.shape, np.float32))
    assert not snapshots
    env.render()
    env.step(np.ones(env.action_space.shape, np.float32))
    assert len(snapshots) == 2
    env.reset()
    assert len(snapshots) == 3, "the next episode has its start"


def test_the_first_picture_after_the_end_is_of_the_episode_that_ended(kitchens):
    images = []
    for is_recording in (False, True):
        env = RearrangementEnv("pick", bank=kitchens, sensors="blind", render_mode="rgb_array", max_episode_steps=2)
        env.reset(seed=1)
        if is_recording:
            env.render()
        for _ in range(2):
            env.step(np.zeros(env.action_space.shape, np.float32))
        images.append(env.render()[:, :SIDE])
    np.testing.assert_array_equal(*images)


def test_reading_an_ongoing_record_copies_no_states(kitchens):
    simulator = Rearrangement(2, "cpu", "navigate", BLIND, bank=kitchens)
    simulator.reset(1)
    snapshot = StreamSnapshot.of(simulator, simulator.stream)
    record = OngoingRecord(1, snapshot)
    nothing = Happened(NOTHING, NOTHING, False, False)
    for _ in range(5):
        record.add(nothing, snapshot)
    first, second = record.record(), record.record()
    assert first.bases.shape == (6, 3) and len(first.steps) == 5
    assert first.states.pose.data_ptr() == second.states.pose.data_ptr()
    record.add(nothing, snapshot)
    assert first.bases.shape == (6, 3) and record.record().bases.shape == (7, 3)


def test_only_an_environment_that_renders_records(kitchens):
    silent = RearrangementEnv("pick", bank=kitchens, sensors="blind")
    silent.reset(seed=1)
    assert silent.render() is None
    env = RearrangementEnv("pick", bank=kitchens, sensors="blind", render_mode="rgb_array", max_episode_steps=2)
    assert env.render() is None
    env.reset(seed=1)
    first = env.render()
    for _ in range(2):
        env.step(np.ones(env.action_space.shape, np.float32))
    assert not np.array_equal(first, env.render())
    other = RearrangementEnv("pick", bank=kitchens, sensors="blind", render_mode="rgb_array", max_episode_steps=2)
    other.set_state(env.get_state())
    assert other.reset()[0]["target"].tolist() == env.reset()[0]["target"].tolist()
