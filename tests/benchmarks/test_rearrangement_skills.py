"""The benchmark that learns the skills of rearrangement."""

import json

import pytest

pytest.importorskip("scipy", reason="for the intervals of kept runs")

from benchmarks import kept_runs
from benchmarks.rearrangement_skills import Plan, measure, works
from benchmarks.report import context


@pytest.fixture
def calls(monkeypatch):
    """The commands of Paceline, which only write what a run writes."""
    found = []

    def call(arguments, run, seconds, runs):
        found.append(arguments)
        if arguments[0] == "eval":
            known = {"success": 0.75, "success_ci95": [0.5, 1.0], "collisions": 12.4}
            return json.dumps({"run": "r", "episodes": 4, **known})
        (run / "checkpoints" / "latest").mkdir(parents=True)
        reports = [{"step": 1000 * at, "seconds": at, "updates": at, "episode_success": at / 40} for at in range(1, 41)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(report) + "\n" for report in reports))
        return ""

    monkeypatch.setattr(kept_runs, "_call", call)
    return found


def test_every_skill_is_trained_and_played_in_unseen_houses(tmp_path, calls):
    plan = Plan(skills=("pick", "open_fridge"), seconds=2.0, episodes=4, folder=tmp_path, options="--seed 3")
    result = measure(plan, context())
    assert [row[0] for row in result.table("skills").rows] == ["pick", "open_fridge"]
    assert result.table("skills").rows[0][1:] == ("0.0", "0.99", "0.75 (0.50 to 1.00)", "12")
    trained, played = ([one for one in calls if one[0] == command] for command in ("train", "eval"))
    assert [one[one.index("--seed") + 1] for one in trained] == ["3", "3"]
    assert {one[1].removesuffix("-gpu") for one in trained} == {"rearrange-pick", "rearrange-open-fridge"}
    assert all(one[one.index("--split") + 1] == "val" for one in played)
    assert (tmp_path / "pick").is_dir() and (tmp_path / "open_fridge").is_dir()


def test_plans_name_known_recipes():
    from paceline import recipes

    for work in works(Plan()).values():
        recipes.find(work.arguments[0])
