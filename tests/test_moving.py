"""Pages for users of other libraries name arguments that those libraries have, as far as they are installed here.

The code of Stable-Baselines3 and RLlib runs. The commands of three libraries do not, because these cannot be installed
beside Paceline: CleanRL's package is older than the flags of its `ppo.py`, Sample Factory 2.1.1 needs NumPy 1, and
habitat-baselines needs habitat-lab, which needs NumPy 1, and habitat-sim, which is not on PyPI.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.collect.remote_access import LOCAL_ONLY
from tests.integration.test_lifecycle import await_end

MOVING = Path(__file__).parent.parent / "docs" / "moving"


def code(page: str) -> str:
    """The code of the other library on a page, as one program."""
    return "\n\n".join(re.findall(r"^```py\n(.*?)^```", (MOVING / page).read_text(), re.DOTALL | re.MULTILINE))


def first_cells(page: str, heading: str) -> list[str]:
    """The first column of the table under a heading."""
    table = (MOVING / page).read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("page", ["sb3.md", "rllib.md"])
def test_code_of_other_libraries_is_python(page):
    """Also where the library is not installed."""
    assert code(page)
    compile(code(page), page, "exec")


def test_arguments_of_stable_baselines3():
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    known = {name for call in (PPO, PPO.learn, make_vec_env) for name in inspect.signature(call).parameters}
    named = {name for cell in first_cells("sb3.md", "Arguments of PPO") for name in re.findall(r"`([a-z_]+)`", cell)}
    assert len(named) > 15 and named - known == {"learn"}


def replaced(program: str, numbers: dict[str, str]) -> str:
    for number, less in numbers.items():
        assert number in program
        program = program.replace(number, less)
    return program


SHORTER = {
    "n_envs=8": "n_envs=2",
    "n_steps=128, batch_size=256": "n_steps=16, batch_size=32",
    "total_timesteps=8_192": "total_timesteps=64",
    "n_eval_episodes=10": "n_eval_episodes=1",
    "self.num_timesteps < 4_000": "self.num_timesteps < 40",
}


def test_code_of_stable_baselines3_runs(tmp_path, monkeypatch):
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # it logs to a folder of its own
    names: dict[str, Any] = {}
    exec(replaced(code("sb3.md"), SHORTER), names)
    assert (tmp_path / "cartpole.zip").is_file() and names["action"] in (0, 1)
    assert names["model"].num_timesteps == 40, "the callback has stopped it"


def methods_of_rllib() -> dict[str, set[str]]:
    """The arguments of the methods of its configurations. Its source is read and not imported, which takes long."""
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
    return known


def test_settings_of_rllib():
    known = methods_of_rllib()
    named = [call for cell in first_cells("rllib.md", "Settings") for call in re.findall(r"`(\w+)\(([^)`]*)\)", cell)]
    assert len(named) > 10
    for method, arguments in named:
        assert set(re.findall(r"\w+", arguments)) <= known[method], method


def test_an_algorithm_of_rllib_is_stopped_before_the_next():
    """Otherwise the next one may wait for its processors for ever."""
    first, restored = code("rllib.md").split("Algorithm.from_checkpoint(path)")
    assert first.count("build_algo()") == first.count("algorithm.stop()") == restored.count("algorithm.stop()") == 1


def test_code_of_rllib_calls_methods_with_arguments_that_they_have():
    known = methods_of_rllib()
    calls = [node for node in ast.walk(ast.parse(code("rllib.md"))) if isinstance(node, ast.Call)]
    named = {call.func.attr: {str(word.arg) for word in call.keywords} for call in calls if hasattr(call.func, "attr")}
    configured = {method: arguments for method, arguments in named.items() if arguments and method in known}
    assert configured.keys() == {"env_runners", "training"} and "build_algo" in known
    assert all(arguments <= known[method] for method, arguments in configured.items())


SHORTER_RLLIB = {
    "range(8)": "range(2)",
    "num_env_runners=2": "num_env_runners=0",  # in the same process: to import RLlib takes ten seconds in each
    "train_batch_size_per_learner=1024, minibatch_size=256": "train_batch_size_per_learner=256, minibatch_size=64",
}
RLLIB_NEEDS = ("ray", "pandas", "pyarrow", "pydantic", "tree", "scipy")
IN_A_CLUSTER_OF_ITS_OWN = """
import json, runpy, sys
import psutil, ray

ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
try:
    names = runpy.run_path("page.py")
finally:
    started = [process.pid for process in psutil.Process().children(recursive=True)]
    ray.shutdown()
print(json.dumps([names["action"], names["result"]["training_iteration"], started]))
"""


def output_of(command: list[str], folder: Path, seconds: float) -> str:
    """What a program prints. All processes that it has started end with it, if it does not end in time."""
    own = {"HOME": str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", LOCAL_ONLY: "0"}
    with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | own, stdout=out, stderr=err)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        assert process.wait() == 0, (folder / "err").read_text()
    return (folder / "out").read_text()


@pytest.mark.timeout(1200)
def test_code_of_rllib_runs(tmp_path):
    """It takes half a minute, most of it to import RLlib."""
    for package in RLLIB_NEEDS:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    (tmp_path / "page.py").write_text(replaced(code("rllib.md"), SHORTER_RLLIB))
    # Not below `tmp_path`: the names of Ray's sockets would be too long.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        printed = output_of([sys.executable, "-c", IN_A_CLUSTER_OF_ITS_OWN, folder], tmp_path, seconds=1000)
        action, iterations, started = json.loads(printed.splitlines()[-1])
        assert len(started) > 2 and await_end(started) == []
    assert action in (0, 1) and iterations == 3, "one after two that were restored"
