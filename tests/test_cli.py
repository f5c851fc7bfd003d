"""The command line as a user meets it: output, help, errors and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from paceline.bench import run_benchmark
from paceline.errors import MissingExtra

BENCHMARKS = [
    "accelerations",
    "channel",
    "d4pg_ablation",
    "efficiency",
    "finite_checks",
    "halfcheetah",
    "learner_apart",
    "pointnav",
    "pool",
    "ppo",
    "publication",
    "scaling",
    "soak",
    "stragglers",
    "throughput",
    "updates",
]


def paceline(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "paceline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def test_help_explains_every_command():
    done = paceline("--help")
    assert done.returncode == 0
    for word in ("envs", "bench", "Exit codes"):
        assert word in done.stdout
    assert "--quick" in paceline("bench", "--help").stdout


def test_version():
    assert paceline("--version").stdout.startswith("paceline ")


def test_envs_lists_families_names_and_one_environment():
    families = paceline("envs")
    assert families.returncode == 0
    for family in ("gym", "atari", "doom", "dmc", "pettingzoo", "envpool", "tensor", "synthetic"):
        assert family in families.stdout
    assert "gym:CartPole-v1" in paceline("envs", "gym").stdout.splitlines()
    one = paceline("envs", "gym:CartPole-v1")
    assert "float32 [4]" in one.stdout and "Discrete(2)" in one.stdout and "µs" in one.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "envs"),
        (["envs", "gym:CartPole-v77"], "did you mean"),
        (["envs", "nonsense:CartPole"], "allowed: gym"),
        (["envs", "synthetic:constant?speed=3"], "allowed:"),
        (["bench", "nonsense"], f"allowed: {', '.join(BENCHMARKS)}"),
        (["bench", "channel", "--json", "/no/such/folder/file.json"], "does not exist"),
        (["bench", "channel", "--slow"], "Unrecognized"),
    ],
)
def test_bad_usage_exits_2_and_says_what_is_allowed(arguments, message):
    done = paceline(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_benchmarks_are_listed():
    names = [line.split()[0] for line in paceline("bench").stdout.splitlines()]
    assert names == BENCHMARKS


def test_what_a_benchmark_lacks_is_said_before_it_begins(monkeypatch):
    for name in ("benchmarks.learning", "benchmarks.efficiency"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingExtra, match="bench"):
        run_benchmark("efficiency", quick=True, json_path=None)


def test_quick_benchmark_prints_machine_command_and_table_and_writes_json(tmp_path):
    pytest.importorskip("faster_fifo")
    path = tmp_path / "channel.json"
    done = paceline("bench", "channel", "--quick", "--json", str(path))
    assert done.returncode == 0, done.stderr
    for word in ("machine", "versions", "command", "| channel"):
        assert word in done.stdout
    results = json.loads(path.read_text())
    assert set(results["microseconds"]) == {"pipe", "faster-fifo"}


def test_the_command_line_starts_without_pytorch():
    """`--help` and `envs` must not cost the seconds that importing PyTorch takes."""
    code = "import sys, paceline.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
