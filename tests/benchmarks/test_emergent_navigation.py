"""The benchmark of emergent navigation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import emergent_navigation
from benchmarks.emergent_navigation import (
    FAR,
    NEAR,
    Plan,
    StartDistances,
    classes,
    draw,
    listed,
    measure,
    of_setting,
    show,
)
from paceline.errors import UsageError
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.evaluation.evaluator import Setting
from paceline.sims.rearrangement.evaluation.oracle.handles import TAKES, HandleStands
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.simulator import Rearrangement

FOUND = {
    "a run": {
        NEAR: {
            "success": np.array([1.0, 0.0]),
            "path_length": np.array([0.5, 1.0]),
            "steps": np.array([30.0, 90.0]),
            "distance": np.array([0.2, 0.3]),
        },
        FAR: {
            "success": np.array([1.0, 0.0, 0.0]),
            "path_length": np.array([1.0, 2.0, 3.0]),
            "steps": np.array([60.0, 60.0, 60.0]),
            "distance": np.array([1.5, 2.5, 12.0]),
        },
    }
}


@pytest.fixture(scope="module")
def kitchen() -> HouseBank:
    return HouseBank.generate("small", num_scenes=1)


def test_episodes_are_divided_by_the_distance_of_their_start():
    assert [name for name, _ in classes(FOUND["a run"][FAR])] == ["1 to 2 m", "2 to 3 m", "over 9 m"]


def test_the_table_has_all_episodes_and_every_class(capsys):
    rows = show(FOUND).rows
    assert [row[2] for row in rows] == ["all", "0 to 0.5 m", "all", "1 to 2 m", "2 to 3 m", "over 9 m"]
    assert rows[0][3:] == ("2", "0.50 (0.09 to 0.91)", "0.75", "2.0")


def test_the_plot_is_written(tmp_path):
    draw(FOUND, tmp_path / "distances.png")
    assert (tmp_path / "distances.png").stat().st_size > 1000


def test_the_start_of_every_episode_is_noted(kitchen):
    """Episodes of two steps, so that each robot plays several."""
    config = RearrangementConfig(sensors="blind", scenes=1, max_episode_steps=2, start=FAR)
    simulator = Rearrangement(2, "cpu", "pick", config, bank=kitchen)
    noted = StartDistances(simulator, lambda obs, began: torch.full((2, 10), -1.0))
    obs, began = simulator.load_episodes([0] * 4, [0, 1, 2, 3]), torch.ones(2, dtype=torch.bool)
    for _ in range(4):
        step = simulator.step(noted.act(obs, began))
        obs, began = step.obs, step.terminated | step.truncated
    distances = noted.of(4)
    assert distances.shape == (4,) and (distances > 0.0).all() and len(set(distances.tolist())) == 4


def start_distances(bank: HouseBank, task: str, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Of near starts: the way to the target, and the distance from the handle (closed)."""
    simulator = Rearrangement(num, "cpu", task, RearrangementConfig(sensors="blind", scenes=1), bank=bank)
    obs = simulator.load_episodes([0] * num, list(range(num)))
    noted = StartDistances(simulator, lambda obs, began: torch.zeros(num, 10))
    noted.act(obs, torch.ones(num, dtype=torch.bool))
    return noted.of(num), obs["target"][:, 3:5].norm(dim=1).numpy()


def test_the_way_to_a_handle_leads_to_where_the_arm_reaches_it(kitchen):
    way, to_handle = start_distances(kitchen, "open_fridge", 32)
    assert (way >= to_handle - TAKES[1] - 1e-3).all()
    assert (way[to_handle > TAKES[1]] > 0.0).all() and (way < 1.5).all()


def test_an_episode_without_a_place_before_the_handle_has_no_class(kitchen, monkeypatch):
    def nowhere(view, wanted):
        return HandleStands(view.pose.clone(), torch.zeros_like(view.rows, dtype=torch.bool))

    monkeypatch.setattr(emergent_navigation, "handle_stands", nowhere)
    way, _ = start_distances(kitchen, "close_fridge", 2)
    assert np.isnan(way).all() and listed(way) == [None, None] and classes({"distance": way}) == []


def test_a_task_without_near_starts_is_refused():
    with pytest.raises(UsageError, match="rearrange:navigate has no near starts; allowed: pick, place"):
        of_setting(Setting.of("rearrange:navigate"), None, Plan())


def test_runs_of_one_name_are_refused():
    runs = (Path("a/pick"), Path("b/pick"))
    with pytest.raises(UsageError, match="runs are named pick, pick; allowed: folders with different names"):
        measure(Plan(runs=runs), {})


def test_a_run_trained_with_far_starts_also_plays_near_ones(monkeypatch):
    monkeypatch.setattr(emergent_navigation, "play_starts", lambda setting, loaded, plan: setting.config.start)
    assert of_setting(Setting.of("rearrange:pick?start=far"), None, Plan()) == {NEAR: "near", FAR: "far"}
