"""The folder of a population where the folder of a run is needed."""

from __future__ import annotations

import pytest

from paceline.cli import train
from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation.saved import SavedRun, run_config
from paceline.population.folders import require_run
from paceline.transfer import InitialWeights


@pytest.fixture
def population(tmp_path):
    """What `paceline population` leaves behind, without the weights."""
    for name in ("exchange", "logs", "member_0", "member_10", "member_2"):
        (tmp_path / name).mkdir()
    for folder in (tmp_path, *tmp_path.glob("member_*")):
        Config().save(folder / "config.json")
    return tmp_path


def test_a_population_is_no_run_and_its_members_are_named(population):
    members = ", ".join(str(population / name) for name in ("member_0", "member_2", "member_10"))
    message = f"{population} is the folder of a population, whose members are the runs; allowed: {members}"
    for refused in (
        lambda: SavedRun.load(population),
        lambda: InitialWeights.load(Config(init_from=str(population))),
        lambda: run_config(population),
    ):
        with pytest.raises(UsageError) as caught:
            refused()
        assert str(caught.value) == message
    assert run_config(population / "member_0") == Config()


def test_a_run_that_others_have_joined_is_a_run(population):
    (population / "checkpoints").mkdir()
    require_run(population)


def test_a_population_is_not_resumed_as_a_run(population):
    with pytest.raises(
        UsageError, match=f"to continue all members: paceline population --resume --run-dir {population}"
    ):
        train.main(["--resume", "--run-dir", str(population)])
