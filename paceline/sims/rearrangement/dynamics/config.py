"""The options of rearrangement in MuJoCo, without MuJoCo and PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.sims.rearrangement.config import RearrangementConfig

FAMILY = "rearrange_mujoco"
TASKS = ("pick", "open_fridge", "close_fridge", "open_drawer", "close_drawer")
RENDERERS = ("mujoco", "traced")


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig(RearrangementConfig):
    """Those of the kinematic tasks, and the renderer."""

    task: ClassVar[str] = FAMILY
    choices: ClassVar = {**RearrangementConfig.choices, "renderer": RENDERERS}

    renderer: str = "mujoco"
    """What makes the depth images. "mujoco": OpenGL. "traced": rays on the CPU, as in the kinematic tasks, without
    OpenGL; objects are drawn upright."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.slide:
            raise self._error("slide", self.slide, "true; in MuJoCo friction decides")

    def kinematic(self) -> dict[str, Any]:
        """The options of the kinematic tasks, without images."""
        options = self.options()
        options.pop("renderer", None)
        return {**options, "sensors": "blind"}
