"""The evaluation of ImageGoal navigation: PointNav's measures, and baselines that need no goal or know the map."""

from __future__ import annotations

from dataclasses import replace

from paceline.sims.navigation.evaluation.baselines import RandomStops
from paceline.sims.navigation.evaluation.evaluator import evaluator_of_task
from paceline.sims.navigation.evaluation.oracle import Oracle
from paceline.sims.navigation.evaluation.pointnav import EVALUATION as POINTNAV
from paceline.sims.navigation.evaluation.task_evaluation import Baseline

EVALUATION = replace(
    POINTNAV,
    task="imagenav",
    baselines={"random": Baseline(RandomStops), "oracle": Baseline(Oracle)},
    in_report={"random": "random walk", "oracle": "oracle"},
    about_baselines="The baselines play the same episodes; the oracle knows the map.",
    planners={"oracle": "oracle"},
    about_planners="",
)
EVALUATOR = evaluator_of_task(EVALUATION)
