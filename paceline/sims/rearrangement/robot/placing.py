"""`placed_arm`: arms in the world, by tensors on a CPU and by a kernel on a GPU.

Legend: N robots.
"""

from __future__ import annotations

from torch import Tensor

from paceline.sims.rearrangement.robot.arm import Arm, forward_kinematics


def placed_arm(angles: Tensor, poses: Tensor) -> Arm:
    """The arm in the world, for joint `angles` [N, 7] of robots at `poses` [N, 3] (x, y, heading)."""
    if angles.is_cuda:
        # Imported here, because Triton is installed only with CUDA.
        from paceline.sims.rearrangement.robot import arm_triton

        return arm_triton.placed_arm(angles, poses)
    return forward_kinematics(angles).placed(poses)
