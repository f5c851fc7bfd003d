"""Forked programs behave as new interpreters do."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.forks import run_paceline, run_python, serial_pools

PROGRAM = """
import os, sys
print(sys.argv, __name__, os.getcwd(), os.environ["SOME"], sys.path[0], sys.stdout.isatty())
print("warned", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def test_output_folder_variables_and_exit_code(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_python("program.py", 7, cwd=tmp_path, env=os.environ | {"SOME": "thing"})
    assert done.returncode == 7 and done.stderr == "warned\n"
    assert done.stdout == f"['program.py', '7'] __main__ {tmp_path} thing {tmp_path} False\n"


def test_an_exception_ends_the_program_with_a_traceback(tmp_path):
    (tmp_path / "program.py").write_text("1 / 0")
    done = run_python("program.py", cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" in done.stderr and "ZeroDivisionError" in done.stderr


def test_pools_of_no_particular_kind_can_be_serial(tmp_path):
    program = "from paceline.pool import PoolConfig, make_pool\n"
    program += "for kind in ('auto', 'process'):\n"
    program += "    with make_pool('gym:CartPole-v1', PoolConfig(kind=kind, num_envs=1)) as pool:\n"
    program += "        print(type(pool).__name__)"
    (tmp_path / "program.py").write_text(program)
    done = run_python("program.py", cwd=tmp_path, prepare=serial_pools)
    assert done.stdout.split() == ["SerialPool", "ProcessPool"], done.stderr


def test_a_program_that_takes_too_long_is_killed(tmp_path):
    (tmp_path / "program.py").write_text("import time\ntime.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        run_python("program.py", cwd=tmp_path, timeout=0.1)


def test_the_command_line():
    done = run_paceline("nonsense")
    assert done.returncode == 2 and done.stderr.startswith("paceline: command 'nonsense' does not exist")
    assert run_paceline("--version").stdout.startswith("paceline ")
