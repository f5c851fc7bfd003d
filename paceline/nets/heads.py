"""`ActionHead`: features to a distribution over an environment's actions.

Legend: B rows, F features, P parameters, K components of a family.

The components of an action are independent given the features: log-probabilities and entropies are sums. Components of
one family are evaluated in one operation, also if they belong to several leaves.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.nets.config import HeadConfig
from paceline.nets.distributions import Binaries, Categoricals, Gaussians
from paceline.nets.fit import require_head
from paceline.nets.layers import LastLayer, orthogonal
from paceline.nets.registry import HEAD, build
from paceline.pool.spaces import Leaf

Family = Categoricals | Binaries | Gaussians
OUTPUT_GAIN = 0.01
"""A fresh policy is close to uniform, or to a zero mean."""


class ActionSlice(NamedTuple):
    """Where a leaf is among its family's components. Computed once, for the hot path."""

    name: str
    shape: tuple[int, ...]
    num_components: int
    num_choices: int
    """Of all components together: the width of the leaf's mask. 0 if the leaf is not discrete."""


class ActionHead(nn.Module):
    """One linear layer to the parameters [B, P] of a distribution; everything else is a function of parameters.

    Actions are a dict by leaf name: Discrete [B] int64, MultiDiscrete [B, *shape] int64, MultiBinary [B, *shape] int8,
    Box [B, *shape] float32. `log_prob` takes them and rollouts store them. For a Box they are the unbounded normal
    variable; `env_actions` turns them into what the environment takes.
    """

    def __init__(self, leaves: Sequence[Leaf], in_features: int, config: HeadConfig | None = None) -> None:
        super().__init__()
        config = config or HeadConfig()
        self._names = [leaf.name for leaf in leaves]
        groups: dict[type, list[Leaf]] = {Categoricals: [], Binaries: [], Gaussians: []}
        for leaf in leaves:
            groups[_family_of(leaf)].append(leaf)
        self._groups = [[_place(leaf) for leaf in group] for group in groups.values() if group]
        """Each family's leaves, in the order of its components."""
        self._maskable = {leaf.name for leaf in groups[Categoricals]}
        self.families = nn.ModuleList(_make(kind, group, config) for kind, group in groups.items() if group)
        self._output_sizes = [family.num_outputs for family in self._typed_families()]
        self._param_sizes = [family.num_params for family in self._typed_families()]
        self.num_params = sum(self._param_sizes)
        self.max_entropy = sum(family.max_entropy for family in self._typed_families())
        """In nats; infinite for Boxes that are not squashed."""
        self.linear = orthogonal(LastLayer(in_features, sum(self._output_sizes)), OUTPUT_GAIN)
        if config.initial_logits:
            num_logits = sum(sum(leaf.choices) for leaf in groups[Categoricals])
            if len(config.initial_logits) != num_logits:
                raise UsageError(
                    f"head.initial_logits has {len(config.initial_logits)} numbers; "
                    f"these actions have {num_logits} choices"
                )
            with torch.no_grad():  # the categoricals come first
                self.linear.bias[:num_logits] = torch.tensor(config.initial_logits)
        if groups[Gaussians] and config.std == "state":
            log_std_outputs = self._output_sizes[-1] // 2  # the Gaussians come last, and their log stds last of all
            nn.init.constant_(self.linear.bias[-log_std_outputs:], config.initial_log_std)

    def forward(self, features: Tensor, mask: Mapping[str, Tensor] | None = None) -> Tensor:
        """Parameters [B, P], computed in float32 also under autocast.

        `mask` holds, for any of the Discrete leaves [B, n] and MultiDiscrete leaves [B, sum of nvec], True where a
        choice is allowed. A component with no allowed choice is uniform.
        """
        if mask and not self._maskable.issuperset(mask):
            raise UsageError(f"masks for {sorted(mask)}; only discrete actions take any, here {sorted(self._maskable)}")
        return self.params(self.linear(features), mask)

    def params(self, outputs: Tensor, mask: Mapping[str, Tensor] | None = None) -> Tensor:
        """Parameters [B, P] from the output of the linear layer."""
        parts = []
        columns = _columns(outputs, self._output_sizes)
        for family, group, part in zip(self._typed_families(), self._groups, columns, strict=True):
            if isinstance(family, Categoricals):
                parts.append(family.params(part, _joined_mask(group, mask, part) if mask else None))
            else:
                parts.append(family.params(part))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Random actions, without gradient."""
        return self._by_leaf([family.sample(part, generator) for family, _, part in self._parts(params)])

    def mode(self, params: Tensor) -> dict[str, Tensor]:
        """The likeliest actions; for a Box the mean."""
        return self._by_leaf([family.mode(part) for family, _, part in self._parts(params)])

    def log_prob(self, params: Tensor, actions: Mapping[str, Tensor]) -> Tensor:
        """[B]: the joint log-probability, for a Box the density."""
        return _sum(family.log_prob(part, _joined(group, actions)) for family, group, part in self._parts(params))

    def entropy(self, params: Tensor) -> Tensor:
        """[B]: exact, except for squashed Boxes, where it is -log_prob of one fresh sample."""
        return _sum(family.entropy(part) for family, _, part in self._parts(params))

    def env_actions(self, actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Actions as the environment takes them: Boxes clipped, or squashed, into their bounds; others unchanged."""
        result = dict(actions)
        for family, group in zip(self._typed_families(), self._groups, strict=True):
            if isinstance(family, Gaussians):
                result.update(_split(group, family.env_actions(_joined(group, actions))))
        return result

    @property
    def only(self) -> tuple[Family, ActionSlice] | None:
        """If there is a single leaf: its family, and where it is."""
        return (self._typed_families()[0], self._groups[0][0]) if len(self._names) == 1 else None

    def _typed_families(self) -> list[Family]:
        return cast("list[Family]", list(self.families))

    def _parts(self, params: Tensor) -> Iterator[tuple[Family, list[ActionSlice], Tensor]]:
        return zip(self._typed_families(), self._groups, _columns(params, self._param_sizes), strict=True)

    def _by_leaf(self, tables: Sequence[Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for group, table in zip(self._groups, tables, strict=True):
            found.update(_split(group, table))
        return {name: found[name] for name in self._names}


def make_head(leaves: Sequence[Leaf], in_features: int, config: HeadConfig) -> ActionHead:
    """The head that `config.kind` names; `registry` lists what one of the user's own needs."""
    option, known = "policy.head.kind", {"independent": ActionHead}
    head = build(HEAD, option, config.kind, known, leaves, in_features, config)
    if config.kind not in known:
        require_head(option, config.kind, head, leaves, in_features)
    return head


def _family_of(leaf: Leaf) -> type:
    space = leaf.space
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return Categoricals
    if isinstance(space, spaces.MultiBinary):
        return Binaries
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussians
    raise UsageError(
        f"no policy acts in {leaf.name!r}, a {space}; allowed: Discrete, MultiDiscrete, MultiBinary, floating-point Box"
    )


def _make(kind: type, group: Sequence[Leaf], config: HeadConfig) -> nn.Module:
    if kind is Categoricals:
        return Categoricals([size for leaf in group for size in leaf.choices])
    if kind is Binaries:
        return Binaries(sum(math.prod(leaf.shape) for leaf in group))
    boxes = [cast("spaces.Box", leaf.space) for leaf in group]
    for leaf, box in zip(group, boxes, strict=True):
        bounded = np.isfinite(box.low) & np.isfinite(box.high) & (box.low < box.high)
        if config.squash and not bounded.all():
            raise UsageError(f"head.squash needs finite bounds, low below high; action {leaf.name!r} is a {box}")
    low, high = (
        torch.as_tensor(np.concatenate([bound.ravel() for bound in bounds]), dtype=torch.float32)
        for bounds in ([box.low for box in boxes], [box.high for box in boxes])
    )
    return Gaussians(
        low,
        high,
        state_dependent=config.std == "state",
        initial_log_std=config.initial_log_std,
        log_std_range=(config.min_log_std, config.max_log_std),
        squash=config.squash,
    )


def _place(leaf: Leaf) -> ActionSlice:
    num_choices = sum(leaf.choices) if _family_of(leaf) is Categoricals else 0
    return ActionSlice(leaf.name, leaf.shape, math.prod(leaf.shape), num_choices)


def _columns(table: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """`table` cut into columns. Splitting costs as much as sampling at small batches, and mostly there is one part."""
    return (table,) if len(sizes) == 1 else table.split(sizes, dim=1)


def _joined(group: Sequence[ActionSlice], actions: Mapping[str, Tensor]) -> Tensor:
    """A family's actions as one table [B, K]."""
    columns = [actions[place.name].reshape(-1, place.num_components) for place in group]
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)


def _split(group: Sequence[ActionSlice], table: Tensor) -> dict[str, Tensor]:
    """A family's table [B, K] as actions of its leaves."""
    if table.dtype == torch.bool:
        table = table.to(torch.int8)
    columns = _columns(table, [place.num_components for place in group])
    return {place.name: values.reshape(-1, *place.shape) for place, values in zip(group, columns, strict=True)}


def _joined_mask(group: Sequence[ActionSlice], mask: Mapping[str, Tensor], outputs: Tensor) -> Tensor:
    """The masks of all discrete leaves as one table; a leaf without a mask allows everything."""
    columns = []
    for place in group:
        expected = (outputs.shape[0], place.num_choices)
        allowed = mask.get(place.name)
        if allowed is None:
            allowed = torch.ones(expected, dtype=torch.bool, device=outputs.device)
        if allowed.shape != expected or allowed.dtype != torch.bool:
            raise UsageError(
                f"the mask of {place.name!r} is {allowed.dtype} {tuple(allowed.shape)}; "
                f"it must be torch.bool {expected}"
            )
        columns.append(allowed)
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)


def _sum(values: Iterator[Tensor]) -> Tensor:
    return functools.reduce(operator.add, values)
