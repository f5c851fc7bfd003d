"""Houses that many tests share, and a cache folder of the tests' own."""

import pytest
import torch

from paceline.sims.navigation.scenes.bank_cache import load_or_make
from paceline.sims.rearrangement.scenes.bank import HouseBank, load_or_generate_houses
from paceline.sims.rearrangement.scenes.episodes import SCENARIOS
from paceline.sims.rearrangement.scenes.generator import HOUSE_TIERS, generate_house
from tests.sims.shared_cache import shared_cache


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    with shared_cache(tmp_path_factory):
        yield


@pytest.fixture(scope="session")
def houses():
    """Houses of 40 seeds of each tier."""
    return {tier: [generate_house(tier, seed) for seed in range(40)] for tier in HOUSE_TIERS}


class Banks(dict):
    """Banks of two houses of each tier and scenario. A bank is made when it is asked for."""

    def __missing__(self, key: tuple[str, str]) -> HouseBank:
        tier, scenario = key
        number = list(SCENARIOS).index(scenario)

        def make() -> HouseBank:
            return HouseBank.of_seeds([number, number + 40], tier, "custom", [scenario])

        self[key] = load_or_make(HouseBank, f"tests-{tier}-{scenario}", "houses of the tests", make)
        return self[key]


@pytest.fixture(scope="session")
def banks() -> Banks:
    return Banks()


@pytest.fixture(scope="session")
def kitchens() -> HouseBank:
    """Four small houses."""
    return load_or_generate_houses("small", num_scenes=4)


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """The tensors are small: on a busy machine, waiting for a second thread takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
