"""Banks that many tests share, and a cache folder of the tests' own."""

import pytest
import torch

from paceline.sims.navigation.scenes.bank_cache import load_or_generate
from tests.sims.shared_cache import shared_cache


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    with shared_cache(tmp_path_factory):
        yield


@pytest.fixture(scope="session")
def small_bank():
    return load_or_generate("small", "val", 12)


@pytest.fixture(scope="session")
def full_bank():
    return load_or_generate("full", "val", 8)


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """The tensors are small: on a busy machine, waiting for a second thread takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
