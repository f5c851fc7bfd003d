"""`paceline envs`: list environments, or describe one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.envs.ids import EnvId
from paceline.envs.registry import FAMILIES, Family, families, load, resolve
from paceline.errors import UsageError, is_installed, missing_of


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
    """Print the spaces and the step time of one environment, which another process measures."""
    factory = resolve(text)
    backend, factory = factory.backend, factory.single or factory
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("id", str(EnvId.parse(text)))
    table.add_row("frames per step", str(factory.frameskip))
    if backend is not None:
        table.add_row("pool", backend if factory.backend is not None else f"{backend}; serial and process")
    if factory.backend is None:
        from paceline.pool.auto import probe
        from paceline.pool.config import PoolConfig

        cost = probe(factory, PoolConfig())
        table.add_row("agents", str(cost.spec.agents_per_env))
        for leaf in cost.spec.obs:
            table.add_row(f"observation {leaf.name}", f"{leaf.dtype} {list(leaf.shape)}")
        for leaf in cost.spec.actions:
            table.add_row(f"action {leaf.name}", str(leaf.space))
        table.add_row("step", f"{cost.step_seconds * 1e6:,.0f} µs, {cost.cpu_share:.0%} of a core")
    Console().print(table)
