"""Houses that many tests share, and a cache folder of the tests' own."""

import pytest
import torch

from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.scenes.episodes import SCENARIOS
from paceline.sims.rearrangement.scenes.generator import HOUSE_TIERS, generate_house


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def houses():
    """Houses of 80 seeds of each tier."""
    return {tier: [generate_house(tier, seed) for seed in range(80)] for tier in HOUSE_TIERS}


@pytest.fixture(scope="session")
def banks(houses):
    """A bank of two houses of each tier and scenario."""
    return {
        (tier, scenario): HouseBank.of_scenes(houses[tier][number::40], tier, scenario, [scenario])
        for tier in HOUSE_TIERS
        for number, scenario in enumerate(SCENARIOS)
    }


@pytest.fixture(scope="session")
def kitchens() -> HouseBank:
    """Four small houses."""
    return HouseBank.generate("small", num_scenes=4)


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """The tensors are small: on a busy machine, waiting for a second thread takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
