"""A planner that steers a controller: the neural controller of DD-PPO (section 6, appendix G).

Legend: T steps, B rows, M rows of all sequences together, F features, V numbers of the controller's other observations,
C outputs of the controller's core, H outputs of the planner's core.

    features [F] -> planner's core -> plan [H] -> goal [3] -> controller's perceptron and core -> action head
                                         |-> critic

The controller is a policy that walks to a goal that it observes. Here the planner gives it a goal at every step. Both
share the encoders of images. The gradient passes through the controller to the planner, also where the controller is
frozen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import UsageError
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.nets.cores import make_core, scan, sequence
from paceline.nets.encoders import VectorEncoder
from paceline.nets.layers import LastLayer, orthogonal
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.trunk import Trunk, flat_size, join

GOAL_SIZE = 3
"""A distance and a direction of two numbers, as the goals of `pointnav`."""
NEAREST = 0.75
"""Added to the distance."""
OUTPUT_GAIN = 0.01
"""The first goals are all nearly the same."""


class PlannedCore(nn.Module):
    """The cores of a planner and its controller as one core.

    Its input is the features of the trunk, followed by the controller's other observations [B, F + V] (`inputs`). Its
    output is that of the controller's core, followed by the plan [B, C + H] (`split`). Its state is the planner's,
    followed by the controller's.
    """

    def __init__(self, trunk: Trunk, config: PolicyConfig) -> None:
        super().__init__()
        planner, self.goal_name = config.planner, config.planner.goal
        # As in a dictionary of observations, which Gymnasium sorts by name.
        before = [leaf for leaf in trunk.leaves if leaf.name < self.goal_name]
        after = [leaf for leaf in trunk.leaves if leaf.name > self.goal_name]
        self.leaves = [*before, *after]
        """The observations of the controller besides images and goal."""
        sizes = {leaf.name: flat_size(leaf) for leaf in before} | {self.goal_name: GOAL_SIZE}
        self.inputs_of_controller = tuple((sizes | {leaf.name: flat_size(leaf) for leaf in after}).items())
        """The observations that its perceptron gets, in order, with the number of values of each."""
        self._num_before = sum(map(flat_size, before))
        self._num_features, self._num_image_features = trunk.out_features, trunk.num_image_features
        core = CoreConfig(kind=planner.kind, hidden=planner.hidden, layers=planner.layers)
        self.planner = make_core(trunk.out_features, core, "policy.planner.kind")
        if self.planner.state_size == 0:
            raise UsageError(
                f"policy.planner.kind {planner.kind} has no memory; allowed: lstm, gru, or one with memory"
            )
        self.goal = orthogonal(LastLayer(self.planner.out_features, GOAL_SIZE), OUTPUT_GAIN)
        self.goal_normalizer = ObservationNormalizer((GOAL_SIZE,)) if config.normalize_obs else nn.Identity()
        self.perceptron = VectorEncoder(
            [size for _, size in self.inputs_of_controller],
            hidden_sizes=config.hidden,
            activation=config.activation,
            embedding=config.embedding,
        )
        self.controller = make_core(trunk.num_image_features + self.perceptron.out_features, config.core)
        self.out_features = self.controller.out_features + self.planner.out_features
        self.state_size = self.planner.state_size + self.controller.state_size

    @property
    def layer_by_layer(self) -> bool:
        """Whether `scan` goes through LSTMs layer by layer."""
        return self.planner.layer_by_layer

    @layer_by_layer.setter
    def layer_by_layer(self, value: bool) -> None:
        self.planner.layer_by_layer = self.controller.layer_by_layer = value

    def inputs(self, features: Tensor, seen: dict[str, Tensor]) -> Tensor:
        """[B, F + V]: the input of the other methods, from the trunk's features and the observations."""
        return torch.cat([features, join(seen, self.leaves)], 1) if self.leaves else features

    def split(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """The output for the action head [B, C], and that for the critic [B, H]."""
        acting, plan = out.split([self.controller.out_features, self.planner.out_features], -1)
        return acting, plan

    def goals(self, plan: Tensor) -> Tensor:
        """[B, 3]: the distance and the direction, which need not have a length of 1, as in the paper."""
        distance, direction = self.goal(plan).split([1, GOAL_SIZE - 1], -1)
        return torch.cat([functional.elu(distance) + NEAREST, direction.tanh()], -1)

    def step(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """As `Core.step`."""
        for_planner, for_controller = self._states(state)
        plan, planner_after = self.planner.step(inputs[:, : self._num_features], for_planner)
        out, controller_after = self.controller.step(self._commands(inputs, plan), for_controller)
        return torch.cat([out, plan], 1), torch.cat([planner_after, controller_after], 1)

    def sequence(self, inputs: Tensor, batch_sizes: Tensor, initial_state: Tensor) -> Tensor:
        """As `Core.sequence`. All goals are known before the controller's first step."""
        for_planner, for_controller = self._states(initial_state)
        plan = sequence(self.planner, inputs[:, : self._num_features], batch_sizes, for_planner)
        out = sequence(self.controller, self._commands(inputs, plan), batch_sizes, for_controller)
        return torch.cat([out, plan], 1)

    def scan(self, inputs: Tensor, starts: Tensor, initial_state: Tensor) -> Tensor:
        """As `Core.scan`."""
        for_planner, for_controller = self._states(initial_state)
        plan = scan(self.planner, inputs[..., : self._num_features], starts, for_planner)
        commands = self._commands(inputs.flatten(0, 1), plan.flatten(0, 1)).view(*starts.shape, -1)
        return torch.cat([scan(self.controller, commands, starts, for_controller), plan], 2)

    def _states(self, state: Tensor) -> tuple[Tensor, Tensor]:
        for_planner, for_controller = state.split([self.planner.state_size, self.controller.state_size], 1)
        return for_planner, for_controller

    def _commands(self, inputs: Tensor, plan: Tensor) -> Tensor:
        """The features of the controller: those of images, and those of the goal and the other observations."""
        goal, others = self.goal_normalizer(self.goals(plan)), inputs[:, self._num_features :]
        before, after = others[:, : self._num_before], others[:, self._num_before :]
        vectors = self.perceptron(torch.cat([before, goal, after], 1))
        return torch.cat([inputs[:, : self._num_image_features], vectors], 1)
