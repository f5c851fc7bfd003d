"""Robots among the things of real houses, in random and often impossible states."""

import torch

from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.physics.world import State, World, arm_of, is_object, moving_boxes
from paceline.sims.rearrangement.robot.arm import LIMITS
from paceline.sims.rearrangement.simulator import Rearrangement


def random_states(bank, num, seed=0, task="pick") -> tuple[World, State]:
    """Arms anywhere, doors and drawers half open, objects in them, and all kinds of things in the hands."""
    config = RearrangementConfig(tier=bank.tier, scenario=bank.scenario, resolution=8)
    simulator = Rearrangement(num, "cpu", task, config, bank=bank)
    simulator.reset(seed)
    world, state = simulator.world(), simulator.stream.state
    rng = torch.Generator().manual_seed(seed)

    def happens(share, *shape):
        return torch.rand(num, *shape, generator=rng) < share

    low, high = torch.tensor(LIMITS).unbind(1)
    anywhere = low + (high - low) * torch.rand(num, 7, generator=rng)
    close = state.angles + 0.5 * torch.randn(num, 7, generator=rng)
    joints, objects = world.joints.shape[1], state.objects.shape[1]
    values = torch.rand(num, joints, generator=rng) * world.joints[..., 5] * happens(0.6, joints)
    grasp = 0.05 * torch.randn(num, 4, generator=rng)
    grasp[:, 1] += 5.0 * happens(0.7)  # most handles are near enough
    pose = state.pose.clone()
    beside = world.handles[:, 1, :2] + 0.5 * torch.randn(num, 2, generator=rng)
    pose[:, :2] = torch.where(happens(0.5, 1), beside, pose[:, :2])
    state = state._replace(
        pose=pose,
        angles=torch.where(happens(0.7, 1), close, anywhere),
        values=values,
        held=torch.arange(num) % (objects + joints + 1) - 1,
        grasp=grasp,
        object_joint=torch.randint(-1, joints, (num, objects), generator=rng),
    )
    places = state.objects.clone()
    which = torch.randint(0, world.moving.shape[1], (num,), generator=rng)
    inside = moving_boxes(world, values)[torch.arange(num), which, :3]
    places[:, 3, :3] = inside + 0.05 * torch.randn(num, 3, generator=rng)
    holds = is_object(state.held, objects)
    places[holds, state.held[holds], :3] = arm_of(state).tip[holds]
    return world, state._replace(objects=places)


def on(device, parts):
    return type(parts)(*(part.to(device) for part in parts))
