"""The table of evaluators: one line adds a simulator to `paceline eval` and `paceline report`."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from paceline.cli import main as cli
from paceline.errors import UsageError
from paceline.evaluation import evaluate as default
from paceline.evaluation import report_page
from paceline.evaluation.evaluate import evaluate
from paceline.evaluation.evaluators import (
    EVALUATORS,
    EvaluationOptions,
    Evaluator,
    evaluate_baseline,
    evaluator_of,
)
from paceline.evaluation.report import write_report
from tests.evaluation.runs import make_run

ENV = "gym:CartPole-v1"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "cartpole", ENV)


@pytest.fixture
def poles(monkeypatch):
    """A simulator that serves the family `gym`, has one baseline and one own section, and plays nothing."""
    tiles = [report_page.Tile("Poles", "7", is_main=True)]
    module = types.ModuleType("poles")
    module.EVALUATOR = Evaluator(
        evaluate_policy=lambda folder, options: {"upright": 0.5, "split": options.split},
        table=lambda report: f"upright {report['upright']}",
        options=("split",),
        baselines=("still",),
        evaluate_baseline=lambda name, options: {"upright": 0.1, "agent": name, "env": options.env},
        rates=("return",),
        labels={"return": "reward", "length": "endurance"},
        report=lambda folder, episodes: report_page.ReportPart(
            tiles, [report_page.section("poles", f"{episodes} poles", "")]
        ),
    )
    monkeypatch.setitem(sys.modules, "poles", module)
    monkeypatch.setitem(EVALUATORS, "gym", "poles")


def test_every_line_of_the_table_names_an_evaluator():
    for family in EVALUATORS:
        assert isinstance(evaluator_of(family), Evaluator)
    assert evaluator_of(ENV) is default.EVALUATOR
    assert evaluator_of("package.module:function") is default.EVALUATOR


def test_the_table_imports_nothing_heavy():
    heavy = {"torch", "matplotlib", "paceline.sims.navigation.simulator"}
    code = f"import sys, paceline.evaluation.evaluators; assert not {heavy} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_a_policy_is_evaluated_by_the_evaluator_of_its_environment(run, poles, monkeypatch, capsys):
    assert evaluate(run, split="val") == {"upright": 0.5, "split": "val"}
    monkeypatch.setattr(sys, "argv", ["paceline", "eval", str(run)])
    cli.main()
    assert capsys.readouterr().out == "upright 0.5\n"


def test_options_that_an_evaluator_does_not_have_are_refused(run, poles):
    with pytest.raises(UsageError, match=f"--samples does not apply to {ENV}; allowed in: pointnav"):
        evaluate(run, samples=2, sampled=True)


def test_baselines_are_found_by_environment_or_by_name(poles):
    assert evaluate_baseline("still", EvaluationOptions())[1]["env"] == "gym"
    assert evaluate_baseline("still", EvaluationOptions(env=ENV))[1]["env"] == ENV
    with pytest.raises(
        UsageError, match=f"agent 'random' does not play {ENV}; allowed: .*oracle in pointnav; .*; still in gym"
    ):
        evaluate_baseline("random", EvaluationOptions(env=ENV))


def test_a_checkpoint_is_refused_with_a_baseline_that_has_none(poles):
    with pytest.raises(UsageError, match="^--checkpoint is for the policy of a run, not for --agent still$"):
        evaluate_baseline("still", EvaluationOptions(checkpoint="best"))
    with pytest.raises(UsageError, match="nowhere"):  # a plan of runs plays this checkpoint of them
        evaluate_baseline("plan?pick=nowhere", EvaluationOptions(env="rearrange:tidy_house", checkpoint="best"))


def test_a_report_begins_with_the_sections_of_the_simulator(run, poles, tmp_path):
    text = write_report(run, evaluate_episodes=9, output=tmp_path / "report.html").read_text()
    assert text.index("9 poles") < text.index('id="learning"')
    assert "Reward in training over steps" in text and "Endurance" in text and '<div class="tile main">' in text


@pytest.mark.parametrize(
    ("options", "message"), [({"samples": 0}, "samples must be at least 1"), ({"seed": -1}, "seed must be at least 0")]
)
def test_options_are_validated_when_they_are_made(options, message):
    with pytest.raises(UsageError, match=message):
        EvaluationOptions(**options)
