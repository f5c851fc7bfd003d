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


def blocks(page: Path) -> list[str]:
    """The Python code of a page. Blocks marked `py`, not `python`, are code of other libraries."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


BEFORE = {
    "README.md": "import gymnasium as gym\nMyEnv, observation = lambda: gym.make('CartPole-v1'), [0.0] * 4",
    "docs/floor_plans.md": (
        "import os, subprocess, sys\nos.mkdir('home')\n"
        "subprocess.run([sys.executable, *'-m paceline plan export flat home/flat.json'.split()], check=True)"
    ),
}
"""What the code of a page takes for granted."""
PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_the_documentation(tmp_path, page):
    """All blocks of a page are one program. Its runs are shorter than on the page, except where results are checked."""
    program = "\n\n".join([BEFORE.get(str(page.relative_to(ROOT)), ""), *blocks(page)])
    if page.name != "python.md":
        program = re.sub(r"(?<=\bsteps=)[\d_]+", lambda steps: str(int(steps[0]) // 8), program)
    (tmp_path / "page.py").write_text(program)
    printed = run(["page.py"], tmp_path).splitlines()
    if page.name == "python.md":
        folder_and_return, evaluated, lengths, stopped, session = printed
        assert folder_and_return.startswith("runs/cartpole-") and " to " in evaluated
        assert all(float(number) >= 10 for number in lengths.split()), "the corridor is ten steps long"
        assert int(stopped) < 200_000 and int(session.split()[0]) >= 8_000


def test_code_of_other_libraries_is_python():
    found = [
        code
        for page in sorted((ROOT / "docs" / "moving").glob("*.md"))
        for code in re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    assert len(found) >= 5
    for code in found:
        compile(code, "page", "exec")
