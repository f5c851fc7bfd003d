"""The batched simulator: determinism, independence of streams, saved states, and a long random walk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.env import RearrangementEnv
from paceline.sims.rearrangement.physics.motion import TOUCHING
from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.scenes.bank import load_or_generate_houses
from paceline.sims.rearrangement.simulator import Rearrangement
from paceline.sims.rearrangement.tasks.table import SKILLS, task_config

SMALL = RearrangementConfig(resolution=8)
BLIND = RearrangementConfig(sensors="blind")
TASKS = [name for name, entry in SKILLS.items() if entry.scenario in ("", "tidy_house")]


def actions(simulator: Rearrangement, steps: int, seed: int = 0) -> torch.Tensor:
    """Smooth random actions: a robot that changes its mind in every step stays where it is."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(steps, simulator.num_envs, simulator.actions.size, generator=generator)
    smooth = [noise[0]]
    for row in noise[1:]:
        smooth.append(0.9 * smooth[-1] + 0.45 * row)
    return torch.stack(smooth)


def play(simulator: Rearrangement, chosen: torch.Tensor) -> list:
    return [simulator.step(row) for row in chosen]


@pytest.mark.parametrize("task", TASKS)
def test_a_step_copies_no_constants_from_the_host(kitchens, task, monkeypatch):
    """Not even at the end of episodes. Such a copy cannot be recorded in a CUDA graph."""
    simulator = Rearrangement(4, "cpu", task, replace(BLIND, max_episode_steps=3), bank=kitchens)
    simulator.reset(3)
    rows = actions(simulator, 8)
    play(simulator, rows[:4])  # makes what is made once
    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, None)
    play(simulator, rows[4:])


@pytest.mark.parametrize("task", TASKS)
def test_a_task_can_be_played(kitchens, task):
    simulator = Rearrangement(3, "cpu", task, SMALL, bank=kitchens)
    first = simulator.reset(1)
    assert set(first) == set(simulator.observation_space.spaces)
    for step in play(simulator, actions(simulator, 6)):
        for obs in (step.obs, step.final_obs):
            for name, values in obs.items():
                assert values.isfinite().all(), name
                assert tuple(values.shape[1:]) == simulator.observation_space[name].shape
        assert step.reward.isfinite().all() and not (step.terminated & step.truncated).any()
        assert set(simulator.measure_names) <= set(simulator.last_measures)


@pytest.mark.parametrize("task", [name for name, entry in SKILLS.items() if name not in TASKS])
def test_a_scenario_with_closed_furniture_can_be_played(task):
    config = task_config(task, {"sensors": "blind"}, task)
    bank = load_or_generate_houses("small", num_scenes=1, scenario=task)
    simulator = Rearrangement(2, "cpu", task, config, bank=bank)
    simulator.reset(1)
    for step in play(simulator, actions(simulator, 3)):
        assert step.reward.isfinite().all()


def test_houses_of_another_scenario_are_refused(kitchens):
    with pytest.raises(UsageError, match="the houses are those of tidy_house; allowed: set_table"):
        Rearrangement(1, "cpu", "set_table", RearrangementConfig(scenario="set_table"), bank=kitchens)


@pytest.mark.parametrize("task", ["pick", "place"])
def test_equal_seeds_give_equal_streams_and_others_do_not(kitchens, task):
    runs = []
    for seed in (1, 1, 2):
        simulator = Rearrangement(4, "cpu", task, SMALL, bank=kitchens)
        first = simulator.reset(seed)
        steps = play(simulator, actions(simulator, 8))
        runs.append(torch.cat([first["target"].flatten(), *(step.obs["target"].flatten() for step in steps)]))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_a_stream_is_the_same_alone_and_in_a_batch(kitchens):
    many = Rearrangement(4, "cpu", "pick", SMALL, bank=kitchens)
    alone = Rearrangement(1, "cpu", "pick", SMALL, bank=kitchens, first_stream=2)
    chosen = actions(many, 15)
    many.reset(3)
    alone.reset(3)
    for row in chosen:
        together, single = many.step(row), alone.step(row[2:3])
        for name, values in single.obs.items():
            torch.testing.assert_close(values[0], together.obs[name][2], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(single.reward[0], together.reward[2], atol=1e-5, rtol=1e-5)


def test_a_saved_state_continues_to_the_same_bits(kitchens):
    simulator = Rearrangement(4, "cpu", "place", SMALL, bank=kitchens)
    simulator.reset(5)
    chosen = actions(simulator, 14)
    play(simulator, chosen[:6])
    state = simulator.state_dict()
    expected = play(simulator, chosen[6:])
    other = Rearrangement(4, "cpu", "place", SMALL, bank=kitchens)
    other.load_state_dict(state)
    for old, new in zip(expected, play(other, chosen[6:]), strict=True):
        assert torch.equal(old.reward, new.reward)
        for name, values in old.obs.items():
            assert torch.equal(values, new.obs[name]), name


@pytest.mark.parametrize("task", ["tidy_house", "open_drawer"])
def test_nothing_is_lost_or_inside_something_else(kitchens, task):
    """A random walk with the hand opening and closing."""
    simulator = Rearrangement(16, "cpu", task, BLIND, bank=kitchens)
    simulator.reset(7)
    for step, row in enumerate(actions(simulator, 40)):
        before = simulator.stream
        simulator.step(row)
        after = simulator.last_stream
        assert after is not None
        worse = after.depth > torch.maximum(before.depth, torch.full_like(before.depth, TOUCHING))
        assert not worse.any(), step
        objects = after.state.objects
        assert objects.isfinite().all() and (objects[..., 2] > 0).all()
        untouched = torch.arange(objects.shape[1]) != before.state.held[:, None]
        in_drawer = before.state.object_joint > 0
        still = (objects == before.state.objects).all(2)
        assert (still | ~untouched | in_drawer).all(), "only what is held or lies in a drawer moves"


def test_the_last_observation_of_an_episode_is_in_its_own_house(kitchens):
    """The same episodes, cut off and not: what is seen after the last step is the same."""
    short, long = (
        Rearrangement(4, "cpu", "pick", replace(SMALL, max_episode_steps=steps), bank=kitchens) for steps in (3, 50)
    )
    short.reset(5), long.reset(5)
    for row in actions(short, 3):
        row[:, 7] = -1.0  # nothing is taken, which might end the episode
        cut, whole = short.step(row), long.step(row)
    assert cut.truncated.all() and not whole.truncated.any()
    for name, values in whole.obs.items():
        assert torch.equal(cut.final_obs[name], values), name
    assert torch.equal(short.last_stream.scenes, long.stream.scenes)
    assert torch.equal(short.last_stream.episodes, long.stream.episodes)


def test_the_delay_of_one_step(kitchens):
    """With `behind`, the second step carries out what the first one was told."""
    prompt, late = (
        Rearrangement(2, "cpu", "pick", RearrangementConfig(sensors="blind", behind=behind), bank=kitchens)
        for behind in (False, True)
    )
    for simulator in (prompt, late):
        simulator.reset(1)
    chosen = actions(prompt, 6)
    nothing = torch.zeros_like(chosen[0])
    for row in chosen:
        prompt.step(row)
    for row in (*chosen, nothing):
        late.step(row)
    torch.testing.assert_close(prompt.stream.state.angles, late.stream.state.angles)
    torch.testing.assert_close(prompt.stream.state.pose, late.stream.state.pose)


def test_with_the_delay_a_carried_object_is_not_dropped(kitchens):
    """The first step carries out what was before the first action: hold."""
    config = RearrangementConfig(sensors="blind", behind=True)
    simulator = Rearrangement(8, "cpu", "place", config, bank=kitchens)
    simulator.reset(1)
    hold = torch.zeros(8, simulator.actions.size)
    hold[:, 7] = 1.0
    for _ in range(2):
        assert not simulator.step(hold).terminated.any()


@pytest.mark.parametrize(
    ("task", "options"), [("navigate", {}), ("tidy_house", {}), ("pick", {"start": "far"})], ids=str
)
def test_a_base_that_stays_is_refused_where_it_cannot_work(kitchens, task, options):
    with pytest.raises(UsageError, match="base is false; allowed: in skills of the arm"):
        Rearrangement(1, "cpu", task, RearrangementConfig(base=False, **options), bank=kitchens)


def test_a_scenario_needs_its_own_setting(kitchens):
    with pytest.raises(UsageError, match="scenario is 'tidy_house'; allowed: set_table"):
        Rearrangement(1, "cpu", "set_table", RearrangementConfig(), bank=kitchens)


def test_actions_that_are_not_finite_are_refused(kitchens):
    env = RearrangementEnv("pick", bank=kitchens, sensors="blind")
    env.reset(seed=1)
    with pytest.raises(ValueError, match="is not finite"):
        env.step(np.full(10, np.nan, np.float32))


def test_without_the_base_the_robot_stays_and_the_action_is_shorter(kitchens):
    config = RearrangementConfig(sensors="blind", base=False)
    simulator = Rearrangement(2, "cpu", "pick", config, bank=kitchens)
    simulator.reset(1)
    assert simulator.action_space.shape == (8,)
    before = simulator.stream.state.pose
    simulator.step(torch.ones(2, 8))
    assert torch.equal(before, simulator.stream.state.pose)


def test_far_starts_are_elsewhere(kitchens):
    near, far = (
        Rearrangement(32, "cpu", "pick", RearrangementConfig(sensors="blind", start=start), bank=kitchens)
        for start in ("near", "far")
    )
    distances = [simulator.reset(1)["target"][:, 3:5].norm(dim=1).mean() for simulator in (near, far)]
    assert distances[0] < distances[1]


def test_a_list_of_episodes_is_played_in_its_order(kitchens):
    simulator = Rearrangement(
        2, "cpu", "pick", RearrangementConfig(sensors="blind", max_episode_steps=1), bank=kitchens
    )
    simulator.load_episodes([0, 1, 2], [5, 6, 7])
    played = [simulator.stream.scenes.tolist()]
    for _ in range(2):
        simulator.step(torch.zeros(2, simulator.actions.size))
        played.append(simulator.stream.scenes.tolist())
    assert played == [[0, 1], [2, 1], [2, 1]]
    with pytest.raises(UsageError, match="at least one for each of the 2 streams"):
        simulator.load_episodes([0], [0])


@pytest.mark.parametrize(
    ("task", "options"),
    [
        *((task, {}) for task in ("pick", "place", "navigate")),
        *((f"{way}_{what}", {}) for way in ("open", "close") for what in ("fridge", "drawer")),
        *((task, {"start": "far"}) for task in ("pick", "place", "open_fridge", "close_fridge", "close_drawer")),
        ("pick", {"base": False}),
    ],
)
def test_starts_touch_nothing(kitchens, task, options):
    """A door may be open by any angle from which it is closed, also one at which it is where the arm would rest."""
    simulator = Rearrangement(512, "cpu", task, replace(BLIND, **options), bank=kitchens)
    simulator.reset(11)
    assert (simulator.stream.depth <= TOUCHING).all()


def test_few_robots_that_place_without_their_base_touch_something(kitchens):
    """Where no heading is clear from which the arm reaches the goal."""
    simulator = Rearrangement(512, "cpu", "place", replace(BLIND, base=False), bank=kitchens)
    simulator.reset(11)
    assert (simulator.stream.depth > TOUCHING).float().mean() < 0.02


def test_a_placing_robot_starts_with_its_object(kitchens):
    simulator = Rearrangement(8, "cpu", "place", BLIND, bank=kitchens)
    first = simulator.reset(2)
    assert (first["grip"] == 1).all() and (simulator.stream.state.held != NOTHING).all()


def test_gymnasium_accepts_it(kitchens):
    env = RearrangementEnv("pick", bank=kitchens, render_mode="rgb_array", resolution=8)
    check_env(env, skip_render_check=True)
    env.reset(seed=1)
    picture = env.render()
    assert picture is not None and picture.shape == (320, 976, 3) and picture.std() > 10


def test_one_environment_is_a_stream_of_the_batch(kitchens):
    env = RearrangementEnv("pick", bank=kitchens, stream=1, resolution=8)
    simulator = Rearrangement(2, "cpu", "pick", SMALL, bank=kitchens)
    first, _ = env.reset(seed=4)
    together = simulator.reset(4)
    np.testing.assert_array_equal(first["target"], together["target"][1].numpy())


@pytest.mark.parametrize(
    ("env_id", "problem"),
    [
        ("rearrange:fetch", "task 'fetch' of 'rearrange:fetch' does not exist; allowed: navigate, pick"),
        ("rearrange:pick?tier=large", "tier is 'large'; allowed: small, full"),
        ("rearrange:pick?speed=3", "option 'speed' of 'rearrange:pick.speed=3' does not exist"),
        ("rearrange:set_table?scenario=tidy_house", "allowed: set_table, or leave it out"),
    ],
)
def test_wrong_ids_are_refused(env_id, problem):
    with pytest.raises(UsageError, match=problem):
        resolve(env_id)
