"""The examples, and the Python code of the documentation, run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import paceline as pl
from tests.forks import run_python, serial_pools

ROOT = Path(__file__).parent.parent


def run(arguments: list[str], folder: Path, *, measured: bool = False) -> str:
    """`measured`: choose pools as users' programs do. It takes four seconds of processor time per run."""
    prepare = None if measured else serial_pools
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run_python(*arguments, cwd=folder, env=environment, timeout=350, prepare=prepare)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_steps_of_an_own_environment(tmp_path):
    assert "steps on average" in run([str(ROOT / "examples" / "custom_environment.py")], tmp_path)


def test_training_of_an_own_environment(tmp_path):
    """The budget is twice what the corridor takes."""
    out = run([str(ROOT / "examples" / "train_own_environment.py"), "40000"], tmp_path)
    assert "an episode of 10 steps" in out


def test_episodes_of_an_own_environment_end_for_every_policy():
    walk = runpy.run_path(str(ROOT / "examples" / "train_own_environment.py"))["Walk"]()
    walk.reset()
    assert any(walk.step(0)[3] for _ in range(1000))


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


def test_memory_of_a_recurrent_policy_by_hand(tmp_path):
    out = run([str(ROOT / "examples" / "recurrent_policy.py"), "2000"], tmp_path)
    assert "return of one episode" in out and "eight environments" in out


def test_callback_that_evaluates_checkpoints(tmp_path):
    """A short run has one checkpoint, at its end."""
    out = run([str(ROOT / "examples" / "callback.py"), "2000"], tmp_path)
    *_, line = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert line["step"] >= 2000 and line["low"] <= line["mean"] <= line["high"]


def test_notebook(tmp_path):
    """Its cells are one program. The last line of a cell may be a value to show."""
    cells = json.loads((ROOT / "examples" / "first_steps.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "notebook.py").write_text("\n\n".join([*code, "print(places)"]))
    assert "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]" in run(["notebook.py"], tmp_path)


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment in which these programs are first on the path, and `paceline` is this checkout."""
    folder.mkdir()
    scripts |= {"paceline": f'exec "{sys.executable}" -m paceline "$@"'}
    scripts |= {"torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"'}
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def test_script_for_several_machines(tmp_path):
    """Two ranks on one machine."""
    environment = programs(tmp_path / "bin") | {"MACHINES": "1", "RANKS": "2", "RUN": "run"}
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(ROOT / "examples" / "two_machines.sh"), f"127.0.0.1:{port}", "cartpole"]
    command += ["--steps", "1024", "--device", "cpu", "--pool.kind", "serial", "--pool.num-envs", "4"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=350)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


def test_slurm_script_saves_and_requeues_on_its_signal(tmp_path):
    """SLURM's programs are stand-ins. srun starts one rank, and kills it at SIGTERM, as SLURM's own does. scancel sends
    the signal to the rank. scontrol writes down what it is asked for."""
    rank = tmp_path / "rank"
    environment = programs(
        tmp_path / "bin",
        srun=f'"$@" & echo $! > {rank}; trap "kill -KILL $!" TERM; wait $!',
        scancel=f'[ "$*" = "--signal=TERM 7.0" ] && kill -TERM $(cat {rank})',
        scontrol=f'echo "$@" >> {tmp_path}/asked; [ "$1" = requeue ] || echo node',
    )
    environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node"}
    command = [str(ROOT / "examples" / "slurm.sh"), "cartpole", "--device", "cpu", "--pool.kind", "serial"]
    command += ["--steps", "100000000"]
    job = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    run_folder = tmp_path / "runs" / "slurm-7"
    try:
        for _ in range(1500):  # the first report shows that it trains
            if (run_folder / "metrics.jsonl").exists() or job.poll() is not None:
                break
            time.sleep(0.1)
        job.send_signal(signal.SIGUSR1)
        job.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    assert (tmp_path / "asked").read_text().splitlines() == ["show hostnames node", "requeue 7"]
    assert (run_folder / "checkpoints" / "latest").exists()


def test_training_has_no_handler_of_the_signal_of_the_slurm_script(tmp_path):
    """docs/ranks.md says so."""
    seen = []

    class Look(pl.Callback):
        def on_update(self, session):
            seen.append(signal.getsignal(signal.SIGUSR1))

    pl.train(
        env="gym:CartPole-v1",
        folder=tmp_path / "run",
        steps=64,
        rollout_steps=32,
        device="cpu",
        pool={"kind": "serial", "num_envs": 2},
        callbacks=[Look()],
    )
    assert seen and set(seen) == {signal.SIG_DFL}


def blocks(page: Path) -> list[str]:
    """The Python code of a page. Blocks marked `py`, not `python`, are code of other libraries (see
    test_moving.py)."""
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


SHORTENED = {"python.md": r"(?<=\"cartpole\", steps=)[\d_]+"}
"""Which numbers of steps are smaller in tests. Without an entry, all."""


def shorter(steps: re.Match[str]) -> str:
    return str(min(int(steps[0]) // 8, 2000))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_the_documentation(tmp_path, page):
    """All blocks of a page are one program. Its runs are shorter than on the page, except where results are checked."""
    program = "\n\n".join([BEFORE.get(str(page.relative_to(ROOT)), ""), *blocks(page)])
    program = re.sub(SHORTENED.get(page.name, r"(?<=\bsteps=)[\d_]+"), shorter, program)
    (tmp_path / "page.py").write_text(program)
    printed = run(["page.py"], tmp_path, measured=page.name == "first_run.md").splitlines()
    if page.name == "python.md":
        folder_and_return, evaluated, lengths, stopped, session = printed
        assert folder_and_return.startswith(f"{tmp_path}/runs/cartpole-") and " to " in evaluated
        assert all(float(number) >= 10 for number in lengths.split()), "the corridor is ten steps long"
        assert int(stopped) < 200_000 and int(session.split()[0]) >= 8_000
