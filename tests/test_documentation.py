"""Links, pictures, options, commands, environments and error messages of the documentation. Commands of published
results are not checked."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
import shlex
from pathlib import Path

import pytest
import tyro

from paceline import recipes
from paceline.cli.bench import available
from paceline.cli.main import COMMANDS
from paceline.cli.options import parse, value_of
from paceline.cli.population import PopulationOptions
from paceline.cli.sweep import SweepOptions
from paceline.cli.train import TrainOptions
from paceline.config import Config, leaves
from paceline.envs.registry import FAMILIES, resolve
from paceline.errors import MissingPackage
from paceline.recipes import defaults

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
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
    """All `paceline` commands in blocks of code, and those of more than three words in sentences: others are names of
    commands."""
    found = []
    for page in PAGES:
        text = GENERATED.sub("", page.read_text())
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            found += [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("paceline ")]
        sentences = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        found += [re.sub(r"\s+", " ", code) for code in re.findall(r"`(paceline(?:\s+[^`\s]+){3,})`", sentences)]
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


WITH_SETTINGS = {"train": TrainOptions, "population": PopulationOptions, "sweep": SweepOptions}
"""The commands that take the settings of a run beside their own options."""


def settings_of(words: list[str], own: type) -> Config:
    """The settings of a command with these words. A run to resume is one of the recipe
    cartpole."""
    has_recipe = bool(words) and not words[0].startswith("-")
    recipe, options = (words[0], words[1:]) if has_recipe else ("cartpole", words)
    is_a_stand_in = recipe in ("RECIPE", "package.module:function") or recipe.startswith(("my_package.", "./"))
    default = recipes.find("cartpole" if is_a_stand_in else recipe)
    _, config = parse(own, default, options, prog="paceline")
    return config


@pytest.mark.parametrize("command", commands())
def test_commands_are_valid(command):
    _, name, *words = ["1" if word == "N" else word for word in shlex.split(command.split(" > ")[0], comments=True)]
    if name.startswith("--") or name == "COMMAND" or "..." in words:
        return
    assert name in COMMANDS
    if {"--help", "--help-all"} & set(words):
        assert words[0] in ("RECIPE", *recipes.RECIPES) or words[0].startswith("--")
    elif name in WITH_SETTINGS:
        require_environment(settings_of(words, WITH_SETTINGS[name]).env)
    else:
        module = importlib.import_module(f"paceline.cli.{name}")
        found = tyro.cli(getattr(module, name.capitalize()), args=words)
        if name == "bench":
            assert found.name in (None, "NAME") or found.name.replace("-", "_") in available()
        if name in ("eval", "envs") and (env := value_of("--env", words) or (name == "envs" and words and words[0])):
            require_environment(env)


@functools.cache
def require_environment(env: str) -> None:
    """Refuse an id that does not exist. Ids of the reader's own code and files are not looked at."""
    family, colon, _ = env.partition(":")
    if family.partition("?")[0] not in FAMILIES or "plans=" in env:
        assert colon or env in ("ID", *FAMILIES) or "plans=" in env, env
    elif colon:
        try:
            resolve(env)
        except MissingPackage:
            pytest.skip(f"{env} needs a package that is not installed")


def environments() -> list[str]:
    """All environment ids in sentences and tables."""
    named = re.compile(rf"`((?:{'|'.join(FAMILIES)}):[^`\s]+)`")
    stand_ins = (":module", "gym:ID", "CONFIG", "package.module:Class")
    found = {env for page in PAGES for env in named.findall(GENERATED.sub("", page.read_text()))}
    return sorted(env for env in found if not any(part in env for part in stand_ins))


@pytest.mark.parametrize("env", environments())
def test_environments_exist(env):
    require_environment(env)


def texts_of_errors() -> str:
    """All texts in the code, one after the other. Numbers and names in them are replaced by \x00."""
    found = []
    for path in sorted((ROOT / "paceline").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%(?:[-.\d]*)[a-z]", "\0", node.value))
    return "\n".join(found)


def test_messages_in_troubleshooting_are_those_of_the_code():
    """Each message is cut at its dots; every piece of some length is a text of the code."""
    page, texts = (ROOT / "docs" / "troubleshooting.md").read_text(), texts_of_errors()
    tables = page.partition("## Starting")[2]
    first_cells = [line.split(" | ")[0] for line in tables.splitlines() if line.startswith("| `")]
    messages = [message for cell in first_cells for message in re.findall(r"`([^`]+)`", cell) if " " in message]
    assert len(messages) > 30
    pieces = {piece.strip(" ()") for message in messages for piece in message.split("…")}
    assert [piece for piece in pieces if len(piece) > 8 and piece not in texts] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_look_the_same_on_github_and_in_the_site(page):
    """Lists and tables follow an empty line, and no code in a table has an escaped bar. The site would show both as
    they are written."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    joined = re.findall(r"^(?![-|\d\s>#<])\S.*\n(?:- |\| |1\. ).*$", text, re.MULTILINE)
    assert joined == []
    assert re.findall(r"`[^`\n]*\\\|[^`\n]*`", text) == []


def cells(text: str, header: str) -> list[list[str]]:
    """The rows of all tables with a header that begins so."""
    tables = re.findall(rf"^{re.escape(header)}.*\n\|[-|:]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for table in tables for row in table.splitlines()]


def in_words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(map(in_words, value)) if isinstance(value, tuple) else str(value).lower()


def same(shown: str, value: object) -> bool:
    shown = shown.replace(",", "")
    return float(shown) == value if re.fullmatch(r"[\d.e-]+", shown) else shown.lower() == in_words(value)


@pytest.mark.parametrize("page", ["configuration", "pools", "networks"])
def test_defaults_in_tables_of_options(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    header = "| setting | default |" if page == "configuration" else "| option | default |"
    rows = [row for row in cells(text, header) if row[0].count("`") == 2]
    assert len(rows) >= 9
    for option, shown, *_ in rows:
        assert same(shown, leaves(Config())[option.strip("`-").replace("-", "_")]), option


def test_settings_without_a_recipe():
    vectors = [defaults._for_ppo(images=False, continuous=continuous) for continuous in (False, True)]
    columns = [leaves(one) for one in (Config(), *vectors, defaults._for_ppo(images=True, continuous=False))]
    rows = cells((ROOT / "docs" / "configuration.md").read_text(), "| setting | `pl.Config` |")
    shown = {row[0].strip("`"): row[1:] for row in rows}
    for name, values in shown.items():
        assert all(same(text, column[name]) for text, column in zip(values, columns, strict=True)), name
    differing = {name for name in columns[0] if len({column[name] for column in columns}) > 1}
    assert differing <= set(shown)
