"""Small trained policies that are part of the package. `paceline play` shows them.

The folder of a policy has its weights (safetensors), `config.json`, `spaces.json` and `about.json`. Loading it runs no
code from these files. `python -m paceline.pretrained.make NAME` trains one again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UsageError, closest

HOME = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class PretrainedPolicy:
    """A policy and how it is made and shown."""

    about: str
    """One line for the list."""
    train: tuple[str, ...]
    """Arguments of the `paceline train` that made it."""
    episodes: int
    """Episodes or matches of `paceline play`, so that it takes seconds."""
    opponent: str | None = None
    """The opponent in a game for two players, written as for `paceline eval --opponent`."""
    opponent_in_words: str = ""


POLICIES = {
    "pointnav": PretrainedPolicy(
        about="walk to a point in flats that it has never seen, from a depth camera",
        train=("pointnav-small", "--seed", "1", "--ranks", "2"),
        episodes=20,
    ),
    "cartpole": PretrainedPolicy(
        about="balance a pole on a cart (Gymnasium's CartPole-v1)", train=("cartpole", "--seed", "1"), episodes=20
    ),
    "pendulum": PretrainedPolicy(
        about="swing a pendulum up and hold it, with continuous actions (Gymnasium's Pendulum-v1)",
        train=("pendulum", "--seed", "1", "--seconds", "300"),
        episodes=20,
    ),
    "pong": PretrainedPolicy(
        about="Pong for two, learned by playing against itself; it meets a scripted opponent",
        train=("duel-selfplay", "--seed", "1", "--seconds", "300"),
        episodes=40,
        opponent="paceline.envs.pong_opponents:TrackerOpponent",
        opponent_in_words="a scripted opponent that follows the ball",
    ),
}


def find_policy(name: str) -> tuple[PretrainedPolicy, Path]:
    """A policy by its name, and its folder."""
    if name not in POLICIES:
        allowed = ", ".join(POLICIES)
        raise UsageError(f"pretrained policy {name!r} does not exist{closest(name, POLICIES)}; allowed: {allowed}")
    return POLICIES[name], HOME / name


def folder_of(run: Path) -> Path:
    """The folder of a run; for the name of a pretrained policy, the folder of that policy. A folder of this name in the
    current folder goes first."""
    return HOME / run.name if not run.exists() and str(run) in POLICIES else run


def is_pretrained(run: Path) -> bool:
    """Whether `run` is the name or the folder of a pretrained policy."""
    return folder_of(run).resolve().parent == HOME.resolve()
