"""The rules of population-based training, against a slow version of them and by their statistics."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.learner.config import D4PGConfig, OptimizerConfig, PPOConfig
from paceline.learner.hyperparameters import OF_D4PG, Hyperparameters, ppo_hyperparameters
from paceline.population.config import LeagueConfig, PBTConfig, PopulationConfig
from paceline.population.mutation import D4PG_TUNED, PPO_TUNED, moved, spread_out, tuned_paths
from paceline.population.pbt import Member, plan_member, plan_round, round_generator

RATE, ENTROPY, BETA = PPO_TUNED


def population(objectives, rate: float = 1e-3) -> list[Member]:
    """Each member has a learning rate of its own, by which it is recognised."""
    return [
        Member(
            name=f"m{k}", objective=objective, hyperparameters={RATE: rate * 10**k, ENTROPY: 0.01, BETA: 0.9}, step=k
        )
        for k, objective in enumerate(objectives)
    ]


def oracle(members: list[Member], settings: PBTConfig) -> tuple[set[str], set[str], dict[str, set[str]]]:
    """Who mutates, who is best, and by which of them the worst may be replaced. Objectives must differ."""
    known = [member for member in members if member.objective is not None]

    def better(member: Member) -> int:
        return sum(other.objective > member.objective for other in known)

    def nearest(share: float) -> int:
        return min(range(len(known) + 1), key=lambda count: (abs(count - share * len(known)), -count))

    mutated = {
        member.name for member in known if better(member) >= max(1, len(known) - nearest(settings.mutated_share))
    }
    pairs = min(max(1, nearest(settings.replaced_share)), len(known) // 2) if settings.replaced_share else 0
    best = [member for member in known if better(member) < pairs]
    worst = [member for member in known if better(member) >= len(known) - pairs]
    donors = {
        member.name: {donor.name for donor in best if donor.objective - member.objective >= settings.min_gap}
        for member in worst
    }
    return mutated, {member.name for member in best}, donors


@pytest.mark.parametrize("seed", range(200))
def test_who_changes(seed):
    """Random populations, with negative objectives, unknown ones, and all shares."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 13))
    objectives = [float(value) for value in generator.normal(-50, 30, count)]
    members = population([None if generator.random() < 0.2 else value for value in objectives])
    settings = PBTConfig(
        every=1,
        mutated_share=float(generator.choice([0, 0.3, 0.7, 1.0])),
        replaced_share=float(generator.choice([0, 0.1, 0.3, 0.5, 1.0])),
        min_gap=float(generator.choice([0.0, 20.0])),
        mutation_rate=1.0,
    )
    mutated, best, donors = oracle(members, settings)
    by_name = {member.name: member for member in members}
    for member, change in zip(members, plan_round(members, settings, generator), strict=True):
        assert change.member == member.name and change.before == member.hyperparameters
        assert change.objective == member.objective
        source = member
        if change.donor is not None:
            assert change.donor in donors[member.name] and change.donor != member.name
            source = by_name[change.donor]
            assert (change.donor_objective, change.donor_step) == (source.objective, source.step)
        else:
            assert not best or donors.get(member.name) != best, "whichever was drawn is far enough ahead"
        if member.name not in mutated:
            assert change.after == source.hyperparameters
            continue
        ratio = change.after[RATE] / source.hyperparameters[RATE]
        assert math.isclose(ratio, 1.2) or math.isclose(ratio, 1 / 1.2)
        assert change.after[BETA] == pytest.approx(0.88) or change.after[BETA] == pytest.approx(1 - 0.1 / 1.2)


def test_without_a_gap_every_one_of_the_worst_is_replaced_by_any_of_the_best():
    members = population([1.0, -5.0, 3.0, 2.0, -4.0, 0.0, -1.0, 5.0])
    taken = Counter()
    for seed in range(400):
        changes = plan_round(members, PBTConfig(every=1), np.random.default_rng(seed))
        replaced = {change.member: change.donor for change in changes if change.donor is not None}
        assert replaced.keys() == {"m1", "m4"}
        taken.update(replaced.values())
    assert taken.keys() == {"m7", "m2"} and 320 < taken["m7"] < 480


def test_how_often_and_which_way_hyperparameters_mutate():
    members, counts, rounds = population([1.0, 2.0, 3.0, 4.0]), Counter(), 4000
    generator = np.random.default_rng(0)
    settings = PBTConfig(every=1, replaced_share=0)
    for _ in range(rounds):
        for change in plan_round(members, settings, generator):
            for path in PPO_TUNED:
                direction = np.sign(change.after[path] - change.before[path])
                counts[change.member, path, int(direction)] += 1
    for path in PPO_TUNED:
        assert counts["m3", path, 0] == rounds, "the best does not mutate"
        for member in ("m0", "m1", "m2"):
            for direction in (-1, 1):
                expected, spread = rounds * 0.075, math.sqrt(rounds * 0.075)
                assert abs(counts[member, path, direction] - expected) < 5 * spread
    both = sum(
        change.after[RATE] != change.before[RATE] and change.after[BETA] != change.before[BETA]
        for _ in range(rounds)
        for change in plan_round(members, settings, generator)[:1]
    )
    assert abs(both - rounds * 0.15**2) < 5 * math.sqrt(rounds * 0.15**2), "independent of each other"


def test_equal_members_take_turns_and_none_is_replaced():
    members, kept = population([0.5, 0.5, 0.5]), Counter()
    settings = PBTConfig(every=1, mutation_rate=1.0)
    for seed in range(300):
        changes = plan_round(members, settings, np.random.default_rng(seed))
        assert not any(change.donor for change in changes)
        kept.update(change.member for change in changes if not change.is_any)
    assert all(60 < kept[member.name] < 140 for member in members)


@pytest.mark.parametrize("objectives", [[1.0], [None, None], [], [3.0, None]])
def test_nobody_to_compare_with(objectives):
    members = population(objectives)
    changes = plan_round(members, PBTConfig(every=1, mutation_rate=1.0), np.random.default_rng(0))
    assert not any(change.is_any for change in changes)


def test_members_share_no_dictionary():
    members = population([1.0, 2.0])
    before = copy.deepcopy(members)
    worse, better = plan_round(members, PBTConfig(every=1, mutation_rate=0), np.random.default_rng(0))
    assert worse.donor == "m1" and worse.after == better.after == members[1].hyperparameters
    for change in (worse, better):
        change.after[RATE] = change.before[RATE] = -1.0
    assert members == before
    assert worse.after is not better.after


def test_a_member_decides_about_itself_by_the_same_rules():
    members = population([1.0, 2.0, 3.0])
    settings = PBTConfig(every=1, mutation_rate=0)
    assert plan_member("m0", members, settings, round_generator(1, 1)).donor == "m2"
    assert plan_member("m2", members, settings, round_generator(1, 1)).donor is None


def test_rounds_have_random_numbers_of_their_own():
    draws = {(seed, number): round_generator(seed, number).random() for seed in range(3) for number in range(3)}
    assert len(set(draws.values())) == 9
    assert draws[1, 2] == round_generator(1, 2).random()


def test_an_objective_that_is_not_finite_is_refused():
    with pytest.raises(UsageError, match="nan"):
        population([1.0, math.nan])


@pytest.mark.parametrize("names", ["ppo", "d4pg"])
def test_values_stay_valid_and_keep_moving(names):
    """Long walks in each direction, from the defaults and from zero, checked by the configuration itself."""
    ppo = PPOConfig(entropy_coef=0.0, trace_decay=1.0)
    allowed = ppo_hyperparameters(ppo, OptimizerConfig(beta1=0.0)) if names == "ppo" else None
    allowed = allowed or Hyperparameters(OF_D4PG, d4pg=D4PGConfig(noise=0.0, max_grad_norm=1.0))
    for factor in (1.2, 1 / 1.2):
        for path, value in allowed.as_dict().items():
            for _ in range(100):
                value = moved(path, value, factor)
                allowed.set(path, value)
            seen = value
            for _ in range(200):
                value = moved(path, value, 1 / factor)
                allowed.set(path, value)
            assert value != seen, path


def test_kinds_of_hyperparameters():
    assert moved("ppo.discount", 0.99, 1.2) == pytest.approx(0.988)
    assert moved("optimizer.learning_rate", 1e-3, 1 / 1.2) == pytest.approx(1e-3 / 1.2)
    assert moved("reward.frag", -0.5, 1.2) == pytest.approx(-0.6)
    assert moved("reward.frag", 0.0, 1.2) == 0.0
    assert moved("ppo.entropy_coef", 0.0, 1 / 1.2) == 1e-3
    assert [moved("any.count", value, 1.2) for value in (1, 2, 10)] == [2, 3, 12]
    assert [moved("any.count", value, 1 / 1.2) for value in (1, 2, 10)] == [1, 1, 8]
    with pytest.raises(ValueError, match="inf"):
        moved("ppo.clip", math.inf, 1.2)


def test_which_hyperparameters_are_tuned():
    ppo = ppo_hyperparameters(PPOConfig(), OptimizerConfig()).as_dict()
    assert set(tuned_paths(PBTConfig(), ppo)) == set(PPO_TUNED)
    assert set(tuned_paths(PBTConfig(), [*ppo, "reward.frag"])) == {*PPO_TUNED, "reward.frag"}
    assert set(tuned_paths(PBTConfig(), OF_D4PG)) == set(D4PG_TUNED)
    learned = ppo_hyperparameters(PPOConfig(entropy_target=0.0), OptimizerConfig()).as_dict()
    assert set(tuned_paths(PBTConfig(), learned)) == {RATE, BETA}
    assert tuned_paths(PBTConfig(tuned=("ppo.clip", "ppo.clip")), ppo) == ("ppo.clip",)
    with pytest.raises(UsageError, match=r"did you mean.*ppo.clip.*allowed: .*ppo.discount"):
        tuned_paths(PBTConfig(tuned=("ppo.clipp",)), ppo)


@pytest.mark.parametrize(
    ("step", "start", "expected"), [(0, 0, 100), (99, 0, 100), (100, 0, 200), (0, 250, 300), (300, 250, 400)]
)
def test_when_rounds_take_place(step, start, expected):
    assert PBTConfig(every=100, start=start).next_round(step) == expected
    assert PBTConfig().next_round(step) is None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (PopulationConfig, {"policies": 0}),
        (PopulationConfig, {"mapping": "randomly"}),
        (PopulationConfig, {"mapping": "my:"}),
        (PBTConfig, {"every": 0}),
        (PBTConfig, {"factor": 1.0}),
        (PBTConfig, {"factor": math.nan}),
        (PBTConfig, {"min_gap": math.nan}),
        (PBTConfig, {"min_gap": -1.0}),
        (PBTConfig, {"mutation_rate": 1.5}),
        (PBTConfig, {"objective": ""}),
        (LeagueConfig, {"past_share": 0.6, "opponent_share": 0.6, "opponents": ("runs/a",)}),
        (LeagueConfig, {"opponent_share": 0.5}),
        (LeagueConfig, {"keep": 1}),
    ],
)
def test_settings_that_are_refused(kind, changes):
    with pytest.raises(UsageError, match=next(iter(changes))):
        kind(**changes)
    assert dataclasses.is_dataclass(PopulationConfig(mapping="my.games:roles"))


def test_members_begin_spread_over_the_range():
    """Log-uniformly: one member in each part of the range, and the parts of two hyper-parameters are independent."""
    settings, pairs = PBTConfig(spread=100.0), Counter()
    for seed in range(400):
        members = spread_out({RATE: 1e-3, ENTROPY: 0.0}, 4, settings, np.random.default_rng(seed))
        logs = np.array([[math.log10(m[RATE] / 1e-3), math.log10(m[ENTROPY] / 1e-3)] for m in members])
        assert (np.floor(np.sort(logs, 0) + 2) == np.arange(4)[:, None]).all(), "a zero begins at its fixed value"
        pairs.update(map(tuple, np.floor(logs + 2).astype(int).tolist()))
    assert len(pairs) == 16 and min(pairs.values()) > 60 and max(pairs.values()) < 140
    inside = np.array(
        [spread_out({RATE: 1.0}, 1, settings, np.random.default_rng(seed))[0][RATE] for seed in range(999)]
    )
    logs = np.log10(inside)
    assert logs.min() > -2 and logs.max() < 2
    assert abs(logs.mean()) < 0.15 and logs.std() == pytest.approx(2 / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("spread", [0.5, math.inf, math.nan])
def test_a_bad_spread_is_refused(spread):
    with pytest.raises(UsageError, match=r"pbt.spread must be at least 1 and finite"):
        PBTConfig(spread=spread)
