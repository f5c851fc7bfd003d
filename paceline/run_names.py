"""Names of new run folders."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

from paceline.config import Config
from paceline.distributed.rank_info import RankInfo
from paceline.errors import UsageError


def new_run_folder(config: Config, label: str | None = None) -> Path:
    """A folder in runs/ for a new run, named after `label`, by default the recipe or the environment."""
    if RankInfo.find().size > 1:
        raise UsageError("several ranks share one folder; allowed: a --run-dir that all ranks have")
    name = label or config.recipe.rpartition(":")[2] or name_of(config.env)
    first = Path("runs") / f"{name}-{config.system}-{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([first], others) if not folder.exists())


def name_of(env: str) -> str:
    """The name of an environment as a part of a file name: gym-CartPole-v1, or MyEnv for the user's own."""
    address = env.partition("?")[0]
    family, _, name = address.partition(":")
    is_own = name and ("." in family or "/" in family)
    return re.sub(r"[^\w.-]+", "-", name if is_own else address).strip("-")
