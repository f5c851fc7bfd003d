"""On a full disk a run loses the files that do not fit, and says so."""

from __future__ import annotations

import sys

import pytest

from paceline.checkpoint import CheckpointFolder
from paceline.cli import main as cli
from paceline.config import CheckpointConfig, Config
from paceline.files import DiskFull
from paceline.learner.config import PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import train

CONFIG = Config(
    steps=256,
    rollout_steps=16,
    device="cpu",
    pool=PoolConfig(kind="serial", num_envs=4),
    policy=PolicyConfig(hidden=(8,)),
    ppo=PPOConfig(epochs=1, minibatches=1),
    checkpoint=CheckpointConfig(seconds=1e-6),
)
"""Four iterations of 64 steps, each with a checkpoint."""


@pytest.fixture
def full_at(monkeypatch):
    """A function that makes the disk full at the given steps."""
    save = CheckpointFolder.save

    def choose(*steps: int) -> None:
        def save_or_fail(self, step, *rest, **options):
            if step in steps:
                raise DiskFull(f"step_{step} cannot be written: the disk is full")
            return save(self, step, *rest, **options)

        monkeypatch.setattr(CheckpointFolder, "save", save_or_fail)

    return choose


def test_a_checkpoint_that_does_not_fit_is_tried_again_with_the_next(tmp_path, full_at, caplog):
    full_at(64, 192)
    assert train(CONFIG, tmp_path).step == 256
    assert CheckpointFolder(tmp_path / "checkpoints").steps() == [128, 256]
    first, second = [record.getMessage() for record in caplog.records if "disk is full" in record.getMessage()]
    assert "step_64 cannot be written" in first and "there is no checkpoint yet" in first
    assert "step_192 cannot be written" in second and "checkpoints/step_128. The next attempt is in" in second


def test_a_last_checkpoint_that_does_not_fit_is_an_error_that_names_the_one_before(tmp_path, full_at):
    full_at(256)
    with pytest.raises(
        DiskFull, match="step_256 cannot be written: .*; the last good checkpoint is .*step_192"
    ) as raised:
        train(CONFIG, tmp_path)
    assert raised.value.exit_code == 1
    full_at()
    assert train(CONFIG, tmp_path, resume="latest").step == 256


def test_a_command_on_a_full_disk_says_so_in_one_line(tiny_disk, monkeypatch, capsys):
    arguments = [
        "train",
        "cartpole",
        "--steps",
        "64",
        "--rollout-steps",
        "16",
        "--pool.num-envs",
        "4",
        "--device",
        "cpu",
    ]
    arguments += ["--pool.kind", "serial", "--policy.hidden", "256", "256", "--run-dir", str(tiny_disk / "run")]
    monkeypatch.setattr(sys, "argv", ["paceline", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    last = capsys.readouterr().err.splitlines()[-1]
    assert end.value.code == 1
    assert "step_64 cannot be written: the disk is full (it needs" in last and "there is no checkpoint yet" in last


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_run_folder_below_a_file_exits_2_at_once(tmp_path, monkeypatch, capsys, ranks):
    def fail(*_, **__):
        raise AssertionError("something was started")

    for name in ("paceline.session.make_pool", "paceline.cli.train.launch_ranks"):
        monkeypatch.setattr(name, fail)
    (tmp_path / "afile").write_text("")
    monkeypatch.setattr(
        sys, "argv", ["paceline", "train", "cartpole", "--ranks", ranks, "--run-dir", str(tmp_path / "afile/x")]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and len(said) == 1 and "afile is a file" in said[0]
