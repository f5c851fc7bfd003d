"""The examples, and the Python code of the documentation, run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(arguments: list[str], folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_steps_of_an_own_environment(tmp_path):
    assert "steps on average" in run([str(ROOT / "examples" / "custom_environment.py")], tmp_path)


def test_training_of_an_own_environment(tmp_path):
    """The budget is twice what the corridor takes."""
    out = run([str(ROOT / "examples" / "train_own_environment.py"), "40000"], tmp_path)
    assert "10 steps to the end of the corridor" in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_policy", r"TracePolicy: return [\d.]+ "),
        ("own_auxiliary_loss", r"auxiliary_loss from [\d.e-]+ to [\d.e-]+ in \d+ steps"),
        ("own_loss_term", r"term_loss [\d.e-]+, return"),
        ("own_schedule", r"last learning rate [\d.e-]+, return"),
    ],
)
def test_parts_of_ones_own(tmp_path, name, said):
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) < 60
    assert re.search(said, run([str(path), "2000"], tmp_path))


def test_training_in_an_own_vector_environment(tmp_path):
    """A policy that does nothing returns about 20."""
    out = run([str(ROOT / "examples" / "train_vector_environment.py"), "30000"], tmp_path)
    assert float(re.findall(r"return (\S+) ", out)[0]) > 25
    assert len((ROOT / "examples" / "train_vector_environment.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("page", ["python.md"])
def test_python_of_the_documentation(tmp_path, page):
    """All blocks of a page are one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    (tmp_path / "page.py").write_text("\n\n".join(blocks))
    folder_and_return, evaluated, lengths, stopped, session = run(["page.py"], tmp_path).splitlines()
    assert folder_and_return.startswith("runs/cartpole-") and " to " in evaluated
    assert all(float(number) >= 10 for number in lengths.split()), "the corridor is ten steps long"
    assert int(stopped) < 200_000 and int(session.split()[0]) >= 8_000
