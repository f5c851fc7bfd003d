"""Classes of failed episodes, on routes made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.sims.navigation.evaluation.failures import WINDOW, Failure, failure_of, new_share
from paceline.sims.navigation.evaluation.routes import Route
from paceline.sims.navigation.layout import FORWARD, STOP

SUCCESS_DISTANCE = 0.2
TURN = np.radians(10.0)


def route(distances, *, stops=False, poses=None):
    """A route with these distances after every action. By default it goes straight on, so that all poses are new."""
    distances = np.asarray(distances, float)
    actions = np.full(len(distances), FORWARD)
    actions[-1] = STOP if stops else FORWARD
    ahead = np.column_stack([0.25 * np.arange(len(distances)), np.zeros((len(distances), 2))])
    return Route(ahead if poses is None else poses, actions, distances)


def approach(start, end, count):
    return np.linspace(start, end, count)


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (route(approach(5, 0.15, 30), stops=True), Failure.NOT_RECOGNISED),
        (route([3, 1, 0.2, 1, 2], stops=True), Failure.PASSED_BY),
        (route([*approach(3, 0.1, 50), *approach(0.1, 6, 450)]), Failure.DID_NOT_STOP),
        (route([*approach(3, 0.1, 50), *np.full(450, 0.1)]), Failure.DID_NOT_STOP),
        (route(approach(5, 0.21, 30), stops=True), Failure.STOPPED_EARLY),
        (route([5.0], stops=True), Failure.STOPPED_EARLY),
        (route(approach(20, 3, 500)), Failure.OUT_OF_STEPS),
        (route([*approach(9, 4, 200), *approach(4, 6, 150), *approach(6, 3.9, 150)]), Failure.OUT_OF_STEPS),
        (route([*approach(9, 2, 200), *approach(2, 6, 300)]), Failure.NEVER_FOUND),
        (route(approach(5, 9, 500)), Failure.NEVER_FOUND),
        (route(approach(5, 6, 40)), Failure.NEVER_FOUND),
        (route(approach(5, 4, 40)), Failure.OUT_OF_STEPS),
    ],
)
def test_classes_by_distance(failed, expected):
    assert failure_of(failed, SUCCESS_DISTANCE) is expected


def turning(headings):
    return np.column_stack([np.full((len(headings), 2), 3.3), headings])


LEFT_RIGHT = turning(np.tile([0.0, TURN], 250))
CIRCLES = turning(TURN * np.arange(500))
PUSHING = turning(np.zeros(500))
LAPS = np.concatenate([np.column_stack([0.25 * (np.arange(20) % 20), np.zeros(20), np.zeros(20)])] * 25)


REPEATED = {"left-right": LEFT_RIGHT, "circles": CIRCLES, "pushing": PUSHING, "laps": LAPS}


@pytest.mark.parametrize("poses", REPEATED.values(), ids=REPEATED)
def test_oscillation_is_repetition_at_the_end(poses):
    assert failure_of(route(np.full(500, 4.0), poses=poses), SUCCESS_DISTANCE) is Failure.OSCILLATED
    recovered = poses.copy()
    recovered[-WINDOW:, 0] += 0.25 * np.arange(1, WINDOW + 1)  # it walks away
    assert failure_of(route(np.full(500, 4.0), poses=recovered), SUCCESS_DISTANCE) is Failure.NEVER_FOUND
    assert failure_of(route(np.full(500, 4.0), poses=poses, stops=True), SUCCESS_DISTANCE) is Failure.STOPPED_EARLY


def test_oscillation_begins_where_half_of_the_window_is_repeated():
    for repeated, expected in ((50, Failure.NEVER_FOUND), (51, Failure.OSCILLATED)):
        poses = route(np.full(500, 4.0)).poses
        poses[-repeated:] = poses[-repeated - 1]
        assert failure_of(route(np.full(500, 4.0), poses=poses), SUCCESS_DISTANCE) is expected


def test_poses_are_new_by_place_and_heading():
    rng = np.random.default_rng(0)
    poses = np.column_stack([rng.integers(0, 4, (300, 2)) * 0.1, rng.integers(0, 5, 300) * TURN])
    seen = {tuple(np.round(pose, 6)) for pose in poses.tolist()}
    assert new_share(poses) == pytest.approx(len(seen) / 300)
    assert new_share(np.array([[1.0, 2.0, 0.0], [1.0, 2.0, 2 * np.pi], [1.0, 2.0, -4 * np.pi]])) == pytest.approx(1 / 3)


def test_every_random_route_has_one_class_that_its_definition_allows():
    """The conditions of the documentation, in other words."""
    rng = np.random.default_rng(1)
    found = set()
    for _ in range(400):
        count = int(rng.integers(2, 260))
        distances = np.abs(2.0 + np.cumsum(rng.normal(0.0, 0.15, count)))
        poses = np.cumsum(rng.choice([0.0, 0.3], (count, 3), p=[1 - (p := rng.random()), p]), 0)
        failed = route(distances, stops=bool(rng.random() < 0.4), poses=poses)
        stopped, near = failed.actions[-1] == STOP, distances <= SUCCESS_DISTANCE
        kind = failure_of(failed, SUCCESS_DISTANCE)
        found.add(kind)
        assert (kind is Failure.NOT_RECOGNISED) == bool(stopped and near[-1])
        assert (kind is Failure.PASSED_BY) == bool(stopped and near.any() and not near[-1])
        assert (kind is Failure.DID_NOT_STOP) == bool(near.any() and not stopped)
        assert (kind is Failure.STOPPED_EARLY) == bool(stopped and not near.any())
        closest_at = count - int(distances.argmin())  # decisions from there to the end
        if kind is Failure.OUT_OF_STEPS:
            assert closest_at <= min(WINDOW, max(1, count // 2))
        elif kind is Failure.NEVER_FOUND:
            assert closest_at > min(WINDOW, max(1, count // 2))
    assert found == set(Failure)
