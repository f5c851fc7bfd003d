"""Results over experience: curves of several runs, and the power law of their error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from paceline.cli import main as cli
from paceline.errors import UsageError
from paceline.evaluation.history import History
from paceline.evaluation.power_law import LEAST_ERROR, START, PowerLaw, RunCurves, fit_curves
from paceline.evaluation.report import write_report
from tests.evaluation.runs import make_run
from tests.evaluation.test_report import check


def history(steps, values) -> History:
    return History({"step": np.asarray(steps, float), "episode_success": np.asarray(values, float)})


def noisy_runs(count, exponent, seed=0):
    """Runs whose errors follow a power law, with one factor of noise for each run and one for each point."""
    rng = np.random.default_rng(seed)
    steps = np.geomspace(1e3, 1e6, 200)
    errors = 8.0 * steps**-exponent * np.exp(rng.normal(0, 0.1, (count, 1)) + rng.normal(0, 0.03, (count, 200)))
    return [history(steps, 1.0 - row) for row in errors]


def test_a_power_law_is_found_again():
    steps = np.geomspace(1e4, 1e8, 40)
    for exponent in (0.1, 0.35):
        results = 1.0 - 5.0 * steps**-exponent
        law = PowerLaw.fit(steps, results)
        assert law.exponent == pytest.approx(exponent) and law.scale == pytest.approx(5.0)
        np.testing.assert_allclose(law.at(steps), results)
    perfect = PowerLaw.fit(steps, np.ones(40))
    assert perfect.exponent == pytest.approx(0.0, abs=1e-9) and perfect.scale == pytest.approx(LEAST_ERROR)


def test_a_fit_is_the_best_of_many_lines():
    rng = np.random.default_rng(3)
    steps = np.geomspace(1e3, 1e5, 30)
    results = 1.0 - 3.0 * steps**-0.25 * np.exp(rng.normal(0, 0.2, 30))
    law = PowerLaw.fit(steps, results)

    def misfit(scale, exponent):
        return ((np.log(1.0 - results) - np.log(scale) + exponent * np.log(steps)) ** 2).sum()

    others = [misfit(law.scale * a, law.exponent + b) for a in (0.9, 1.0, 1.1) for b in (-0.02, 0.0, 0.02)]
    assert misfit(law.scale, law.exponent) == min(others)


def test_a_fit_begins_where_half_is_reached_and_its_interval_covers_the_truth():
    curves = RunCurves.of(noisy_runs(5, 0.3), "episode_success")
    fitted = fit_curves(curves)
    at = np.flatnonzero(curves.steps >= fitted.first)
    assert fitted.num_points == len(at)
    mean = curves.results.mean(0)
    assert mean[at[0]] >= START > mean[: at[0]].max()
    low, high = fitted.interval
    assert low <= fitted.law.exponent <= high
    assert low - 0.02 < 0.3 < high + 0.02 and high - low < 0.1
    assert fit_curves(RunCurves.of(noisy_runs(2, 0.3), "episode_success")).interval is None


def test_nothing_is_fitted_where_nothing_was_learned():
    steps = np.arange(1, 50) * 1000
    assert fit_curves(RunCurves.of([history(steps, np.full(49, 0.4))], "episode_success")) is None
    late = np.where(steps > 47_000, 0.9, 0.1)
    assert fit_curves(RunCurves.of([history(steps, late)], "episode_success")) is None


def test_curves_have_the_steps_that_all_runs_have():
    one = history([100, 200, 400, 800], [0.1, np.nan, 0.4, 0.8])
    other = history([150, 600], [0.2, 0.2])
    curves = RunCurves.of([one, other], "episode_success")
    assert curves.steps[0] == pytest.approx(150) and curves.steps[-1] == pytest.approx(600)
    np.testing.assert_allclose(curves.results[:, -1], [0.6, 0.2])
    np.testing.assert_allclose(np.diff(np.log(curves.steps)), np.log(4) / 59)
    assert RunCurves.of([one, history([900, 1000], [0.0, 1.0])], "episode_success") is None
    assert RunCurves.of([one, other], "episode_spl") is None


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Three runs of the same environment: one is real, the others have its configuration and metrics of their own."""
    folder = tmp_path_factory.mktemp("runs")
    made = [make_run(folder / "seed1", "gym:CartPole-v1")]
    config = json.loads((made[0] / "config.json").read_text())
    for number, metrics in enumerate(noisy_runs(2, 0.3), 2):
        made.append(folder / f"seed{number}")
        made[-1].mkdir()
        (made[-1] / "config.json").write_text(json.dumps({**config, "seed": number}))
        columns = [metrics.columns["step"], metrics.columns["episode_success"]]
        rows = [{"step": step, "seconds": step, "episode_success": value} for step, value in zip(*columns, strict=True)]
        (made[-1] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_a_report_of_several_runs(runs, tmp_path, monkeypatch):
    output = tmp_path / "report.html"
    monkeypatch.setattr("sys.argv", ["paceline", "report", *map(str, runs[1:]), "--output", str(output)])
    cli.main()
    text = output.read_text()
    page = check(text, runs[1])
    assert "Success over experience" in page.headings and "experience" in page.ids
    for words in ("mean and the range of 2 runs", "have the same settings", "an interval needs three runs", ">seed3<"):
        assert words in text
    alone = write_report(runs[1], output=output).read_text()
    assert "one run" in alone and "Configurations" not in alone


def test_runs_without_rates_are_compared_by_their_return(runs, tmp_path):
    copies = [tmp_path / name for name in ("one", "other")]
    for copy in copies:
        shutil.copytree(runs[0], copy)
    text = write_report(copies[0], others=copies[1:]).read_text()
    assert "no two reports over the same steps" in text, "the run has reported once"
    for copy in copies:
        with (copy / "metrics.jsonl").open("a") as file:
            file.write('{"step": 9999, "seconds": 99.0, "episode_return": 30.0}\n')
    text = write_report(copies[0], others=copies[1:]).read_text()
    assert "Return over steps" in check(text, copies[0]).headings and "power law" not in text


def test_runs_that_do_not_belong_together_are_refused(runs, tmp_path):
    with pytest.raises(UsageError, match="given more than once"):
        write_report(runs[0], others=[runs[1], runs[0]])
    with pytest.raises(UsageError, match="not the folder of a run"):
        write_report(runs[0], others=[tmp_path])
