"""`paceline eval`: play episodes with a trained policy or a baseline."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from paceline.errors import UsageError


@dataclass(frozen=True)
class Eval:
    """Play whole episodes with the policy of a run, or with a baseline of PointGoal navigation, and say how well it
    does."""

    run_folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """The folder of a run."""
    agent: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Instead of a run, a baseline: oracle, random, forward, goal-follower or map-and-plan."""
    episodes: int | None = None
    """How many episodes count: 100, spread evenly over the slots; of pointnav, all that the split has."""
    split: Annotated[str | None, tyro.conf.arg(metavar="train|val|test")] = None
    """Of pointnav, whose scenes to play in; val by default."""
    samples: int = 1
    """Of pointnav with --sampled, how many times each episode is played."""
    checkpoint: str = "latest"
    """latest, best or step_N."""
    sampled: bool = False
    """Sample actions, as in training, instead of taking the likeliest."""
    seed: int = 1_000_000
    """Of the environments (pointnav has fixed episodes instead), and of sampled actions."""
    num_envs: int | None = None
    """Environments at a time; by default as many as in training (of pointnav, 256 or more), but no more than
    episodes."""
    env: str | None = None
    """Play in this environment instead of that of training. It is for options that only training should have: after
    atari:Breakout?episodic_life=true, whole games for their own score are atari:Breakout?clip_rewards=false. With
    --agent: pointnav, pointnav:small or pointnav:full, with options."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="PATH.mp4|PATH.gif")] = None
    """Also film one episode."""
    json: bool = False
    """Print one JSON object instead of a table."""
    trust: bool = False
    """Run the code that the run's folder names, even though this user did not write it (see SECURITY.md)."""

    def run(self) -> None:
        from paceline.evaluation import evaluate
        from paceline.sims.navigation import evaluation as navigation

        # What environments print, and what is printed as they are imported, is no part of the result.
        with contextlib.redirect_stdout(sys.stderr):
            report = self._evaluate()
        if self.json:
            print(json.dumps(report, allow_nan=False))
        else:
            Console().print((navigation if "spl" in report else evaluate).for_people(report))

    def _evaluate(self) -> dict[str, Any]:
        from paceline.config import Config
        from paceline.evaluation import evaluate
        from paceline.sims.navigation import evaluation as navigation

        common: dict[str, Any] = {"seed": self.seed, "num_envs": self.num_envs}
        if self.run_folder is None or self.agent is not None:
            agent = self._only_agent()
            env = self.env or "pointnav"
            return navigation.evaluate_baseline(agent, env=env, split=self.split, episodes=self.episodes, **common)
        common |= {"checkpoint": self.checkpoint, "sampled": self.sampled, "env": self.env, "video": self.video}
        config = self.run_folder / "config.json"
        env = self.env or (Config.load(config).env if config.is_file() else "")
        if env and navigation.is_navigation(env):
            return navigation.evaluate_policy(
                self.run_folder,
                split=self.split,
                episodes=self.episodes,
                samples=self.samples,
                trust=self.trust,
                **common,
            )
        if self.split is not None or self.samples != 1:
            option = "--split" if self.split is not None else "--samples"
            raise UsageError(
                f"{option} is for PointGoal navigation (pointnav), and {env or self.run_folder} is not that"
            )
        episodes = 100 if self.episodes is None else self.episodes
        return evaluate.evaluate(self.run_folder, episodes=episodes, trust=self.trust, **common)

    def _only_agent(self) -> str:
        """The baseline's name, if nothing is asked for that only a policy can do."""
        if self.agent is None or self.run_folder is not None:
            raise UsageError("whom to evaluate? allowed: the folder of a RUN, or --agent NAME, and not both")
        if self.sampled or self.samples != 1 or self.video is not None:
            raise UsageError("--sampled, --samples and --video are for the policy of a RUN, not for --agent")
        return self.agent
