"""`paceline recipes`: list the recipes."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.recipes import RECIPES, installed


@dataclass(frozen=True)
class Recipes:
    """List the recipes."""

    def run(self) -> None:
        width = max(map(len, RECIPES))
        for name, recipe in RECIPES.items():
            print(f"{name:<{width}} {(recipe.__doc__ or '').strip()}")
        for point in installed():
            print(f"{point.name:<{width}} {point.value}")
