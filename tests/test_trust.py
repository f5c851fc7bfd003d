"""Files of other users run no code without consent; a user's own files load without questions."""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import shutil
import stat
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from paceline import checkpoint, signatures
from paceline.checkpoint import CheckpointFolder
from paceline.cli import main as cli
from paceline.config import Config
from paceline.envs.registry import code_named_by
from paceline.errors import PacelineError, UsageError
from paceline.evaluation.evaluate import evaluate
from paceline.evaluation.saved import SavedRun
from paceline.session import train
from paceline.signatures import secret_path, sign, why_foreign
from paceline.trust import may_run, may_unpickle
from tests.evaluation.runs import make_run
from tests.pickles import Touch

OWN_ENV = "tests.evaluation.runs:Reach"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {"own": make_run(folder / "own", OWN_ENV), "cartpole": make_run(folder / "cartpole", "gym:CartPole-v1")}


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of a run, which the test may change."""
    return lambda name: Path(shutil.copytree(runs[name], tmp_path / "copied" / name))


@pytest.fixture
def another_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another_user"))


def command(monkeypatch, *arguments: object) -> int:
    """The exit code of a command line, run in this process."""
    monkeypatch.setattr(sys, "argv", ["paceline", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def make_malicious(folder: Path, file: Path) -> None:
    """Change a run as an attacker would: its environment creates `file`."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"env": f"os:system?command=touch {file}"}))


@pytest.mark.parametrize("kept", ["where it was", "copied"])
def test_own_runs_load_silently(runs, copied, caplog, kept):
    folder = runs["own"] if kept == "where it was" else copied("own")
    assert why_foreign(folder / "config.json") is None
    assert evaluate(folder, episodes=2)["episodes"] == 2
    assert may_unpickle(folder / "checkpoints" / "step_256" / checkpoint.MANIFEST)
    assert not caplog.records


def test_an_own_run_goes_on_with_its_simulators(copied, caplog):
    folder = copied("own")
    config = dataclasses.replace(Config.load(folder / "config.json"), steps=512)
    assert train(config, folder, resume="latest").step == 512
    assert not caplog.records


def test_the_secret_is_for_its_user_alone(another_user, tmp_path):
    sign_text(tmp_path / "file")
    assert stat.S_IMODE(secret_path().stat().st_mode) == 0o600 and secret_path().stat().st_size == 32
    assert stat.S_IMODE(secret_path().parent.stat().st_mode) == 0o700
    assert [path.name for path in secret_path().parent.iterdir()] == ["secret"]
    secret_path().chmod(0o644)
    assert "is open to other users" in str(why_foreign(tmp_path / "file"))
    secret_path().write_bytes(b"")
    assert "does not hold 32 bytes" in str(why_foreign(tmp_path / "file"))


def test_the_secret_is_in_the_home_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert secret_path() == tmp_path / ".config" / "paceline" / "secret"


def test_processes_that_make_the_secret_at_once_have_the_same(another_user, monkeypatch):
    together = threading.Barrier(8)
    make = signatures._make_secret

    def make_together(path):
        together.wait(10)
        make(path)

    monkeypatch.setattr(signatures, "_make_secret", make_together)
    with ThreadPoolExecutor(8) as threads:
        found = {future.result() for future in [threads.submit(signatures._secret) for _ in range(8)]}
    assert found == {secret_path().read_bytes()}


def sign_text(path: Path, text: str = "text") -> None:
    path.write_text(text)
    sign(path)


def test_reasons_why_a_file_is_foreign(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text("text")
    assert "has no signature" in str(why_foreign(path))
    sign(path)
    assert why_foreign(path) is None
    path.write_text("other text")
    assert why_foreign(path) == "it was changed since it was written"
    sign_text(tmp_path / "manifest.json")
    shutil.copy(tmp_path / "manifest.json.sig", tmp_path / "config.json.sig")
    path.write_text("text")
    assert why_foreign(path) == "it was changed since it was written", "a signature is for one kind of file"
    sign(path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another_user"))
    assert "another user" in str(why_foreign(path))


def test_without_a_secret_files_stay_unsigned_with_one_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "afile").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "afile" / "config"))
    for _ in range(2):
        Config().save(tmp_path / "config.json")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "not signed" in warning and "afile" in warning
    assert not (tmp_path / "config.json.sig").exists()
    with pytest.raises(UsageError, match="cannot be checked"):
        may_run("my.module:make", tmp_path / "config.json")
    assert may_run("gym:CartPole-v1", tmp_path / "config.json") is False


@pytest.mark.parametrize(
    "arguments", [["eval"], ["export", "--format", "torchscript"], ["train", "--steps", "512", "--resume", "--run-dir"]]
)
def test_code_that_somebody_elses_run_names_does_not_run(copied, tmp_path, monkeypatch, capsys, arguments):
    folder, ran = copied("cartpole"), tmp_path / "ran"
    make_malicious(folder, ran)
    (folder / "spaces.json").unlink()  # a run of an earlier version: `export` makes an environment to see its spaces
    assert command(monkeypatch, *arguments, folder) == 2
    said = capsys.readouterr().err
    assert "would import the module 'os' and call 'system'" in said and "--trust" in said
    assert "it was changed since it was written" in said
    assert not ran.exists()
    command(monkeypatch, *arguments, folder, "--trust")  # it runs, but is not an environment
    assert ran.exists()


def test_a_policy_is_exported_without_its_environment(copied, tmp_path, monkeypatch):
    folder, ran = copied("cartpole"), tmp_path / "ran"
    make_malicious(folder, ran)
    assert command(monkeypatch, "export", "--format", "torchscript", folder) == 0
    assert not ran.exists() and (folder / "policy.pt").exists()


def test_code_that_a_configuration_file_names_does_not_run(copied, tmp_path, monkeypatch, capsys):
    folder, ran = copied("cartpole"), tmp_path / "ran"
    make_malicious(folder, ran)
    arguments = ["train", "--config", folder / "config.json", "--run-dir", tmp_path / "new"]
    assert command(monkeypatch, *arguments) == 2
    assert "--trust" in capsys.readouterr().err and not ran.exists() and not (tmp_path / "new").exists()
    command(monkeypatch, *arguments, "--trust")
    assert ran.exists()


def name_a_class(folder: Path) -> None:
    """Let the configuration of a run name a class of its own, as somebody else could have written it."""
    config = json.loads((folder / "config.json").read_text())
    config["policy"] |= {"activation": "tests.nets.own_parts:Encoder"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval"],
        ["eval", "--env", "gym:CartPole-v1"],
        ["export", "--format", "torchscript"],
        ["train", "--steps", "512", "--resume", "--run-dir"],
    ],
)
def test_classes_that_somebody_elses_run_names_are_not_made(copied, monkeypatch, capsys, arguments):
    folder = copied("cartpole")
    name_a_class(folder)
    monkeypatch.delitem(sys.modules, "tests.nets.own_parts", raising=False)
    command_line = [*arguments, folder] if arguments[0] != "eval" else ["eval", folder, *arguments[1:]]
    assert command(monkeypatch, *command_line) == 2
    said = capsys.readouterr().err
    assert "policy.activation 'tests.nets.own_parts:Encoder' would import the module 'tests.nets.own_parts'" in said
    assert "--trust" in said and "--env to name" not in said and "tests.nets.own_parts" not in sys.modules
    command(monkeypatch, *command_line, "--trust")  # an encoder is no activation: it is refused after it was imported
    assert "tests.nets.own_parts" in sys.modules


@pytest.mark.parametrize("option", ["ppo.term", "ppo.auxiliary.kind", "optimizer.schedule", "policy.kind"])
def test_parts_that_somebody_elses_run_names_do_not_run(copied, monkeypatch, capsys, option):
    folder = copied("cartpole")
    config = json.loads((folder / "config.json").read_text())
    *sections, field = option.split(".")
    section = config
    for name in sections:
        section = section[name]
    section[field] = "tests.learner.own_losses:small_values"
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.delitem(sys.modules, "tests.learner.own_losses", raising=False)
    assert command(monkeypatch, "train", "--steps", 512, "--resume", "--run-dir", folder) == 2
    said = capsys.readouterr().err
    assert f"{option} 'tests.learner.own_losses:small_values' would import the module" in said and "--trust" in said
    evaluated = command(monkeypatch, "eval", folder, "--episodes", 1)
    assert evaluated == (2 if option == "policy.kind" else 0), "a policy acts without losses"
    assert "tests.learner.own_losses" not in sys.modules


def test_a_class_that_the_command_line_names_is_the_users_own(copied, tmp_path, monkeypatch):
    folder, started = copied("cartpole"), []
    name_a_class(folder)
    monkeypatch.setattr(
        "paceline.session.train", lambda config, folder, **options: started.append(config.policy.activation)
    )
    arguments = ["train", "--config", folder / "config.json", "--run-dir", tmp_path / "new"]
    assert command(monkeypatch, *arguments) == 2 and not started
    with pytest.raises(AttributeError):  # the fake `train` returns no run to summarise
        command(monkeypatch, *arguments, "--policy.activation", "torch.nn:GELU")
    assert started == ["torch.nn:GELU"]


def test_a_report_runs_nothing(copied, tmp_path, monkeypatch):
    folder, ran = copied("cartpole"), tmp_path / "ran"
    make_malicious(folder, ran)
    assert command(monkeypatch, "report", folder) == 0
    assert not ran.exists() and (folder / "report.html").exists()
    assert command(monkeypatch, "report", folder, "--trust") == 0


def test_somebody_elses_run_is_evaluated_where_the_environment_is_installed(runs, another_user, caplog):
    assert evaluate(runs["cartpole"], episodes=2)["episodes"] == 2
    assert not caplog.records


def test_somebody_elses_environment_runs_when_it_is_trusted_or_named(runs, another_user, monkeypatch):
    with pytest.raises(UsageError, match="not recognised as yours .*written by another user.*would import the module"):
        evaluate(runs["own"], episodes=2)
    assert evaluate(runs["own"], episodes=2, trust=True)["episodes"] == 2
    assert evaluate(runs["own"], episodes=2, env=OWN_ENV)["episodes"] == 2
    monkeypatch.setattr("paceline.evaluation.saved.load_spaces", lambda *_: None)  # a run of an earlier version
    with pytest.raises(UsageError, match="not recognised as yours"):
        SavedRun.load(runs["own"]).spec()


@pytest.mark.parametrize("named", [["--env", OWN_ENV], [f"--env={OWN_ENV}"], ["--trust"]])
def test_what_the_command_line_names_is_the_users_own(runs, another_user, monkeypatch, tmp_path, named):
    started = []
    monkeypatch.setattr("paceline.session.train", lambda config, folder, **options: started.append(options))
    arguments = ["train", "--config", runs["own"] / "config.json", "--run-dir", tmp_path / "new"]
    assert command(monkeypatch, *arguments) == 2 and not started
    with pytest.raises(AttributeError):  # the fake `train` returns no run to summarise
        command(monkeypatch, *arguments, *named)
    assert started == [{"resume": None, "trust": named == ["--trust"]}]


def test_a_ray_cluster_that_somebody_else_names_is_not_joined(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="Ray cluster at 'ray://elsewhere:1'"):
        may_run("gym:CartPole-v1", tmp_path / "config.json", address="ray://elsewhere:1")


@pytest.mark.parametrize("trusted", [False, True])
def test_simulators_that_somebody_else_saved_are_not_loaded(copied, tmp_path, caplog, trusted):
    folder, ran = copied("cartpole"), tmp_path / "ran"
    saved = folder / "checkpoints" / "step_256"
    (saved / "pool_0.bin").write_bytes(pickle.dumps(Touch(ran)))
    manifest = json.loads((saved / checkpoint.MANIFEST).read_text())
    manifest["pool_0.bin"] = checkpoint._fingerprint(saved / "pool_0.bin")
    (saved / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    config = dataclasses.replace(Config.load(folder / "config.json"), steps=512)
    if trusted:
        with pytest.raises((TypeError, PacelineError)):  # the pickle is not a state of simulators
            train(config, folder, resume="latest", trust=True)
        assert ran.exists()
    else:
        assert train(config, folder, resume="latest").step == 512
        assert not ran.exists()
        assert "They are not loaded, and all episodes start anew; --trust, or trust=True, loads them" in caplog.text
        assert why_foreign(CheckpointFolder(folder / "checkpoints").load().manifest) is None, (
            "what was written now is ours"
        )


def test_simulators_of_another_kind_of_pool_start_anew(copied, caplog):
    """The state of a `tensor` pool is not a pickle, and a `serial` pool cannot load it."""
    folder = copied("cartpole")
    saved = folder / "checkpoints" / "step_256"
    torch.save({"sizes": [4]}, saved / "pool_0.bin")
    manifest = json.loads((saved / checkpoint.MANIFEST).read_text())
    manifest["pool_0.bin"] = checkpoint._fingerprint(saved / "pool_0.bin")
    (saved / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    config = dataclasses.replace(Config.load(folder / "config.json"), steps=512)
    assert train(config, folder, resume="latest").step == 512
    assert "another kind of pool: all episodes start anew" in caplog.text and "recognised" not in caplog.text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "trusted"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_on_a_terminal_the_user_is_asked(tmp_path, monkeypatch, answer, trusted):
    path = tmp_path / "config.json"
    path.write_text("{}")
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    if trusted:
        assert may_run("os:system", path) is True
    else:
        with pytest.raises(UsageError):
            may_run("os:system", path)
    assert "call 'system'" in shown.getvalue() and shown.getvalue().endswith("Run it? [y/N] ")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert may_unpickle(path) is trusted


@pytest.mark.parametrize("silent", ["ranks", "no terminal"])
def test_there_is_no_question_without_a_terminal_or_with_several_ranks(tmp_path, monkeypatch, silent):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdin", Terminal("y\n") if silent == "ranks" else io.StringIO("y\n"))
    if silent == "ranks":
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
    assert may_unpickle(tmp_path / "config.json") is False


@pytest.mark.parametrize(
    "env",
    [
        "gym:CartPole-v1",
        "gym:FrozenLake-v1?map_name=8x8",
        "gym:LunarLander-v3?continuous=true&gravity=-9.0",
        "synthetic:lognormal?mean=0.01",
        "tensor:cartpole?max_episode_steps=200",
        "pointnav:small?resolution=64",
        "pettingzoo:butterfly.pistonball_v6?n_pistons=4",
        "pettingzoo:pettingzoo.butterfly.pistonball_v6",
        "atari:Breakout",
        "dmc:cheetah-run",
        "doom:basic",
        "envpool:Breakout-v5?stack_num=2",
    ],
)
def test_ids_of_installed_simulators_name_no_code(env):
    assert code_named_by(env) is None


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("os:system?command=true", "import the module 'os' and call 'system'"),
        ("my.envs:make", "import the module 'my.envs' and call 'make'"),
        ("gym:my.envs:Mine-v0", "import the module 'my.envs'"),
        ("gym:GymV21Environment-v0?env_id=my.envs:Mine-v0", "texts"),
        ("gym:GymV21Environment-v0?make_kwargs={'a': ['b']}", "texts"),
        ("pettingzoo:my.envs", "import the module 'my.envs'"),
        ("doom:/tmp/mine.cfg", "start the program that '/tmp/mine.cfg' names"),
        ("envpool:D1Basic-v1?vzd_path=/tmp/mine", "texts"),
    ],
)
def test_ids_that_run_what_they_name_are_known(env, said):
    assert said in str(code_named_by(env))
