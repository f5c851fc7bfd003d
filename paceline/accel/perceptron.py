"""Decisions of policies that are perceptrons, by NumPy: actions first, values and log-probabilities later.

For small layers and few rows PyTorch's overhead takes longer than the arithmetic. Large layers and batches stay with
PyTorch, and so does learning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeGuard

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from paceline.accel.activations import ELU, Tanh
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.cores import Core
from paceline.nets.distributions import HALF_LOG_TAU, Categoricals, Gaussians
from paceline.nets.heads import ActionHead, ActionSlice
from paceline.nets.ppo_policy import PPOPolicy
from paceline.nets.trunk import Trunk, join

MATRIX_LIMIT = 2**18
"""Multiplications in a matrix product beyond which NumPy's library (OpenBLAS) starts threads. Larger products are
computed block by block."""
VECTOR_LIMIT = 9216
"""The same limit for a vector times a matrix."""
MOST_BLOCKS = 16
"""Beyond this many blocks PyTorch is faster."""
LAYERS = (nn.Linear, Tanh, nn.ReLU, ELU)

Layer = Callable[[np.ndarray], np.ndarray]


class DrawnActions(NamedTuple):
    """Sampled actions."""

    actions: dict[str, Tensor]
    env_actions: dict[str, np.ndarray]
    """As the environment takes them: within bounds."""
    log_prob: Callable[[], Tensor]
    """[B], computed when it is called."""


Draw = Callable[[np.ndarray], DrawnActions]
"""Samples from the output of the head's linear layer."""


class Pass(NamedTuple):
    """A batch that went through the actor's layers."""

    rows: np.ndarray
    """The observations."""
    features: np.ndarray
    """The output of the hidden layers."""
    outputs: np.ndarray
    """What actions are drawn from."""


class Layers(NamedTuple):
    """A policy's layers, all by NumPy or all by PyTorch."""

    stacks: list[list[Layer]]
    """The actor's hidden layers, and the critic's if they are separate."""
    outputs: Layer
    value: Layer


class Perceptron:
    """Decides for a policy that `suits`, by the policy's own weights. Weights may change, but not move in memory.

    The calls for a batch are `forward`, `draw`, and `value`, which can wait until the actions are sent. Random numbers
    are the same as the policy's, from PyTorch's default generator.
    """

    def __init__(self, policy: ActorCritic) -> None:
        self._policy = policy
        self._by_numpy, self._by_torch = _layers(policy, _numpy_layer), _layers(policy, _torch_layer)
        self.draw = _draw_of(policy.head)
        """Samples from the outputs of a pass."""
        self._only = _only_numbers(policy)
        linears = [module for module in policy.modules() if isinstance(module, nn.Linear)]
        largest = max(linear.in_features * linear.out_features for linear in linears)
        self._least, self._block = 1 if largest < VECTOR_LIMIT else 2, MATRIX_LIMIT // largest

    @staticmethod
    def suits(policy: PPOPolicy, device: torch.device) -> TypeGuard[ActorCritic]:
        """Whether the policy consists of linear layers and known activations, on a CPU in float32."""
        if not isinstance(policy, ActorCritic) or policy.trunk.images or policy.is_recurrent or policy.is_masked:
            return False
        if any(trunk.vectors is not None and trunk.vectors.embeddings for trunk in _trunks(policy)):
            return False
        if type(policy.core) is not Core or type(policy.head) is not ActionHead:  # the user's own
            return False
        # A subclass may compute something else.
        known = all(type(module) in LAYERS for layers in _stacks(policy) for module in layers)
        return known and not policy.trunk.is_compiled and device.type == "cpu" and policy.precision == torch.float32

    def is_few(self, rows: int) -> bool:
        """Whether a batch of `rows` is a single block for NumPy."""
        return self._least <= rows <= self._block

    @property
    def draws_by_outputs(self) -> bool:
        """Whether `draw` depends on nothing but the outputs, so that one perceptron can draw for several."""
        return isinstance(self.draw, functools.partial) and self.draw.func is _draw_choice

    def forward(self, obs: dict[str, Tensor]) -> Pass:
        """Through the actor's layers. Do not write to `obs` before `value`."""
        rows = self._rows_of(obs)
        layers = self._layers_for(rows)
        features = functools.reduce(_apply, layers.stacks[0], rows)
        return Pass(rows, features, layers.outputs(features))

    def _layers_for(self, rows: np.ndarray) -> Layers:
        return self._by_numpy if self._least <= len(rows) <= MOST_BLOCKS * self._block else self._by_torch

    def _rows_of(self, obs: dict[str, Tensor]) -> np.ndarray:
        if self._only is not None:
            values = obs[self._only].numpy()
            return values.reshape(len(values), -1)
        return join(self._policy.see(obs), self._policy.trunk.leaves).numpy()

    def value(self, done: Pass) -> Tensor:
        """[B]: the value of every row, by the same weights. Simulators can step meanwhile."""
        layers = self._layers_for(done.rows)
        own = layers.stacks[1:]
        features = functools.reduce(_apply, own[0], done.rows) if own else done.features
        return torch.from_numpy(layers.value(features)[:, 0])

    def choose(self, obs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """An action for every row, its log-probability and its value."""
        done = self.forward(obs)
        drawn = self.draw(done.outputs)
        return drawn.actions, drawn.log_prob(), self.value(done)


def _stacks(policy: ActorCritic) -> list[Iterable[nn.Module]]:
    """The hidden layers of the actor, and those of the critic if they are separate."""
    return [trunk.vectors.layers for trunk in _trunks(policy) if trunk.vectors is not None]


def _trunks(policy: ActorCritic) -> list[Trunk]:
    return [trunk for trunk in (policy.trunk, policy.critic_trunk) if trunk is not None]


def _only_numbers(policy: ActorCritic) -> str | None:
    """The name of the only observation, if it is a float32 Box that is not normalised."""
    leaves = policy.trunk.leaves
    plain = len(leaves) == 1 and not policy.normalizes and isinstance(leaves[0].space, spaces.Box)
    return leaves[0].name if plain and leaves[0].dtype == np.float32 else None


def _apply(x: np.ndarray, layer: Layer) -> np.ndarray:
    return layer(x)


def _layers(policy: ActorCritic, make: Callable[[nn.Module], Layer]) -> Layers:
    stacks = [[make(module) for module in layers] for layers in _stacks(policy)]
    return Layers(stacks, make(policy.head.linear), make(policy.critic))


def _product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    block = max(1, MATRIX_LIMIT // weight.size)
    if len(x) <= block:
        return x @ weight
    product = np.empty((len(x), weight.shape[1]), x.dtype)
    for first in range(0, len(x), block):
        np.matmul(x[first : first + block], weight, out=product[first : first + block])
    return product


def _torch_layer(module: nn.Module) -> Layer:
    @torch.no_grad()
    def layer(x: np.ndarray) -> np.ndarray:
        return module(torch.from_numpy(x)).numpy()

    return layer


def _numpy_layer(module: nn.Module) -> Layer:
    """Activations work in place: their input is the output of a linear layer."""
    if isinstance(module, nn.Linear):
        weight, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
        if len(weight) == 1:  # a product with a vector, for which OpenBLAS soon starts threads
            return lambda x: np.einsum("ij,kj->ik", x, weight) + bias
        return lambda x: np.add(product := _product(x, weight.T), bias, out=product)
    if isinstance(module, Tanh):
        return lambda x: np.tanh(x, out=x)
    if isinstance(module, nn.ReLU):
        return lambda x: np.maximum(x, 0, out=x)
    assert isinstance(module, ELU)
    return lambda x: np.maximum(x, np.exp(np.minimum(x, 0)) - 1, out=x)


def _draw_of(head: ActionHead) -> Draw:
    """By NumPy for a single choice or a single Box, otherwise by PyTorch."""
    if head.only is not None:
        family, leaf = head.only
        if isinstance(family, Categoricals) and family.num_components == 1:
            return functools.partial(_draw_choice, leaf)
        if isinstance(family, Gaussians) and family.log_std is not None and not family.squash:
            log_std = family.log_std.detach().numpy()
            return functools.partial(_draw_normal, leaf, log_std, family.low.numpy(), family.high.numpy())
    return functools.partial(_draw_by_torch, head)


@torch.no_grad()
def _draw_by_torch(head: ActionHead, outputs: np.ndarray) -> DrawnActions:
    params = head.params(torch.from_numpy(outputs))
    actions = head.sample(params)
    env_actions = {name: values.numpy() for name, values in head.env_actions(actions).items()}
    return DrawnActions(actions, env_actions, lambda: head.log_prob(params, actions).detach())


def _draw_choice(leaf: ActionSlice, logits: np.ndarray) -> DrawnActions:
    """The exponential race of `Categoricals.sample`, with probabilities that are not normalised."""
    count, choices = logits.shape
    logits -= logits.max(1, keepdims=True)
    p = np.exp(logits)
    race = p / torch.empty(count, choices).uniform_(1e-30, 1.0).log_().numpy()
    actions = race.argmin(1)

    def log_prob() -> Tensor:
        return torch.from_numpy(logits[np.arange(count), actions] - np.log(p.sum(1)))

    shaped = actions.reshape(-1, *leaf.shape)
    return DrawnActions({leaf.name: torch.from_numpy(shaped)}, {leaf.name: shaped}, log_prob)


def _draw_normal(
    leaf: ActionSlice, log_std: np.ndarray, low: np.ndarray, high: np.ndarray, mean: np.ndarray
) -> DrawnActions:
    std = np.exp(log_std)
    actions = mean + std * torch.empty(mean.shape).normal_().numpy()

    def log_prob() -> Tensor:
        z = (actions - mean) / std  # not the drawn numbers: where std is tiny, actions are rounded
        found = np.einsum("ij,ij->i", z, z)
        found *= -0.5
        found -= log_std.sum() + HALF_LOG_TAU * len(log_std)
        return torch.from_numpy(found)

    bounded = np.maximum(actions, low)
    np.minimum(bounded, high, out=bounded)
    shape = (-1, *leaf.shape)
    return DrawnActions(
        {leaf.name: torch.from_numpy(actions.reshape(shape))}, {leaf.name: bounded.reshape(shape)}, log_prob
    )
