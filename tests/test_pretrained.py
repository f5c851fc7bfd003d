"""The policies of the package: what ships, what they can do, and `paceline play`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import paceline as pl
from paceline.cli import main as cli
from paceline.envs.classic_pictures import drawn
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.evaluation.saved import SavedRun
from paceline.pretrained import HOME, POLICIES
from paceline.pretrained.make import main as make_main
from paceline.pretrained.make import write_policy
from paceline.pretrained.play import play
from tests.evaluation.runs import make_run
from tests.evaluation.test_report import check

FILES = {"weights.safetensors", "config.json", "spaces.json", "about.json"}
MOST_BYTES = 3 * 2**20


def test_every_policy_ships_and_all_are_small():
    for name, policy in POLICIES.items():
        assert {path.name for path in (HOME / name).iterdir()} == FILES
        about = json.loads((HOME / name / "about.json").read_text())
        assert about["command"] == " ".join(["paceline", "train", *policy.train]) and about["steps"] > 0
    assert sum(path.stat().st_size for path in HOME.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_loads_without_trust_and_acts(name):
    policy = pl.load(HOME / name)
    observation = policy.observation_space.sample()
    action, _ = policy.predict(observation)
    assert policy.action_space.contains(action)


def test_cartpole_is_solved_and_pendulum_swings_up():
    assert pl.evaluate(HOME / "cartpole", episodes=3).episode_return.mean > 475
    assert pl.evaluate(HOME / "pendulum", episodes=6).episode_return.mean > -400


def test_play_writes_a_gif_and_a_page_and_prints_the_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["paceline", "play", "cartpole", "--episodes", "1", "--output", str(tmp_path / "new")]
    )
    cli.main()
    first, second, third = capsys.readouterr().out.strip().split("\n")
    assert third.startswith("trained by: paceline train cartpole")
    assert first == "cartpole: mean return 500 over 1 episode"
    gif, page = map(Path, second.split())
    assert Image.open(gif).n_frames > 50
    assert check(page.read_text(), tmp_path).ids == ["play", "result", "policy"]


def test_an_evaluation_leaves_the_folder_of_a_policy_unchanged(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paceline", "eval", str(HOME / "cartpole"), "--episodes", "1", "--json"])
    cli.main()
    assert json.loads(capsys.readouterr().out)["mean_return"] == 500
    assert {path.name for path in (HOME / "cartpole").iterdir()} == FILES


def test_an_evaluation_takes_the_name_of_a_policy(tmp_path, monkeypatch, capsys):
    """A folder of this name goes first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["paceline", "eval", "cartpole", "--episodes", "1", "--json"])
    cli.main()
    assert json.loads(capsys.readouterr().out)["mean_return"] == 500
    (tmp_path / "cartpole").mkdir()
    with pytest.raises(SystemExit):
        cli.main()
    assert "cartpole is not the folder of a run" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "init"), [("cartpole", "encoder+policy+critic"), ("pendulum", None)])
@pytest.mark.parametrize("given", ["name", "folder"])
def test_a_run_begins_with_the_weights_of_a_policy(tmp_path, monkeypatch, name, init, given):
    monkeypatch.chdir(tmp_path)
    run = name if given == "name" else str(HOME / name)
    config = replace(pl.Config.load(HOME / name / "config.json"), init_from=run, init=init)
    with pl.Session(config, tmp_path / "run") as session:
        taken = session.learners[0].policy.state_dict()
    saved = SavedRun.load(HOME / name).weights
    assert saved.keys() == taken.keys()
    different = {key for key in saved if not torch.equal(saved[key].cpu(), taken[key].cpu())}
    assert different <= {"version"}
    assert json.loads((tmp_path / "run" / "initial_weights.json").read_text())["from"] == str(HOME / name)


@pytest.mark.parametrize("given", ["cartpole", str(HOME / "cartpole")])
def test_a_report_of_a_policy_is_refused_in_one_line(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["paceline", "report", given])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = f"paceline: {given} is a pretrained policy, which has no record of its training; "
    said += f"allowed: paceline eval {given}, or a folder that `paceline train` has made\n"
    assert end.value.code == 2 and capsys.readouterr().err == said


def test_pong_meets_a_scripted_opponent(tmp_path):
    shown = play("pong", tmp_path, episodes=2)
    assert "of 2 matches against a scripted opponent" in shown.summary and shown.gif.exists()
    check(shown.page.read_text(), tmp_path)


def test_without_a_name_the_policies_are_listed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paceline", "play"])
    cli.main()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(POLICIES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pointnaw"], "'pointnaw' does not exist, did you mean 'pointnav'?; allowed: pointnav, cartpole"),
        (["cartpole", "--episodes", "0"], "--episodes must be at least 1, got 0"),
    ],
)
def test_bad_usage_is_one_line(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["paceline", "play", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert ended.value.code == 2 and message in line


def test_an_output_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made: Not a directory; allowed: another --output"):
        play("cartpole", tmp_path / "file" / "folder")


@pytest.mark.parametrize("env", ["gym:CartPole-v1", "gym:Pendulum-v1"])
def test_classic_environments_are_drawn_without_pygame(env, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    made = drawn(resolve(env).make(0))
    made.reset(seed=1)
    before = made.render()
    action = made.action_space.sample()
    for _ in range(6):
        made.step(action)
    assert before.shape == (200, 300, 3) and before.dtype == np.uint8 and (made.render() != before).any()
    assert drawn(resolve("gym:Acrobot-v1").make(0)) is None


def test_the_policy_of_a_run_becomes_a_folder_that_loads(tmp_path):
    run = make_run(tmp_path / "run", "gym:CartPole-v1")
    write_policy(run, tmp_path / "policy", "paceline train cartpole")
    before, after = pl.load(run), pl.load(tmp_path / "policy")
    observation = before.observation_space.sample()
    assert before.predict(observation)[0] == after.predict(observation)[0]
    assert {path.name for path in (tmp_path / "policy").iterdir()} == FILES
    with pytest.raises(UsageError, match="has no policy 3; allowed: 0"):
        SavedRun.load(tmp_path / "policy", policy="3")
    (tmp_path / "policy" / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(UsageError, match="cannot be read"):
        SavedRun.load(tmp_path / "policy")
    with pytest.raises(UsageError, match="nothing to make"):
        make_main([])
