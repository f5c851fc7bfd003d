import sys
from types import SimpleNamespace

import pytest

from paceline.cli.envs import list_families
from paceline.envs import FAMILIES, registry, resolve
from paceline.envs.registry import Family, load, with_absolute_paths
from paceline.errors import EXTRAS, MissingExtra, UsageError
from paceline.sims.navigation.config import PATHS


def test_unknown_family_names_what_is_allowed():
    with pytest.raises(UsageError, match=r"'atarii'.*did you mean 'atari'.*allowed: gym, "):
        resolve("atarii:Breakout")


def test_a_missing_module_with_a_name_like_a_family_is_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="did you mean 'atari'") as caught:
        resolve("ataris:make_it")
    assert f"no such module was found, which is looked for in the current directory ({tmp_path})" in str(caught.value)
    with pytest.raises(UsageError) as caught:
        resolve("rearrange-pick:small")
    assert "module was found" not in str(caught.value), "this is no name of a module"


@pytest.mark.parametrize(
    ("family", "package", "env_id"),
    [
        ("atari", "ale_py", "atari:Breakout"),
        ("atari", "cv2", "atari:Breakout"),
        ("doom", "vizdoom", "doom:basic"),
        ("dmc", "dm_control", "dmc:cheetah-run"),
        ("pettingzoo", "pettingzoo", "pettingzoo:classic.rps_v2"),
    ],
)
def test_missing_package_names_the_extra(monkeypatch, family, package, env_id):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'paceline\[{FAMILIES[family].extra}\]'"):
        resolve(env_id)
    with pytest.raises(MissingExtra):
        load(family).names()


def needs_by_family(capsys, monkeypatch):
    """The last column of `paceline envs`."""
    monkeypatch.setenv("COLUMNS", "300")
    list_families()
    heading, *lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line[heading.index("needs") :].strip() for line in lines}


def test_every_family_whose_packages_are_missing_says_what_to_install(capsys, monkeypatch):
    packages = {package for family in FAMILIES.values() for package in EXTRAS.get(family.extra, ())}
    for package in (*packages, "habitat", "habitat_sim"):
        monkeypatch.setitem(sys.modules, package, None)
    needs = needs_by_family(capsys, monkeypatch)
    extras = {name: family.extra for name, family in FAMILIES.items() if family.extra}
    assert {"atari", "doom", "dmc", "hand", "parkour", "pettingzoo", "envpool", "rearrange_mujoco"} == extras.keys()
    installs = {name: f"pip install 'paceline[{extra}]'" for name, extra in extras.items()}
    assert {name: text for name, text in needs.items() if text} == {**installs, "habitat": "habitat-lab, habitat-sim"}


def test_a_family_whose_packages_are_installed_needs_nothing(capsys, monkeypatch):
    monkeypatch.setattr("paceline.errors.importlib.util.find_spec", lambda name: object())
    assert set(needs_by_family(capsys, monkeypatch).values()) == {""}


@pytest.mark.parametrize("env", ["envpool:Breakout-v5?frame_skip=2", "dmc:walker-walk?pixels=84", "atari:Pong?noop=3"])
def test_ids_are_compared_without_the_packages_of_their_families(monkeypatch, env):
    """A report of runs is written where their simulators are not installed."""
    monkeypatch.setattr(registry, "load", lambda name: pytest.fail(f"imports {name}"))
    assert with_absolute_paths(env) == env


def test_families_know_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = tmp_path.resolve()
    families = {name for name, family in FAMILIES.items() if family.paths}
    assert families == {name for name, family in FAMILIES.items() if family.module == "paceline.sims.navigation.family"}
    for family in families:
        assert FAMILIES[family].paths == PATHS
        assert with_absolute_paths(f"{family}:small?plans=home") == f"{family}:small?plans={here}/home"


def test_paths_of_families_of_other_packages_are_absolute_where_these_can_be_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    others = {"theirs": Family(module="theirs", extra=None, example="", about="")}
    monkeypatch.setattr(registry, "families", lambda: FAMILIES | others)
    module = SimpleNamespace(PATHS=("maze",), resolve=print, names=print)
    monkeypatch.setitem(sys.modules, "theirs", module)
    assert with_absolute_paths("theirs:x?maze=a.txt") == f"theirs:x?maze={tmp_path.resolve()}/a.txt"
    monkeypatch.setitem(sys.modules, "theirs", None)
    assert with_absolute_paths("theirs:x?maze=a.txt") == "theirs:x?maze=a.txt"
