"""TAB in bash and zsh: commands, recipes, systems and options, without starting a program."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import shutil
import subprocess

import pytest

from paceline.cli.completion import Completion
from paceline.cli.main import COMMANDS
from paceline.cli.train import main as train
from paceline.recipes import RECIPES
from paceline.systems import SYSTEMS

BASH, ZSH = shutil.which("bash"), shutil.which("zsh")
needs_bash = pytest.mark.skipif(BASH is None, reason="needs bash")
needs_zsh = pytest.mark.skipif(ZSH is None, reason="needs zsh")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9]")


@functools.cache
def code(shell: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        Completion(shell).run()
    return out.getvalue()


def press_tab(script: str, *words: str) -> list[str]:
    """What bash offers for the last of the words. It can start no program meanwhile."""
    typed = " ".join(map(shlex.quote, words))
    program = f'{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _paceline; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        [BASH, "--norc", "-c", program], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.split()


@needs_bash
def test_bash_completes():
    script = code("bash")
    for typed, offered in (
        ("tr", "train"),
        ("train cart", "cartpole"),
        ("train cartpole --sys", "--system"),
        ("train cartpole --system ", " ".join(SYSTEMS)),
        ("train cartpole --system a", "appo"),
        ("train cartpole --system = a", "appo"),
        ("train cartpole --system =", " ".join(SYSTEMS)),
        ("train cartpole --ppo.ep", "--ppo.epochs"),
        ("train cartpole --ver.ov", ""),
        ("train cartpole --system ver --ver.ov", "--ver.overlap"),
        ("train pendulum --replay.cap", "--replay.capacity"),
        ("train --pool.kind s", "serial"),
        ("train cartpole --run-dir ", ""),
        ("population cartpole --mem", "--members"),
        ("sweep cartp", "cartpole"),
        ("sweep cartpole --spa", "--space"),
        ("sweep cartpole --statistic m", "median mean max"),
        ("play po", "pointnav pong"),
        ("eval runs/mine --tour", "--tournament"),
        ("export runs/mine --format o", "onnx"),
        ("plan ", "check export"),
        ("bench chan", "channel"),
        ("completion ", "bash zsh"),
        ("", f"{' '.join(COMMANDS)} --help --version"),
    ):
        assert press_tab(script, "paceline", *typed.split(" ")) == offered.split(), typed
    assert set(RECIPES) <= set(press_tab(script, "paceline", "train", ""))


@needs_zsh
def test_zsh_completes():
    """zsh itself leaves out words that do not begin with what was typed."""
    script = code("zsh")
    stand_ins = (
        'compdef() { :; }\ncompset() { :; }\ncompadd() { shift; print -r -- "$@"; }\n_files() { print FILES; }\n'
    )
    for typed, offered in (
        ("tr", {"train", "sweep", "--help"}),
        ("train cart", {"cartpole", "pointnav"}),
        ("train cartpole --sys", {"--system", "--ppo.epochs"}),
        ("train cartpole --system ", set(SYSTEMS)),
        ("train cartpole --system=a", set(SYSTEMS)),
        ("train cartpole --system ver --ver.ov", {"--ver.overlap"}),
        ("sweep cartpole --spa", {"--space"}),
        ("play po", {"pointnav", "pong"}),
        ("train cartpole --run-dir ", {"FILES"}),
    ):
        words = ["paceline", *typed.split(" ")]
        program = f"{stand_ins}{script}words=({' '.join(map(shlex.quote, words))}); CURRENT={len(words)}; _paceline"
        done = subprocess.run(
            [ZSH, "-f", "-c", program], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=True
        )
        assert not done.stderr and offered <= set(done.stdout.split()), typed


@needs_bash
@pytest.mark.parametrize("system", ["ddppo", "d4pg"])
def test_the_options_are_those_of_the_command(system, capsys):
    with pytest.raises(SystemExit):
        train(["pendulum", "--system", system, "--help-all"])
    lines = capsys.readouterr().out.splitlines()
    explained = {option for line in lines if re.match(r"^\W*--", line) for option in OPTION.findall(line)}
    offered = press_tab(code("bash"), "paceline", "train", "pendulum", "--system", system, "--")
    assert set(offered) == {*explained, "--help", "--help-all"}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_both_shells_understand_their_code(tmp_path, shell):
    (tmp_path / "code").write_text(code(shell))
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    subprocess.run([shell, "-n", str(tmp_path / "code")], check=True)
