"""Plans, and chains of skills that carry them out."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import UsageError
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.planning import chain
from paceline.sims.rearrangement.planning.chain import Chain, SkillPolicy
from paceline.sims.rearrangement.planning.plans import IN_ITS_DRAWER, Stage, interactions, plan_of
from paceline.sims.rearrangement.simulator import Rearrangement
from paceline.sims.rearrangement.tasks.navigate import NavigateSkill
from paceline.sims.rearrangement.tasks.pick import PickSkill
from paceline.sims.rearrangement.tasks.place import PlaceSkill


def test_the_plan_of_tidy_house_moves_five_objects():
    plan = plan_of("tidy_house", 5)
    back = Stage("return", 0)
    first = [Stage("navigate", 0), Stage("pick", 0), back, Stage("navigate", 5), Stage("place", 0), back]
    assert plan[:6] == first
    assert len(plan) == 29 and plan[-1] == Stage("place", 4)
    skills = [stage.skill for stage in plan_of("tidy_house", 5, navigation=False)]
    assert skills == (["pick", "return", "place", "return"] * 5)[:-1]


def test_the_plan_of_set_table_opens_what_the_objects_are_in():
    skills = [stage.skill for stage in plan_of("set_table", 5)]
    one = ["navigate", "pick", "return", "navigate", "place"]
    drawer, fridge = (["navigate", f"open_{joint}", "return"] for joint in ("drawer", "fridge"))
    assert skills == [*drawer, *one, "return", *fridge, *one]
    assert plan_of("set_table", 5)[1].target == IN_ITS_DRAWER


def test_interactions_are_named_by_their_objects():
    assert interactions(plan_of("tidy_house", 5)) == {
        f"{skill}_{number + 1}": 6 * number + place
        for number in range(5)
        for skill, place in (("pick", 1), ("place", 4))
    }
    names = ["open_drawer_1", "pick_1", "place_1", "open_fridge_2", "pick_2", "place_2"]
    assert list(interactions(plan_of("set_table", 5, navigation=False))) == names


def test_skills_that_find_their_own_way_have_the_steps_of_navigation_too():
    usual, slow = RearrangementConfig(), RearrangementConfig(arm_step=0.02)
    assert chain.stage_steps(plan_of("tidy_house", 5), usual)[:6] == [300, 300, 50, 300, 300, 50]
    assert chain.stage_steps(plan_of("tidy_house", 5, navigation=False), usual)[:4] == [600, 50, 600, 50]
    assert chain.stage_steps(plan_of("tidy_house", 5), slow)[:3] == [300, 300, 125], (
        "small steps of the arm take longer"
    )


class Recorded:
    """A policy that does nothing, and remembers what it saw."""

    def __init__(self, size: int) -> None:
        self.size, self.seen, self.began = size, [], []

    def __call__(self, turn):
        self.seen.append({name: values.clone() for name, values in turn.obs.items()})
        self.began.append(turn.began.clone())
        return torch.zeros(len(turn.began), self.size)


@pytest.fixture
def tidying(kitchens):
    simulator = Rearrangement(2, "cpu", "tidy_house", RearrangementConfig(sensors="blind"), bank=kitchens)
    return simulator, simulator.reset(1)


def policies_of(**sizes):
    return {name: SkillPolicy(RearrangementConfig(), Recorded(size)) for name, size in sizes.items()}


def test_a_skill_that_does_not_succeed_ends_its_robot(tidying, monkeypatch):
    simulator, obs = tidying
    monkeypatch.setattr(chain, "NAVIGATION_STEPS", 2)
    monkeypatch.setattr(chain, "OTHER_STEPS", 1)
    policies = policies_of(pick=10, place=10)
    reached = Chain(simulator, plan_of("tidy_house", 5, navigation=False), policies).play(obs)
    assert reached.tolist() == [0, 0]
    assert len(policies["pick"].decide.seen) == 3, "until the steps of the stage are over"


def test_every_stage_has_its_own_target_and_a_fresh_start(tidying, kitchens, monkeypatch):
    """Skills that succeed at once, whatever they do."""
    simulator, obs = tidying
    for skill in (PickSkill, PlaceSkill):
        monkeypatch.setattr(skill, "judge", succeeding(skill.judge))
    monkeypatch.setattr(chain, "NAVIGATION_STEPS", 2)
    policies = policies_of(navigate=3, pick=10, place=10)
    shown = []
    at = simulator.stream.scenes, simulator.stream.episodes
    reached = Chain(simulator, plan_of("tidy_house", 5), policies).play(obs, shown.append)
    assert reached.tolist() == [29, 29] and shown[-1] == 2
    picks = [
        obs
        for obs, began in zip(policies["pick"].decide.seen, policies["pick"].decide.began, strict=True)
        if began.any()
    ]
    assert len(picks) == 5
    for number, seen in enumerate(picks):
        x, y, z = (seen["target"][0, 3:]).tolist()
        assert z == pytest.approx(float(kitchens.objects[at][0, number, 2]), abs=1e-5)
        assert torch.equal(seen["gps"], torch.tensor([[0.0, 0.0, 1.0, 0.0]] * 2)) and (x, y) != (0.0, 0.0)
        assert (seen["previous_action"] == 0).all()


def test_a_stage_that_begins_with_an_object_in_the_hand_was_told_to_hold_it(kitchens, monkeypatch):
    """As in the training of place."""
    monkeypatch.setattr(chain, "NAVIGATION_STEPS", 1)
    monkeypatch.setattr(chain, "OTHER_STEPS", 1)
    simulator = Rearrangement(2, "cpu", "tidy_house", RearrangementConfig(sensors="blind"), bank=kitchens)
    obs = simulator.reset(1)
    simulator._stream.state.held[0] = 0
    policies = policies_of(place=10)
    Chain(simulator, [Stage("place", 0)], policies).play(obs)
    assert policies["place"].decide.seen[0]["previous_action"][:, 7].tolist() == [1.0, 0.0]


def test_before_the_next_skill_the_arm_is_where_every_skill_was_trained(kitchens, monkeypatch):
    """Robots whose arms are turned differently: both return with what they hold, without moving the base."""
    monkeypatch.setattr(chain, "NAVIGATION_STEPS", 0)
    monkeypatch.setattr(chain, "OTHER_STEPS", 1)
    simulator = Rearrangement(2, "cpu", "tidy_house", RearrangementConfig(sensors="blind"), bank=kitchens)
    obs = simulator.reset(1)
    stream = simulator._stream
    stream.state.held[0] = 0
    rest = stream.state.angles.clone()
    turned = torch.tensor([[0.6, 0.3, -0.5, 0.2, 0.4, -0.3, 1.0], [0.0] * 6 + [0.3]])
    stream.state.angles.add_(turned)
    pose = stream.state.pose.clone()
    policies = policies_of(place=10)
    Chain(simulator, [Stage("return", 0), Stage("place", 0)], policies).play(obs)
    place = policies["place"].decide
    first = {int(row): seen for seen, began in zip(place.seen, place.began, strict=True) for row in began.nonzero()}
    for robot, seen in first.items():
        assert torch.allclose(seen["joints"][robot], rest[robot], atol=0.01)
        assert seen["previous_action"][robot, 7] == (robot == 0), "it is told to hold what it holds"
    assert sorted(first) == [0, 1]
    assert int(place.began[0].sum()) == 1, "the robot with less to turn is done first"
    assert torch.equal(simulator.stream.state.pose, pose)


@pytest.mark.parametrize("options", [{"behind": True}, {"arm_step": 0.02}, {"arm_step": 0.02, "behind": True}])
def test_the_arm_returns_with_delayed_actions_and_small_steps(kitchens, monkeypatch, options):
    """It neither swings about its resting angles nor runs out of steps."""
    monkeypatch.setattr(chain, "NAVIGATION_STEPS", 0)
    monkeypatch.setattr(chain, "OTHER_STEPS", 1)
    config = RearrangementConfig(sensors="blind", **options)
    simulator = Rearrangement(1, "cpu", "tidy_house", config, bank=kitchens)
    obs = simulator.reset(1)
    state = simulator._stream.state
    rest = state.angles.clone()
    state.angles.add_(torch.tensor([[0.6, 0.3, -0.5, 0.2, 0.4, -0.3, 2.4]]))
    place = SkillPolicy(RearrangementConfig(**options), Recorded(10))
    reached = Chain(simulator, [Stage("return", 0), Stage("place", 0)], {"place": place}).play(obs)
    assert reached.tolist() == [1]
    assert torch.allclose(place.decide.seen[0]["joints"], rest, atol=0.011)


def test_with_delayed_actions_a_stage_begins_like_an_episode(kitchens, monkeypatch):
    """The last action of the stage before is not carried out any more, and a stop counts when it is carried out."""
    monkeypatch.setattr(chain, "NAVIGATION_STEPS", 2)
    monkeypatch.setattr(chain, "OTHER_STEPS", 2)
    config = RearrangementConfig(sensors="blind", behind=True)
    simulator = Rearrangement(1, "cpu", "tidy_house", config, bank=kitchens)
    obs, poses, stops = simulator.reset(1), [], []

    def drive(turn):
        poses.append(turn.stream.state.pose.clone())
        return torch.tensor([[0.0, 0.5, 1.0]])

    def look(turn):
        poses.append(turn.stream.state.pose.clone())
        stops.append(turn.stream.previous.clone())
        return torch.zeros(1, 10)

    def judge(self, columns, facts):
        judged = plain(self, columns, facts)
        stops.append(facts.stopped.clone())
        return judged

    plain = NavigateSkill.judge
    monkeypatch.setattr(NavigateSkill, "judge", judge)
    policies = {"navigate": SkillPolicy(config, drive), "pick": SkillPolicy(config, look)}
    Chain(simulator, [Stage("navigate", 0), Stage("pick", 0)], policies).play(obs)
    assert [bool(stop) for stop in stops[:2]] == [False, True], "the first decision is carried out in the second step"
    before, first, second, third = (pose[0, 2] for pose in poses[:4])
    assert before == first != second, "the first step carries out nothing"
    assert second == third, "neither does the first step of the next stage"


def test_the_next_skill_begins_although_the_arm_cannot_return(kitchens, monkeypatch):
    monkeypatch.setattr(chain, "NAVIGATION_STEPS", 0)
    monkeypatch.setattr(chain, "OTHER_STEPS", 1)
    monkeypatch.setattr(chain, "homewards", lambda state, arm_step: torch.zeros(len(state.pose), 8))
    simulator = Rearrangement(1, "cpu", "tidy_house", RearrangementConfig(sensors="blind"), bank=kitchens)
    obs = simulator.reset(1)
    simulator._stream.state.angles[:, 6] += 1.0
    policies = policies_of(place=10)
    reached = Chain(simulator, [Stage("return", 0), Stage("place", 0)], policies).play(obs)
    assert reached.tolist() == [1] and len(policies["place"].decide.seen) == 1


def test_a_part_of_a_list_of_episodes_is_the_same_as_in_the_whole(kitchens):
    simulator = Rearrangement(2, "cpu", "tidy_house", RearrangementConfig(sensors="blind"), bank=kitchens)
    scenes, numbers = [0, 1, 2, 3], [5, 6, 7, 8]
    simulator.load_episodes(scenes, numbers)
    simulator.begin_next()
    whole = simulator.stream.state.pose
    simulator.load_episodes(scenes[2:], numbers[2:], first=2)
    assert torch.equal(simulator.stream.state.pose, whole)


def test_a_skill_with_other_steps_than_the_scenario_is_refused(tidying):
    simulator, _ = tidying
    policies = {"pick": SkillPolicy(RearrangementConfig(arm_step=0.02), Recorded(10))}
    with pytest.raises(UsageError, match="pick was trained with arm_step 0.02; the scenario has 0.05"):
        Chain(simulator, [Stage("pick", 0)], policies)


def succeeding(judge):
    def judged(self, columns, facts):
        result = judge(self, columns, facts)
        yes = torch.ones_like(result.terminated)
        return result._replace(terminated=yes, measures={**result.measures, "success": yes.float()})

    return judged
