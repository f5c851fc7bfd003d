import sys

import pytest

from paceline.envs import FAMILIES, resolve
from paceline.envs.registry import load
from paceline.errors import MissingExtra, UsageError


def test_unknown_family_names_what_is_allowed():
    with pytest.raises(UsageError, match=r"'atarii'.*did you mean 'atari'.*allowed: gym, "):
        resolve("atarii:Breakout")


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
