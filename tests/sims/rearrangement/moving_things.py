"""Random moving boxes and arms in front of cameras, and static scenes made by hand."""

import torch

from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.scene import CEILING
from paceline.sims.rearrangement.rendering.candidates import StaticBoxes
from paceline.sims.rearrangement.rendering.head import camera_poses
from tests.sims.navigation.rooms import divided_room, room

KITCHEN = (
    (0.0, 3.2, 2.4, 4.0, 0.0, 0.9),  # a counter
    (0.0, 3.6, 2.4, 4.0, 1.4, 2.1),  # a cupboard above it
    (4.2, 1.2, 5.4, 2.0, 0.7, 0.75),  # a table top
    (4.2, 1.2, 4.25, 1.25, 0.0, 0.7),
    (2.9, 0.0, 3.0, 1.0, 2.05, CEILING),  # a lintel
)
FAR_AWAY = (1e6, 1e6, 0.0, 0.0, 0.0, 0.0, 0.0)


def static_boxes(device="cpu"):
    """Three scenes: a kitchen, a divided room, and a larger empty one."""
    bank = SceneBank.of_scenes([room(boxes=KITCHEN), divided_room(), room(9.0, 7.0)], "small").to(device)
    return bank, StaticBoxes.of(bank)


def random_views(count, seed=0, num_boxes=24, num_links=4):
    """Random scenes [N], poses of cameras [N, 3], boxes [N, D, 7] and capsules [N, L, 7]. Some boxes are padding."""
    rng = torch.Generator().manual_seed(seed)

    def uniform(*shape, low=0.0, high=1.0):
        return low + (high - low) * torch.rand(*shape, generator=rng)

    scenes = torch.randint(3, (count,), generator=rng)
    bases = torch.cat((uniform(count, 1, low=0.5, high=5.5), uniform(count, 1, low=0.5, high=3.5)), 1)
    bases = torch.cat((bases, uniform(count, 1, low=-4.0, high=4.0)), 1)
    middle = torch.cat((uniform(count, num_boxes, 1, high=6.0), uniform(count, num_boxes, 1, high=4.0)), 2)
    size = uniform(count, num_boxes, 3, low=0.02, high=0.3)
    heights, yaw = uniform(count, num_boxes, 1, low=0.1, high=1.8), uniform(count, num_boxes, 1, low=-7.0, high=7.0)
    boxes = torch.cat((middle, heights, size, yaw), 2)
    boxes[:, num_boxes - num_boxes // 4 :] = torch.tensor(FAR_AWAY)
    return scenes, camera_poses(bases), boxes, arms(bases, uniform, num_links)


def arms(bases, uniform, num_links):
    """Chains of capsules that begin at a robot's shoulder, some of them behind the camera."""
    count, links = len(bases), []
    joint = torch.cat((bases[:, :2], torch.full((count, 1), 0.9)), 1)
    for _ in range(num_links):
        turn, lift = bases[:, 2] + uniform(count, low=-1.2, high=1.2), uniform(count, low=-1.0, high=1.0)
        way = torch.stack((turn.cos() * lift.cos(), turn.sin() * lift.cos(), lift.sin()), 1)
        end = joint + uniform(count, 1, low=0.2, high=0.5) * way
        links.append(torch.cat((joint, end, uniform(count, 1, low=0.03, high=0.08)), 1))
        joint = end
    return torch.stack(links, 1) if links else torch.zeros(count, 0, 7)
