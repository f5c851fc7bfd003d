"""The sections that rearrangement adds to a report, and videos of its agents."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from PIL import Image

from paceline.cli import main as cli
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation import charts
from paceline.evaluation.evaluators import EvaluationOptions, evaluate_baseline
from paceline.evaluation.report import write_report
from paceline.learner.config import PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import train
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.evaluation import report, report_sights
from paceline.sims.rearrangement.evaluation.evaluator import EVALUATOR
from paceline.sims.rearrangement.evaluation.failures import RobotFailure
from paceline.sims.rearrangement.evaluation.played import START_DISTANCE, SkillEvaluation, played_by_baseline
from paceline.sims.rearrangement.evaluation.report_sights import moments_to_show
from paceline.sims.rearrangement.scenes.bank import load_or_generate_houses
from tests.evaluation.test_report import check

STEPS = 6
ENV = f"rearrange:pick?resolution=36&scenes=4&max_episode_steps={STEPS}"


@pytest.fixture(scope="module", autouse=True)
def few_houses(request):
    """Reports play in two houses, not in those of the split."""
    kitchens = request.getfixturevalue("kitchens")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.sims.rearrangement.evaluation.played.load_bank", lambda config: kitchens)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "pick"
    config = Config(
        env=ENV,
        steps=64,
        rollout_steps=8,
        device="cpu",
        pool=PoolConfig(num_envs=4),
        policy=PolicyConfig(hidden=(8,), encoder_size=8),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )
    train(config, folder)
    return folder


def test_a_report_of_a_rearrangement_run(run, monkeypatch):
    # Its training is drawn as that of any run: tests/evaluation/test_report.py draws it.
    monkeypatch.setattr(charts, "curves", lambda *_, **__: "data:image/svg+xml,")
    monkeypatch.setattr(report_sights, "ANIMATED_SIDE", 96)
    write_report(run, evaluate_episodes=4)
    text = (run / "report.html").read_text()
    page = check(text, run)
    assert page.ids[:4] == ["evaluation", "trajectories", "failures", "views"]
    for words in (
        "this policy",
        "random",
        "The oracle knows everything about the house. Intervals",
        "4 episodes of pick",
        "By distance at the start",
        "path of the hand",
    ):
        assert words in text
    assert text.count('alt="Map of episode') >= 4 and 'alt="Depth at step 0"' in text
    assert 'alt="The robot at step 0"' in text and f"step {STEPS}: end" in text and "data:image/gif" in text
    assert "share of the failures" in text and {kind.label.capitalize() for kind in RobotFailure} & set(page.headings)
    assert len(text) < 5_000_000


def test_a_report_of_a_scenario():
    houses = load_or_generate_houses("small", num_scenes=1, scenario="set_table")
    config = RearrangementConfig(scenario="set_table", max_episode_steps=2, resolution=8)
    played = played_by_baseline("random", "set_table", config, 2, houses)
    part = report.robot_part(played, "random", "random motions")
    assert "2 episodes of set_table" in part.sections[0]
    assert "oracle" not in part.sections[0], "it does not play scenarios"
    assert part.tiles[0].name == "Success on train" and part.tiles[0].value == "0.0%"


@pytest.fixture(scope="module")
def played(kitchens):
    config = RearrangementConfig(resolution=8, max_episode_steps=2)
    return played_by_baseline("random", "pick", config, 8, kitchens)


def test_successful_and_failed_episodes_are_shown(played):
    played.measures["success"][:] = [0, 1, 1, 1, 1, 1, 1, 0]
    played.measures["steps"][:] = [9, 1, 2, 3, 4, 5, 6, 7]
    assert report.chosen_episodes(played, 3) == [2, 4, 6, 7, 0]
    played.measures["success"][:] = 1
    assert report.chosen_episodes(played, 3) == [2, 5, 7]


def test_the_distance_at_the_start_is_over_the_floor(played):
    for distance, episode in zip(played.measures[START_DISTANCE], played.episodes, strict=True):
        x, y, _ = episode.targets[0] - episode.bases[0]
        assert distance == pytest.approx(np.hypot(x, y)) and distance < 2.5


def test_strips_show_the_start_the_end_and_what_the_hand_did(played):
    episode = played.episodes[0]
    steps = [step._replace(taken=0) if number == 3 else step for number, step in enumerate(20 * episode.steps[:1])]
    steps[-1] = steps[-1]._replace(dropped=0)
    shown = moments_to_show(episode._replace(steps=steps))
    assert shown[0] == "step 0" and shown[4] == "step 4: grasp" and shown[20] == "step 20: release, end"


def test_main_measures_of_tasks():
    assert SkillEvaluation(("success", "picked", "mistake")).main == ("picked", "success")
    assert SkillEvaluation(("success", "distance", "angle")).main == ("success",)
    assert SkillEvaluation(("success", "distance")).rates == ("success",)


@pytest.mark.parametrize(("env", "agent"), [(ENV, "oracle"), ("pointnav:small?scenes=2&max_episode_steps=5", "oracle")])
def test_a_baseline_is_filmed(env, agent, tmp_path):
    path = tmp_path / "film.gif"
    _, result = evaluate_baseline(agent, EvaluationOptions(env=env, episodes=2, video=path))
    assert result["video"] == str(path)
    assert result["episodes"] == 2
    with Image.open(path) as gif:
        assert 1 < gif.n_frames <= STEPS + 1 and gif.size[0] > gif.size[1]


def test_the_command_films_a_policy(run, tmp_path, monkeypatch):
    path = tmp_path / "film.gif"
    options = EvaluationOptions(env=f"{ENV}&split=val", episodes=2, video=path)
    assert EVALUATOR.evaluate_policy(run, options)["video"] == str(path)
    with Image.open(path) as gif:
        assert gif.n_frames == STEPS + 1
    arguments = ["--agent", "random", "--env", "rearrange:set_table?scenes=2&max_episode_steps=3", "--episodes", "1"]
    monkeypatch.setattr(sys, "argv", ["paceline", "eval", *arguments, "--video", str(tmp_path / "table.gif")])
    cli.main()
    assert (tmp_path / "table.gif").stat().st_size > 1000


def report_command(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["paceline", "report", *arguments])
    cli.main()


def test_the_command_reports_a_baseline(tmp_path, monkeypatch, capsys):
    path = tmp_path / "oracle.html"
    report_command(monkeypatch, "--agent", "oracle", "--env", ENV, "--output", str(path), "--episodes", "2")
    assert capsys.readouterr().out.strip() == str(path)
    text = path.read_text()
    assert "2 episodes of pick" in text and "played by the agent oracle" in text and "random" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "nothing to report: give a run folder, or --agent"),
        (["--agent", "oracle"], "--agent needs an environment and a file; allowed: --env ID --output FILE"),
        (["run", "--agent", "oracle"], "allowed: without a run folder"),
        (["run", "--env", ENV], "--env is for --agent"),
        (["--agent", "oracle", "--env", "gym:CartPole-v1", "--output", "x.html"], "allowed: environments of rearrange"),
        (["--agent", "best", "--env", ENV, "--output", "x.html"], "'best' does not play .*; allowed: random, oracle"),
    ],
)
def test_wrong_reports_of_baselines_are_refused(arguments, problem, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        report_command(monkeypatch, *arguments)
    assert re.search(problem, " ".join(capsys.readouterr().err.split()))


def test_plans_have_no_video_and_no_report(tmp_path):
    with pytest.raises(UsageError, match="--video does not film plans; allowed: --agent random, oracle in skills"):
        EVALUATOR.evaluate_baseline("oracle", EvaluationOptions(env="rearrange:set_table", video=tmp_path / "x.gif"))
    with pytest.raises(UsageError, match="agent 'plan' has no report; allowed: random, oracle"):
        EVALUATOR.report_baseline("plan", "rearrange:set_table", 2)


def test_the_usual_number_of_episodes_is_all_of_a_shorter_list(kitchens, monkeypatch):
    config = RearrangementConfig(resolution=8, max_episode_steps=1)
    few = [(0, 1, 0), (3, 0, 2)]
    monkeypatch.setattr(
        f"{played_by_baseline.__module__}.fixed_episodes", lambda bank, count, usual: few if usual == 200 else None
    )
    assert len(played_by_baseline("random", "pick", config, None, kitchens).episodes) == 3
