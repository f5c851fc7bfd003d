"""`paceline doctor` says what is missing, and what to do about it."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.cli import doctor
from paceline.cli.doctor import Doctor


def found(look):
    return {finding.what: finding for finding in look()}


def test_it_prints_a_table_and_json(capsys):
    Doctor().run()
    text = capsys.readouterr().out
    assert "Paceline" in text and "shared memory" in text and "extra atari" in text
    Doctor(json=True).run()
    findings = json.loads(capsys.readouterr().out)
    assert {"what", "found", "advice"} == findings[0].keys()


def test_every_extra_is_looked_at():
    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(doctor.EXTRAS) == set(extras["optional-dependencies"]) - {"dev", "docs", "envs"}


def test_a_missing_extra_is_named_with_its_command(monkeypatch):
    for package in ("cv2", "pygame"):
        monkeypatch.setitem(sys.modules, package, None)
    video = found(doctor.extras)["extra video"]
    assert video.found == "without cv2, pygame" and video.advice == "pip install 'paceline[video]'"


def test_little_shared_memory_and_few_files_get_advice(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**26, total=2**26))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    seen = found(doctor.memory)
    assert "--shm-size" in seen["shared memory"].advice and "ulimit -n" in seen["open files"].advice


def test_a_container_with_fewer_cores_gets_advice(monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert doctor._quota(str(tmp_path / "cpu.max")) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert doctor._quota(str(tmp_path / "cpu.max")) is None and doctor._quota(str(tmp_path / "none")) is None
    monkeypatch.setattr(doctor, "_quota", lambda: 0.5)
    assert "0.5 cores" in found(doctor.processor)["processor"].advice


@pytest.mark.parametrize(("built", "advice"), [(None, "built without CUDA"), ("13.0", "cannot use the driver")])
def test_a_gpu_that_pytorch_does_not_see_gets_advice(monkeypatch, built, advice):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert advice in found(doctor.gpus)["GPU"].advice


def test_threads_that_wait_actively_get_advice(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "unset" in found(doctor.processor)["OMP_WAIT_POLICY"].advice
