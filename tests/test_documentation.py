"""Links, pictures, options and commands of the documentation. Commands of published results are not checked."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from paceline import recipes
from paceline.cli.options import parse
from paceline.cli.train import TrainOptions
from paceline.config import Config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")] + sorted((ROOT / "docs").rglob("*.md"))
GENERATED = re.compile(r"<!-- (?:result|table) .*?<!-- end -->", re.DOTALL)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), link


def test_every_picture_is_shown():
    shown = {
        (page.parent / link).resolve() for page in PAGES for link in re.findall(r"\]\(([^)]+\.png)\)", page.read_text())
    }
    assert {path.resolve() for path in (ROOT / "docs").rglob("*.png")} == shown


def commands() -> list[str]:
    """All `paceline train` commands in blocks of code."""
    found = []
    for page in PAGES:
        text = GENERATED.sub("", page.read_text())
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line for line in lines if line.startswith("paceline train ") and "--resume" not in line]
    return sorted(set(found))


def options(config: object, prefix: str = "") -> set[str]:
    """All option names of a configuration, section by section."""
    found = set()
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        name, value = f"{prefix}{field.name}".replace("_", "-"), getattr(config, field.name)
        sections = options(value, f"{name}.") if dataclasses.is_dataclass(value) else set()
        found |= sections or {name, f"{prefix}no-{field.name}".replace("_", "-")}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_that_are_mentioned_exist(page):
    text = GENERATED.sub("", page.read_text())
    if page.name == "CHANGELOG.md":
        text = text.partition("### Removed")[0]
    mentioned = set(re.findall(r"--([a-z0-9]+\.[a-z0-9.-]*[a-z0-9])", text))
    assert mentioned <= options(Config()), sorted(mentioned - options(Config()))


@pytest.mark.parametrize("command", commands())
def test_training_commands_are_valid(command):
    recipe, *options = shlex.split(command, comments=True)[2:]
    default = recipes.find("cartpole" if recipe == "RECIPE" else recipe)
    _, config = parse(TrainOptions, default, options, prog="paceline train")
    assert isinstance(config, Config)
