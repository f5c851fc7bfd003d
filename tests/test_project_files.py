"""Files for other programs: the citation, the workflow and the image agree with the project."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import paceline

ROOT = Path(__file__).parent.parent


def test_citation_has_the_version_and_the_authors():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == paceline.__version__ and citation["license"] == project["license"]
    assert citation["authors"] == project["authors"]


def test_workflow_runs_the_checks_of_the_makefile():
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make check", "make test"]


def test_image_copies_files_that_exist_and_are_not_ignored():
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in [name for line in copied for name in line.split()]:
        assert (ROOT / name).exists() and any(fnmatch(name, pattern) for pattern in allowed), name


def test_image_has_what_a_build_needs():
    """The build reads these files of the checkout."""
    copied = (ROOT / "Dockerfile").read_text()
    assert all(name in copied for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"))


def test_extras_of_the_installation_page_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(extras)
