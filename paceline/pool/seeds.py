"""Seeds of environments, independent of how they are spread over processes."""

from __future__ import annotations

import numpy as np


def env_seed(seed: int, env: int, incarnation: int = 0) -> int:
    """The seed of environment `env` under the pool's `seed`; a replacement gets another than what it replaces.

    31 bits, which is what the narrowest simulators take.
    """
    return int(np.random.SeedSequence((seed, env, incarnation)).generate_state(1)[0]) >> 1
