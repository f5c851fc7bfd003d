"""`paceline envs`: list environments, or describe one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.envs.registry import FAMILIES, Family, families, load, resolve
from paceline.errors import UsageError, is_installed, missing_of
from paceline.pool.protocol import PoolSpec
from paceline.telemetry.console import status

BATCH, MEASURED_SECONDS = 64, 0.3
"""Batched simulators are measured with so many environments, for so long."""


@dataclass(frozen=True)
class Envs:
    """List the families of environments, list the names of one family, or describe one environment."""

    what: Annotated[str | None, tyro.conf.Positional] = None
    """A family (doom) or an environment (doom:my_way_home?frameskip=2). Without it: list the families."""

    def run(self) -> None:
        if self.what is None:
            list_families()
        elif self.what in families():
            for name in load(self.what).names():
                print(f"{self.what}:{name}")
        else:
            describe_environment(self.what)


def list_families() -> None:
    table = Table("family", "example", "what it is", "needs", box=None, header_style="bold", pad_edge=False)
    for name, family in families().items():
        table.add_row(name, family.example, family.about, escape(_needs(name, family)))
    table.add_row("module:function", "mypackage.envs:make", "your own Gymnasium or PettingZoo environment", "")
    table.add_row("file:function", "./my_envs.py:make", "the same, in a file", "")
    Console().print(table)


def _needs(name: str, family: Family) -> str:
    """What to install, or why a family of another package cannot be imported."""
    if family.extra is not None and missing_of(family.extra):
        return f"pip install 'paceline[{family.extra}]'"
    missing = [package for module, package in family.modules.items() if not is_installed(module)]
    if missing or name in FAMILIES:
        return ", ".join(missing)
    try:
        load(name)
    except UsageError as error:
        return str(error)
    return ""


def describe_environment(text: str) -> None:
    """Print the spaces and the step time of one environment, or of a batch if it is a batched simulator."""
    factory = resolve(text)
    backend, single = factory.backend, factory.single or factory
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("id", str(EnvId.parse(text)))
    table.add_row("frames per step", str(single.frameskip))
    if backend is not None:
        table.add_row("pool", backend if single.backend is not None else f"{backend}; serial and process")
    spec, cost = _measured_alone(factory) if backend is None else _measured_batch(factory)
    table.add_row("agents", str(spec.agents_per_env))
    for leaf in spec.obs:
        table.add_row(f"observation {leaf.name}", f"{leaf.dtype} {list(leaf.shape)}")
    for leaf in spec.actions:
        table.add_row(f"action {leaf.name}", str(leaf.space))
    if spec.measures:
        table.add_row("measures", ", ".join(spec.measures))
    if spec.reward_weights:
        table.add_row("reward weights", ", ".join(f"{name} {value:g}" for name, value in spec.reward_weights))
    table.add_row("step", cost)
    Console().print(table)


def _measured_alone(factory: Factory) -> tuple[PoolSpec, str]:
    """What an environment looks like, and what a step costs. Another process steps it."""
    from paceline.pool.auto import probe
    from paceline.pool.config import PoolConfig

    cost = probe(factory, PoolConfig())
    return cost.spec, f"{cost.step_seconds * 1e6:,.0f} µs, {cost.cpu_share:.0%} of a core"


def _measured_batch(factory: Factory) -> tuple[PoolSpec, str]:
    from paceline.pool import make_pool
    from paceline.pool.auto import measure
    from paceline.pool.config import PoolConfig

    with status("loading simulators"), make_pool(factory, PoolConfig(num_envs=BATCH)) as pool:
        rate = measure(pool, MEASURED_SECONDS)
        return pool.spec, f"{1e6 / rate:,.1f} µs per agent, in a batch of {BATCH} environments"
