"""Decisions of policies that are small perceptrons, by NumPy.

For a few dozen rows of two layers of 64, what PyTorch does around the arithmetic takes longer than the arithmetic: on a
Neoverse-N1 (one thread, 64 rows of CartPole) a decision took 540 us, and takes 215 this way. Learning, with its
gradients and larger batches, stays PyTorch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from paceline.policy.activations import ELU, Tanh
from paceline.policy.actor_critic import ActorCritic, Trunk
from paceline.policy.distributions import HALF_LOG_TAU, Categoricals, Gaussians
from paceline.policy.heads import ActionHead

MOST = 2**18
"""Multiplications in the largest layer. Beyond, NumPy's library of matrix products would start threads of its own, and PyTorch
is as fast."""

Layer = Callable[[np.ndarray], np.ndarray]
Draw = Callable[[np.ndarray], tuple[dict[str, Tensor], Tensor]]


class Perceptron:
    """Decisions of a policy that `suits`. It looks at the policy's own weights, wherever they are changed in place, and draws
    its random numbers from PyTorch's default generator, as the policy itself does."""

    def __init__(self, policy: ActorCritic) -> None:
        self._policy = policy
        trunks = [policy.trunk] if policy.critic_trunk is None else [policy.trunk, policy.critic_trunk]
        self._trunks = [[_layer(module) for module in _modules(trunk)] for trunk in trunks]
        self._outputs, self._value = _layer(policy.head.linear), _layer(policy.critic)
        self._draw = _draw_of(policy.head)
        linears = [module for module in policy.modules() if isinstance(module, nn.Linear)]
        self._most_rows = MOST // max(linear.in_features * linear.out_features for linear in linears)

    @staticmethod
    def suits(policy: ActorCritic, device: torch.device) -> bool:
        """Whether it is linear layers and activations, on a CPU in single precision, and nothing else."""
        trunks = [trunk for trunk in (policy.trunk, policy.critic_trunk) if trunk is not None]
        plain = not any(trunk.images or trunk.is_compiled for trunk in trunks) and not policy.is_recurrent
        return plain and not policy.is_masked and device.type == "cpu" and policy.precision == torch.float32

    def takes(self, rows: int) -> bool:
        """Whether so many are few enough."""
        return rows <= self._most_rows

    def choose(self, obs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """An action for every row, its log-probability and the value."""
        rows = self._policy.trunk.joined(self._policy.see(obs)).numpy()
        features = [_run(layers, rows) for layers in self._trunks]
        value = torch.from_numpy(self._value(features[-1])[:, 0])
        return *self._draw(self._outputs(features[0])), value


def _modules(trunk: Trunk) -> Iterable[nn.Module]:
    return trunk.vectors.layers if trunk.vectors is not None else ()


def _run(layers: Iterable[Layer], x: np.ndarray) -> np.ndarray:
    for layer in layers:
        x = layer(x)
    return x


def _layer(module: nn.Module) -> Layer:
    """Activations may write to what they are given: it is the output of the layer before."""
    if isinstance(module, nn.Linear):
        weight, bias = module.weight.detach().numpy().T, module.bias.detach().numpy()
        return lambda x: np.add(product := x @ weight, bias, out=product)
    if isinstance(module, Tanh):
        return lambda x: np.tanh(x, out=x)
    if isinstance(module, nn.ReLU):
        return lambda x: np.maximum(x, 0, out=x)
    if isinstance(module, ELU):
        return lambda x: np.maximum(x, np.exp(np.minimum(x, 0)) - 1, out=x)
    raise TypeError(f"no such layer by NumPy: {module}")


def _draw_of(head: ActionHead) -> Draw:
    """`head.draw` of the linear layer's outputs: by NumPy for a single choice or a single Box."""
    family, leaves = head.only
    draw: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    if isinstance(family, Categoricals) and family.num_components == 1:
        draw = _draw_choice
    elif isinstance(family, Gaussians) and family.log_std is not None and not family.squash and len(leaves) == 1:
        draw = functools.partial(_draw_normal, family.log_std.detach().numpy())
    if draw is None:
        return lambda outputs: head.draw(head.params(torch.from_numpy(outputs)))

    (leaf,) = leaves

    def named(outputs: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        actions, log_prob = draw(outputs)
        return {leaf.name: torch.from_numpy(actions.reshape(-1, *leaf.shape))}, torch.from_numpy(log_prob)

    return named


def _draw_choice(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The exponential race of `Categoricals.sample`, without dividing by the sum of what races."""
    count, choices = logits.shape
    logits -= logits.max(1, keepdims=True)
    p = np.exp(logits)
    log_sum = np.log(p.sum(1))
    p /= torch.empty(count, choices).uniform_(1e-30, 1.0).log_().numpy()
    actions = p.argmin(1)
    return actions, logits[np.arange(count), actions] - log_sum


def _draw_normal(log_std: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = torch.empty(mean.shape).normal_().numpy()
    log_prob = np.einsum("ij,ij->i", z, z)
    log_prob *= -0.5
    log_prob -= log_std.sum() + HALF_LOG_TAU * len(log_std)
    return mean + np.exp(log_std) * z, log_prob
