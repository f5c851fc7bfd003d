"""Trains the image encoders of a navigation recipe by supervision, and writes them as a run for `--init-from`.

    python -m benchmarks.supervised_encoder pointnav --run-dir runs/supervised
    paceline train RECIPE --init-from runs/supervised --init encoder --freeze encoder

It stands in for the encoder that was trained on ImageNet in section 6 of DD-PPO: it knows what is where in single
images, and nothing about acting. The labels are the simulator's own. For each of 8 x 8 places in the image, the encoder
learns whether a wall, furniture, the floor or the ceiling is seen there. Images are seen from random places: an agent
with random actions stops, and so begins anew elsewhere, every few steps.

Legend: N images, G places along a side of the image.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional

from paceline import recipes
from paceline.checkpoint import CheckpointFolder
from paceline.checks import require_above_0, require_at_least
from paceline.config import Config
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group, choose_device
from paceline.envs.registry import resolve
from paceline.errors import PacelineError, UsageError
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.parts import IMAGE, parts_of, saved_form
from paceline.pool.protocol import PoolSpec
from paceline.run_folder import open_run_folder
from paceline.sims.navigation.layout import NUM_ACTIONS
from paceline.sims.navigation.rendering.image_sensors import image_spaces
from paceline.sims.navigation.rendering.render import Camera, trace

PLACES = 8
"""G."""
KINDS = ("wall", "furniture", "floor", "ceiling")
REPORTS = 20
"""Lines that a training prints."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Train the image encoders of a recipe by supervision."""

    recipe: Annotated[str, tyro.conf.Positional]
    """The recipe with the environment and the network."""
    run_dir: Path
    """The folder to write."""
    updates: int = 2000
    """Gradient steps."""
    images: int = 256
    """Images in each."""
    learning_rate: float = 1e-3
    """Of Adam."""
    seed: int = 1
    """Seed of all random numbers."""
    env: str | None = None
    """Another environment of navigation. None: that of the recipe."""
    device: str = "auto"
    """cpu, cuda or auto."""


class Surfaces(nn.Module):
    """The encoders of the images `names` of a policy, each with a layer that predicts what is seen where."""

    def __init__(self, policy: ActorCritic, names: Collection[str]) -> None:
        super().__init__()
        self.policy, outputs = policy, PLACES * PLACES * len(KINDS)
        pairs = zip(policy.trunk.image_names, policy.trunk.images, strict=True)
        self._encoders: dict[str, Any] = {name: encoder for name, encoder in pairs if name in names}
        self.layers = nn.ModuleList(nn.Linear(encoder.out_features, outputs) for encoder in self._encoders.values())

    def forward(self, obs: dict[str, Tensor]) -> list[Tensor]:
        """[N, kinds, G, G] for each image: logits."""
        seen = self.policy.see(obs)
        features = [encoder(seen[name]) for name, encoder in self._encoders.items()]
        pairs = zip(self.layers, features, strict=True)
        return [layer(found.float()).view(-1, len(KINDS), PLACES, PLACES) for layer, found in pairs]


def labels(simulator: Any, camera: Camera) -> Tensor:
    """int64 [N, G, G]: the kind of surface that each agent sees in each place of its image."""
    bank = simulator.bank
    surfaces = trace(bank, camera, simulator.scenes, simulator.poses, surfaces=True).surfaces
    assert surfaces is not None
    walls, parts = bank.limits.max_walls, bank.limits.max_parts
    first_of_kinds = torch.tensor([walls, walls + parts, walls + parts + 1], device=surfaces.device)
    return torch.bucketize(surfaces // 3, first_of_kinds, right=True)


def train(plan: Plan, config: Config, device: torch.device) -> tuple[ActorCritic, Collection[str]]:
    """A policy, and the names of the images whose encoders are trained. Everything else in the policy is random.

    Labels are those of the agent's own view, so pictures of goals train nothing.
    """
    torch.manual_seed(plan.seed)
    make: Any = resolve(config.env).make
    simulator = make(plan.images, str(device))
    if not hasattr(simulator, "bank"):
        raise UsageError(f"{config.env} has no labels; allowed: environments of navigation")
    spec = PoolSpec(
        observation_space=simulator.observation_space, action_space=simulator.action_space, num_envs=plan.images
    )
    policy = ActorCritic(spec, config.policy).to(device)
    names = image_spaces(simulator.config).keys()
    if not names:
        raise UsageError(f"{config.env} has no images; allowed: environments of navigation with images")
    model, camera = Surfaces(policy, names).to(device), Camera(PLACES, device)
    optimizer = torch.optim.Adam(model.parameters(), plan.learning_rate)
    rows, alone = torch.arange(plan.images, device=device), Group(RankInfo(), device, None)
    obs = simulator.reset(plan.seed)
    for update in range(1, plan.updates + 1):
        found, expected = model(obs), labels(simulator, camera)
        if update % max(1, plan.updates // REPORTS) == 0:
            print(f"update {update}: {describe(found, expected)}")
        loss = torch.stack([functional.cross_entropy(logits, expected) for logits in found]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if policy.normalizes:
            policy.absorb(obs, rows, alone)
        obs = simulator.step(torch.randint(NUM_ACTIONS, (plan.images,), device=device)).obs
    return policy, names


def describe(found: list[Tensor], expected: Tensor) -> str:
    """The accuracy of each encoder on images that it has not learned from yet, and that of the best constant answer."""
    right = [(logits.argmax(1) == expected).float().mean().item() for logits in found]
    constant = functional.one_hot(expected, len(KINDS)).float().mean(0).amax(-1).mean().item()
    return f"accuracy {', '.join(f'{share:.3f}' for share in right)}; a constant answer has {constant:.3f}"


def write(policy: ActorCritic, names: Collection[str], plan: Plan, config: Config) -> None:
    """Write the encoders of the images `names` as the checkpoint of a run. It names no other parts, so that no run
    takes them."""
    units = saved_form(parts_of(policy))["encoder"]
    encoder = {unit: units[unit] for unit in units if unit.removeprefix(IMAGE) in names}
    steps = plan.updates * plan.images
    state = {"step": steps, "seconds": 0.0, "agent": {"parts": {"encoder": encoder}}}
    config.save(plan.run_dir / "config.json")
    CheckpointFolder(plan.run_dir / "checkpoints").save(steps, policy.state_dict(), state, {}, best=True)


def run_plan(plan: Plan) -> None:
    """Train and write. Bad input is refused before anything starts."""
    require_at_least(plan, "", 1, "updates", "images")
    require_above_0(plan, "", "learning_rate")
    config = recipes.find(recipes.known_as(plan.recipe))
    config = dataclasses.replace(config, env=plan.env or config.env, recipe=plan.recipe, seed=plan.seed)
    if resolve(config.env).backend != "tensor":
        raise UsageError(f"{config.env} has no labels; allowed: environments of navigation")
    if (plan.run_dir / "checkpoints").exists():
        raise UsageError(f"{plan.run_dir} holds a run already; allowed: another --run-dir")
    with open_run_folder(plan.run_dir):
        policy, names = train(plan, config, choose_device(plan.device))
        write(policy, names, plan, config)


def main() -> int:
    plan = tyro.cli(Plan)
    try:
        run_plan(plan)
    except PacelineError as error:
        print(f"supervised_encoder: {error}", file=sys.stderr)
        return error.exit_code
    print(f"the encoders are in {plan.run_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
