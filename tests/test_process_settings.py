"""Training restores the settings of the process, however it ends."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from paceline.config import Config
from paceline.envs.memory import Memory
from paceline.errors import PacelineError, UsageError
from paceline.process_settings import be_deterministic, restored_settings
from paceline.session import train
from tests.integration.ranks import on_ranks
from tests.integration.test_d4pg import small
from tests.integration.test_training import tiny
from tests.settings import arithmetic, everything


class Failing(Memory):
    """Fails after some steps, when training has changed all settings."""

    def __init__(self, length: int = 7) -> None:
        super().__init__(length)
        self.taken = 0

    def step(self, action):
        self.taken += 1
        if self.taken > 40:
            raise ZeroDivisionError("a simulator's own mistake")
        return super().step(action)


@pytest.fixture(scope="module")
def lazy_imports(tmp_path_factory) -> None:
    """The first run imports parts of PyTorch that set variables and filters."""
    train(tiny(steps=64), tmp_path_factory.mktemp("first"))


@pytest.fixture(autouse=True)
def other_settings(lazy_imports, monkeypatch) -> Iterator[None]:
    """Settings that differ from those of training."""
    before = torch.get_num_threads(), torch.backends.mkldnn.enabled
    _set(3, True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    _set(*before)


def _set(threads: int, onednn: bool) -> None:
    torch.set_num_threads(threads)
    torch.backends.mkldnn.set_flags(_enabled=onednn, _fp32_precision=None)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)


def test_restoring_does_not_import_the_compiler():
    """It takes seconds, in which a stopped run does not end."""
    program = (
        "import sys; from paceline.process_settings import restored_settings\n"
        "with restored_settings(): pass\n"
        "assert 'torch._inductor' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(tiny(), id="deterministic"),
        pytest.param(tiny("none", deterministic=False, threads=None), id="threads chosen by the run"),
        pytest.param(tiny(deterministic=False, system="appo"), id="a thread that learns"),
        pytest.param(small(), id="d4pg"),
    ],
)
def test_training_leaves_the_process_as_it_found_it(tmp_path, config: Config):
    before = everything()
    train(dataclasses.replace(config, steps=min(config.steps, 512)), tmp_path)
    assert everything() == before


def test_training_that_fails_leaves_the_process_as_it_found_it(tmp_path):
    before = everything()
    with pytest.raises(PacelineError, match="a simulator's own mistake"):
        train(tiny(env="tests.test_process_settings:Failing"), tmp_path / "failed")
    assert everything() == before
    with pytest.raises(UsageError):
        train(tiny(env="tests.test_process_settings:Missing"), tmp_path / "refused")
    assert everything() == before


def test_what_the_user_has_set_is_there_after_training(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    before = everything()
    train(tiny(), tmp_path)
    assert everything() == before


def test_precision_that_was_set_for_one_device_is_there_after_training(tmp_path):
    """PyTorch then has no precision for all devices to ask for."""
    with restored_settings():
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        before = torch.backends.mkldnn.matmul.fp32_precision
        train(tiny(), tmp_path)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.mkldnn.matmul.fp32_precision == before != "tf32"


def test_environment_variables_of_others_are_left_alone():
    with restored_settings():
        os.environ["SOME_LIBRARYS_OWN"] = "1"
    assert os.environ.pop("SOME_LIBRARYS_OWN") == "1"


def modes_of_the_compiler() -> tuple[bool, bool, bool]:
    with restored_settings():
        be_deterministic()
        import torch._inductor.config as compiler

        inside = compiler.deterministic and torch.are_deterministic_algorithms_enabled()
    outside = compiler.deterministic or torch.are_deterministic_algorithms_enabled()
    with restored_settings():
        be_deterministic()
        again = compiler.deterministic and torch.are_deterministic_algorithms_enabled()
    return inside, outside, again


def test_a_compiler_that_is_imported_in_a_deterministic_run_is_deterministic_until_it_ends():
    assert on_ranks(1, modes_of_the_compiler) == [(True, False, True)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_training_on_a_gpu_leaves_the_process_as_it_found_it(tmp_path):
    numbers = torch.cuda.get_rng_state()
    before = arithmetic()
    train(tiny(device="cuda", deterministic=False), tmp_path)
    assert arithmetic() == before
    assert torch.equal(torch.cuda.get_rng_state(), numbers)
