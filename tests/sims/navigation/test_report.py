"""The sections that navigation adds to a report."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation import charts
from paceline.evaluation.report import write_report
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.evaluation import report, report_failures, report_views
from paceline.sims.navigation.evaluation.episode_list import fixed_episodes
from paceline.sims.navigation.evaluation.failures import Failure
from paceline.sims.navigation.evaluation.lost_spl import lost_spl
from paceline.sims.navigation.evaluation.measures import summarize
from paceline.sims.navigation.evaluation.pointnav import EVALUATION
from paceline.sims.navigation.evaluation.policy_episodes import PlayedEpisodes
from paceline.sims.navigation.evaluation.report_limits import BELOW_ZERO, limits
from paceline.sims.navigation.evaluation.report_maps import chosen
from paceline.sims.navigation.evaluation.report_sizes import path_ratios
from paceline.sims.navigation.evaluation.routes import Route
from paceline.sims.navigation.layout import FORWARD
from paceline.sims.navigation.simulator import Navigation
from tests.evaluation.test_report import check
from tests.sims.navigation.test_evaluation import make_navigation_run


@pytest.fixture(scope="module")
def pointnav(tmp_path_factory):
    folder = make_navigation_run(tmp_path_factory.mktemp("runs") / "pointnav")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_views, "NUM_ANIMATED", 10)
        # Its training is drawn as that of any run: tests/evaluation/test_report.py draws it.
        patch.setattr(charts, "curves", lambda *_, **__: "data:image/svg+xml,")
        write_report(folder, evaluate_episodes=10)
    return folder


def test_a_report_of_a_navigation_run(pointnav):
    text = (pointnav / "report.html").read_text()
    page = check(text, pointnav)
    assert page.ids[:5] == ["evaluation", "limits", "trajectories", "failures", "views"]
    for words in ("this policy", "random walk", "always forward", "goal follower", "SoftSPL", "shortest path"):
        assert words in text
    assert text.count('alt="Map of episode') > 6, "chosen episodes and failures"
    assert "data:image/gif" in text and 'alt="Depth at step 0"' in text and 'alt="Colours at step 0"' in text
    for heading in ("By distance to go", "By how much the way winds", "SPL by both", "SPL of the imperfect episodes"):
        assert heading in page.headings
    assert "share of the failures" in text and {kind.label.capitalize() for kind in Failure} & set(page.headings)
    assert "lost by the oracle too" in text and "map-and-plan" in text and "first 10 episodes" in text
    assert len(text) < 5_000_000


def test_a_report_of_a_short_list_plays_all_of_it(pointnav, monkeypatch, tmp_path):
    """The nearest goal of each of the 64 scenes, where no number is given."""
    asked = []

    def show(evaluation, run, played, summary, baselines):
        asked.append((len(played.numbers), {len(each["success"]) for each in baselines.values()}))
        return ""

    short = PointNavConfig(split="val", max_distance=1.0, max_episode_steps=2, resolution=36)
    monkeypatch.setattr(report, "split_config", lambda config: short)
    monkeypatch.setattr(report, "_evaluation", show)
    for name in ("limits", "failures", "trajectories", "views"):
        monkeypatch.setattr(report, name, lambda *_: "")
    monkeypatch.setattr(charts, "curves", lambda *_, **__: "data:image/svg+xml,")
    write_report(pointnav, output=tmp_path / "report.html")
    write_report(pointnav, output=tmp_path / "report.html", evaluate_episodes=5)
    assert asked == [(64, {64}), (5, {5})]
    with pytest.raises(UsageError, match="200 episodes were asked for; allowed: 1 to 64"):
        write_report(pointnav, output=tmp_path / "report.html", evaluate_episodes=200)


def test_a_report_of_a_run_on_plans_names_the_plans(small_bank):
    """Not a split, and not unseen apartments."""
    played = standing(small_bank, 20, np.ones(20))
    measures = {**{name: np.ones(20) for name in EVALUATION.measures}, **played.measures}
    played = dataclasses.replace(played, config=PointNavConfig(plans="home"), measures=measures)
    run = SimpleNamespace(config=Config(env="pointnav?plans=home"), checkpoint="step_1")
    text = report._evaluation(EVALUATION, run, played, summarize(EVALUATION, measures), {"random": measures})
    assert "Navigation in your floor plans" in text and "20 episodes in 12 floor plans from home, played by" in text


def test_maps_are_of_all_distances_and_of_one_failure():
    geodesic = np.random.default_rng(0).permutation(np.arange(40.0))
    success = np.ones(40)
    shown = chosen({"geodesic": geodesic, "success": success}, "geodesic", 6)
    assert geodesic[shown].tolist() == [3.0, 10.0, 16.0, 23.0, 30.0, 36.0]
    success[np.flatnonzero(geodesic == 22.0)] = 0.0
    assert 22.0 in geodesic[chosen({"geodesic": geodesic, "success": success}, "geodesic", 6)]
    assert len(chosen({"geodesic": geodesic[:2], "success": success[:2]}, "geodesic", 6)) == 2


def standing(bank, count: int, success: np.ndarray) -> PlayedEpisodes:
    """Episodes in which the agent never moves, and still succeeds in some."""
    config = PointNavConfig(sensors="blind")
    scenes, numbers = fixed_episodes(bank, count)
    episodes = bank.episodes[scenes, numbers].numpy()
    far = episodes[:, 5]
    measures = {"success": success, "geodesic": far, "distance_to_goal": far, "spl": success, "steps": 0 * far}
    routes = [Route(np.tile(row[:3], (500, 1)), np.full(500, FORWARD), np.full(500, row[5])) for row in episodes]
    return PlayedEpisodes(
        config=config,
        bank=bank,
        scenes=scenes,
        numbers=numbers,
        measures={**measures, "path_length": 0 * far},
        marks=Navigation(1, "cpu", config, bank=bank).task.marks,
        routes=routes,
    )


def test_ratios_of_shortest_paths_to_straight_lines(small_bank):
    played = standing(small_bank, 30, np.ones(30))
    rows = small_bank.episodes[played.scenes, played.numbers].double().numpy()
    straight = np.hypot(rows[:, 3] - rows[:, 0], rows[:, 4] - rows[:, 1])
    np.testing.assert_allclose(path_ratios(played), np.maximum(rows[:, 5] / straight, 1.0), rtol=1e-5)


def test_failures_are_counted_and_the_worst_are_shown_first(small_bank):
    success = np.ones(20)
    played = standing(small_bank, 20, success)
    assert "None of 20 episodes failed." in report_failures.failures(EVALUATION, played)[0]
    failed = [3, 4, 9, 11, 17]
    success[failed] = 0.0
    (text,) = report_failures.failures(EVALUATION, played)
    assert "5 of 20 episodes failed" in text and "Oscillated" in text and "100%" in text
    far = played.measures["geodesic"]
    worst = sorted(failed, key=lambda number: -far[number])[:3]
    assert [int(number) for number in re.findall(r"Map of episode (\d+)", text)] == worst


def test_parts_below_0_are_drawn_to_the_left(monkeypatch):
    parts = {"oracle": np.array([0.1, 0.1]), "detours": np.array([-0.04, 0.2]), "failures": np.array([0.3, 0.1])}
    monkeypatch.setattr(charts, "as_svg", lambda axes: axes)
    axes = charts.stacked_bars(["a", "b"], parts, x_label="lost SPL")
    bars = np.array([[(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars] for bars in axes.containers])
    expected = [[(0.0, 0.1), (0.0, 0.1)], [(0.0, -0.04), (0.1, 0.3)], [(0.1, 0.4), (0.3, 0.4)]]
    np.testing.assert_allclose(bars, expected)
    np.testing.assert_allclose((bars[..., 1] - bars[..., 0]).sum(0), sum(parts.values()))
    assert axes.get_xlim()[0] < -0.04


def test_the_caption_explains_detours_below_0(small_bank):
    """The agent of these episodes has SPL 1, which no oracle reaches."""
    played = standing(small_bank, 3, np.ones(3))
    (section,) = limits(EVALUATION, played)
    assert BELOW_ZERO in section and EVALUATION.about_planners in section
    (section,) = limits(EVALUATION, standing(small_bank, 3, np.zeros(3)))
    assert BELOW_ZERO not in section


def test_lost_spl_adds_up():
    rng = np.random.default_rng(0)
    for _ in range(20):
        count = int(rng.integers(1, 50))
        success = (rng.random(count) < 0.6).astype(float)
        spl, oracle = success * rng.uniform(0.3, 1.0, count), rng.uniform(0.9, 1.0, count)
        lost = lost_spl(spl, success, oracle)
        assert sum(lost) == pytest.approx(1.0 - spl.mean())
        detours = [o - s for o, s, good in zip(oracle, spl, success, strict=True) if good]
        failures = [o for o, good in zip(oracle, success, strict=True) if not good]
        expected = (1.0 - oracle.mean(), sum(detours) / count, sum(failures) / count)
        assert tuple(lost) == pytest.approx(expected)
    assert lost_spl(oracle, np.ones(count), oracle)[1:] == (0.0, 0.0)
