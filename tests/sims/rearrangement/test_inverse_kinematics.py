"""Inverse kinematics of the arm."""

from __future__ import annotations

import torch

from paceline.sims.rearrangement.evaluation.inverse_kinematics import hand_direction, jacobians, limits, solve
from paceline.sims.rearrangement.robot.arm import PAN, REST_ANGLES, forward_kinematics


def random_angles(count: int, seed: int = 0) -> torch.Tensor:
    low, high = limits(torch.zeros(1))
    return low + (high - low) * torch.rand(count, 7, generator=torch.Generator().manual_seed(seed))


def reachable(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tips in front of the robot that some angles reach, and the directions of the hand there."""
    arm = forward_kinematics(random_angles(count))
    is_ahead = (arm.tip[:, 0] > 0.25) & (arm.tip[:, 2] > 0.1)
    return arm.tip[is_ahead], hand_direction(arm)[is_ahead]


def starts_for(targets: torch.Tensor) -> torch.Tensor:
    start = torch.tensor([[0.0, -0.8, 0.0, 1.5, 0.0, 0.8, 0.0]]).repeat(len(targets), 1)
    start[:, PAN] = torch.atan2(targets[:, 1], targets[:, 0])
    return start


def test_the_jacobians_are_those_of_finite_differences():
    angles, small = random_angles(20).double(), 1e-6
    arm = forward_kinematics(angles)
    tip, hand = jacobians(angles, arm)
    for joint in range(7):
        moved = forward_kinematics(angles + small * torch.eye(7, dtype=torch.float64)[joint])
        torch.testing.assert_close(tip[..., joint], (moved.tip - arm.tip) / small, atol=1e-5, rtol=0)
        turned = (hand_direction(moved) - hand_direction(arm)) / small
        torch.testing.assert_close(hand[..., joint], turned, atol=1e-5, rtol=0)


def test_the_tip_is_within_two_millimetres_of_reachable_targets():
    targets, directions = reachable(300)
    arm = forward_kinematics(solve(targets, directions, starts_for(targets)))
    near = (arm.tip - targets).norm(dim=1) < 0.002
    assert len(targets) > 100
    assert near.float().mean() > 0.98
    assert ((hand_direction(arm) * directions).sum(1)[near] > 0.9).float().mean() > 0.95


def test_the_position_comes_before_the_direction():
    target = torch.tensor([[0.95, 0.0, 1.2]])  # too far for a hand that points down
    down = torch.tensor([[0.0, 0.0, -1.0]])
    arm = forward_kinematics(solve(target, down, starts_for(target)))
    assert (arm.tip - target).norm() < 0.002
    assert hand_direction(arm)[0, 2] > -0.95


def test_angles_stay_within_their_limits():
    targets = torch.randn(100, 3, generator=torch.Generator().manual_seed(1)) * 2.0
    angles = solve(targets, torch.nn.functional.normalize(-targets, dim=1), torch.tensor([REST_ANGLES]).repeat(100, 1))
    low, high = limits(angles)
    assert ((angles >= low) & (angles <= high)).all()
