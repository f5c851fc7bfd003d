"""Pages for users of other libraries name arguments that those libraries have, as far as they are installed here."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

MOVING = Path(__file__).parent.parent / "docs" / "moving"


def first_cells(page: str, heading: str) -> list[str]:
    """The first column of the table under a heading."""
    table = (MOVING / page).read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]


def test_arguments_of_stable_baselines3():
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    known = {name for call in (PPO, PPO.learn, make_vec_env) for name in inspect.signature(call).parameters}
    named = {name for cell in first_cells("sb3.md", "Arguments of PPO") for name in re.findall(r"`([a-z_]+)`", cell)}
    assert len(named) > 15 and named - known == {"learn"}


def test_settings_of_rllib():
    """Its source is read and not imported, which takes long."""
    ray = importlib.util.find_spec("ray")
    if ray is None or ray.origin is None:
        pytest.skip("Ray is not installed")
    algorithms = Path(ray.origin).parent / "rllib" / "algorithms"
    known: dict[str, set[str]] = {}
    for file in (algorithms / "algorithm_config.py", algorithms / "ppo" / "ppo.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
                known[node.name] = known.get(node.name, set()) | names
    named = [call for cell in first_cells("rllib.md", "Settings") for call in re.findall(r"`(\w+)\(([^)`]*)\)", cell)]
    assert len(named) > 10
    for method, arguments in named:
        assert set(re.findall(r"\w+", arguments)) <= known[method], method
