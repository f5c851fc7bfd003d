"""`paceline completion`: shell code that completes commands, recipes, systems and options.

The code holds all words, so that TAB starts no Python. It is the same for both shells, except for how a shell passes
the words that were typed and takes the words that were found.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from paceline.cli.arguments import known_options
from paceline.cli.bench import available
from paceline.cli.main import COMMANDS
from paceline.cli.population import PopulationOptions
from paceline.cli.sweep import SweepOptions
from paceline.cli.train import TrainOptions
from paceline.config import Config
from paceline.envs.registry import families
from paceline.pretrained import POLICIES
from paceline.recipes import RECIPES, installed
from paceline.systems import SYSTEMS, readers

TRAINING = {"train": TrainOptions, "population": PopulationOptions, "sweep": SweepOptions}
OTHERS = ("play", "eval", "report", "export", "recipes", "envs", "doctor", "bench")
"""Commands whose module has one class with their options."""

BASH = """\
# Completion of paceline for bash.
_paceline() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" count="$COMP_CWORD"
    # bash makes three words of --system=appo.
    if [ "$word" = "=" ]; then word=""; elif [ "$before" = "=" ]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
    set -- "${{COMP_WORDS[@]}}"
{core}
    COMPREPLY=($(compgen -W "$found" -- "$word"))
}}
complete -o default -F _paceline paceline
"""
ZSH = """\
#compdef paceline
# Completion of paceline for zsh.
_paceline() {{
    local word="${{words[CURRENT]}}" before="${{words[CURRENT-1]}}" count="$((CURRENT-1))"
    case "$word" in --*=*) before="${{word%%=*}}"; word=""; compset -P '*=' ;; esac
    set -- "${{(@)words}}"
{core}
    if [ -n "$found" ]; then compadd -- ${{=found}}; else _files; fi
}}
if [ "$funcstack[1]" = "_paceline" ]; then _paceline "$@"; else compdef _paceline paceline; fi
"""
CORE = """\
    local system=ddppo found="" settings="" previous="" each
    case "$3" in
{systems_of_recipes}
    esac
    for each in "$@"; do
        if [ "$each" = "=" ]; then continue; fi
        case "$each" in --system=*) system="${{each#--system=}}" ;; esac
        if [ "$previous" = "--system" ]; then system="$each"; fi
        previous="$each"
    done
    if [ "$count" -eq 1 ]; then
        found="{commands}"
    else
        case "$before" in
{choices}
        esac
    fi
    case "$found:$count:$2:$word" in
{names}
    esac
    case "$system" in
{settings}
    esac
    case "$found:$2:$word" in
{options}
    esac\
"""
"""`$1` is paceline, `$2` the command, `$3` the word after it. `$found` gets all words that are allowed."""


@dataclass(frozen=True)
class Completion:
    """Print shell code that completes commands, recipes, systems and options on TAB."""

    shell: Annotated[Literal["bash", "zsh"], tyro.conf.Positional]
    """The shell."""

    def run(self) -> None:
        print((BASH if self.shell == "bash" else ZSH).format(core=_core()), end="")


def _core() -> str:
    own = {name: known_options(kind) for name, kind in TRAINING.items()}
    for name in OTHERS:
        own[name] = known_options(getattr(importlib.import_module(f"paceline.cli.{name}"), name.capitalize()))
    settings = known_options(Config)
    recipes_of = {system: [name for name, make in RECIPES.items() if make().system == system] for system in SYSTEMS}
    recipes = [*RECIPES, *(point.name for point in installed())]
    names = {
        **dict.fromkeys(TRAINING, recipes),
        "play": list(POLICIES),
        "envs": list(families()),
        "bench": list(available()),
        "plan": ["check", "export"],
        "completion": ["bash", "zsh"],
    }
    choices = {option: words for options in (settings, *own.values()) for option, words in options.items() if words}
    return CORE.format(
        commands=" ".join([*COMMANDS, "--help", "--version"]),
        systems_of_recipes=_cases(
            {"|".join(named): f"system={name}" for name, named in recipes_of.items() if named}, 8
        ),
        choices=_cases({option: _found(words) for option, words in choices.items()}, 12),
        names=_cases({f":2:{command}:[!-]*|:2:{command}:": _found(words) for command, words in names.items()}, 8),
        settings=_cases({name: f'settings="{" ".join(_read_by(name, settings))}"' for name in SYSTEMS}, 8),
        options=_cases({f":{command}:-*": _found([*words, *_always(command)]) for command, words in own.items()}, 8),
    )


def _always(command: str) -> list[str]:
    return ["$settings", "--help", "--help-all"] if command in TRAINING else ["--help"]


def _found(words: list[str]) -> str:
    return f'found="{" ".join(words)}"'


def _cases(actions: dict[str, str], indent: int) -> str:
    """Branches of a `case`, by pattern."""
    return "\n".join(f"{' ' * indent}{pattern}) {action} ;;" for pattern, action in actions.items())


def _read_by(system: str, settings: dict[str, list[str]]) -> list[str]:
    """The options for the settings that a system reads."""
    names = {option: option.removeprefix("--").replace("-", "_").replace(".no_", ".") for option in settings}
    return [option for option, name in names.items() if system in readers(name) and name != "recipe"]
