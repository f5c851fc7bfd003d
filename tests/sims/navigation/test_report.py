"""The sections that navigation adds to a report."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.evaluation.report import write_report
from paceline.sims.navigation.evaluation.report import chosen
from tests.evaluation.test_report import check
from tests.sims.navigation.test_evaluation import make_navigation_run


@pytest.fixture(scope="module")
def pointnav(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        folder = make_navigation_run(tmp_path_factory.mktemp("runs") / "pointnav")
        write_report(folder, evaluate_episodes=10)
        yield folder


def test_a_report_of_a_navigation_run(pointnav):
    text = (pointnav / "report.html").read_text()
    page = check(text, pointnav)
    assert page.ids[:3] == ["evaluation", "trajectories", "views"]
    for words in ("this policy", "random walk", "always forward", "goal follower", "SoftSPL", "shortest path"):
        assert words in text
    assert text.count('alt="Map of episode') == 6
    assert "data:image/gif" in text and 'alt="Depth at step 0"' in text and 'alt="Colours at step 0"' in text
    assert "By distance to go" in page.headings and "SPL of the imperfect episodes" in page.headings
    assert len(text) < 5_000_000


def test_maps_are_of_all_distances_and_of_one_failure():
    geodesic = np.random.default_rng(0).permutation(np.arange(40.0))
    success = np.ones(40)
    shown = chosen({"geodesic": geodesic, "success": success}, "geodesic", 6)
    assert geodesic[shown].tolist() == [3.0, 10.0, 16.0, 23.0, 30.0, 36.0]
    success[np.flatnonzero(geodesic == 22.0)] = 0.0
    assert 22.0 in geodesic[chosen({"geodesic": geodesic, "success": success}, "geodesic", 6)]
    assert len(chosen({"geodesic": geodesic[:2], "success": success[:2]}, "geodesic", 6)) == 2
