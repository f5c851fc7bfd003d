"""Weights and training state that one learner hands out and another takes over in the middle of its run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from paceline.learner.protocol import Learner


def training_state(learner: Learner) -> dict[str, Any]:
    """All that another learner takes over, without the weights: optimiser, normalisers, hyper-parameters."""
    return {"agent": learner.state_dict(), "rank": learner.rank_state()}


def adopt(learner: Learner, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Replace what `learner` has learned. Call it between two updates.

    Episodes go on. Rows that the replaced weights have decided keep their probabilities, so that they weigh as rows
    of an older version of the policy do. The version therefore counts on: it never returns to an earlier one.
    """
    own = learner.policy.state_dict()
    version = {"version": own["version"] + 1} if "version" in own else {}
    episodes = copy.deepcopy(learner.rank_state())  # its tensors may be the learner's own
    learner.policy.load_state_dict({**weights, **version})
    learner.load_state_dict(state["agent"])
    learner.load_rank_state(state["rank"], own=False)
    learner.restore_episodes(episodes, np.empty(0, np.int64))
    learner.publish()
