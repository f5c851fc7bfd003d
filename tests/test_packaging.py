"""The wheel and the sdist: what they contain, and that an installed wheel works without a checkout."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parent.parent
BENCH = ("stable_baselines3", "faster_fifo", "scipy")
"""What the extra `bench` installs."""


def run(*command: str | Path, cwd: Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    hatchling = str(Path(sys.modules["hatchling"].__file__ or "").parents[1])
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=outside | ({"PYTHONPATH": hatchling} if "hatchling" in command else {}),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode == 0) is ok, done.stderr
    return done


def build(project: Path, target: str, folder: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=project)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    """Built from the sdist, so that the sdist has all that a build needs."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (project,) = folder.iterdir()
    return build(project, "wheel", folder)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an environment with the wheel. Its other packages are those of this environment, without `bench`.

    The folder of those packages is on the path without their .pth files, so the checkout cannot be imported.
    """
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=folder)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).stdout[:-1])
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (packages / "sitecustomize.py").write_text(f"import sys\n\nsys.modules.update(dict.fromkeys({BENCH}))\n")
    return folder / "bin"


def test_wheel_has_the_benchmarks_and_types_but_no_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"paceline/py.typed", "paceline/__init__.pyi", "paceline/evaluation/report.css"} <= names
    assert {"paceline/benchmarks/pool.py", "paceline/benchmarks/peers/sample_factory.txt"} <= names
    assert {name.split("/")[0] for name in names} == {"paceline", "paceline-0.1.0.dist-info"}
    assert "paceline/benchmarks/tables.py" not in names, "it needs the documentation"


def test_wheel_of_the_sdist_is_the_wheel_of_the_checkout(wheel, tmp_path):
    again = build(ROOT, "wheel", tmp_path)
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def metadata_of(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    return message_from_bytes(archive.read(path))


def test_metadata_is_complete_and_links_to_nothing_that_the_package_lacks(wheel):
    metadata = metadata_of(wheel)
    assert metadata["Author"] == "The Paceline developers" and metadata["License-Expression"] == "Apache-2.0"
    assert all(url.partition(", ")[2].startswith("https://") for url in metadata.get_all("Project-URL", []))
    description = metadata.get_payload()
    assert "# Paceline" in description
    assert [link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("https://")] == []


def test_declared_dependencies_are_satisfied_by_the_tested_versions(wheel):
    from packaging.requirements import Requirement

    declared = [Requirement(text) for text in metadata_of(wheel).get_all("Requires-Dist", [])]
    required = [one for one in declared if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert {"torch", "numpy", "gymnasium"} <= {one.name for one in required} and len(required) < len(declared)
    versions = {one: importlib.metadata.version(one.name) for one in required}
    assert {str(one): found for one, found in versions.items() if not one.specifier.contains(found, True)} == {}


IMPORT_ALL = """
import importlib, importlib.metadata, json, pkgutil, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def with_dependencies(left):
    found = set()
    while left:
        name, extras = left.pop()
        name = canonicalize_name(name)
        if (name, extras) not in found:
            found.add((name, extras))
            for one in map(Requirement, importlib.metadata.requires(name) or []):
                if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or [""]):
                    left.append((one.name, frozenset(one.extras)))
    return {name for name, _ in found}

declared = with_dependencies([("paceline", frozenset())])
for module, owners in importlib.metadata.packages_distributions().items():
    if not set(map(canonicalize_name, owners)) & declared:
        sys.modules[module] = None
import paceline

missing = {}
for module in pkgutil.walk_packages(paceline.__path__, "paceline."):
    if not module.name.startswith("paceline.benchmarks") and not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except Exception as error:
            cause = error.__cause__ or error
            missing[module.name] = (getattr(cause, "name", None) or repr(cause)).split(".")[0]
print(json.dumps(missing))
"""
"""Hides what the wheel's metadata does not declare, without extras. Prints what the import of a module lacks."""
IMPORTED_LATE = (
    (r"\.(envs\.envpool|pool\.envpool\w*)$", "envpool"),
    (r"\.(envs\.dmc_state|sims\.(control|rearrangement\.dynamics)\..*)$", "mujoco"),
    (r"\.sweep\.", "optuna"),
    (r"_triton$", "triton"),
)
"""Modules that other modules import only where their package is installed; Triton comes with CUDA's PyTorch."""


def test_all_modules_but_those_of_extras_need_only_what_is_declared(installed, tmp_path):
    missing = json.loads(run(installed / "python", "-c", IMPORT_ALL, cwd=tmp_path).stdout.splitlines()[-1])
    assert "paceline.sweep.search" in missing, "packages of extras are hidden"
    for module, package in missing.items():
        assert any(re.search(name, module) and package == late for name, late in IMPORTED_LATE), (module, package)


def test_installed_wheel_has_a_command_line(installed, tmp_path):
    assert "usage: paceline COMMAND" in run(installed / "python", "-m", "paceline", "--help", cwd=tmp_path).stdout
    assert "paceline 0.1.0" in run(installed / "paceline", "--version", cwd=tmp_path).stdout
    place = run(installed / "python", "-c", "import paceline; print(paceline.__file__)", cwd=tmp_path).stdout
    assert place.startswith(str(installed.parent)), "the checkout must not be imported"


def test_installed_wheel_runs_benchmarks_without_their_extra(installed, tmp_path):
    listed = run(installed / "paceline", "bench", cwd=tmp_path).stdout
    assert {line.split()[0] for line in listed.splitlines()} >= {"pool", "publication", "throughput"}
    assert "| " in run(installed / "paceline", "bench", "publication", "--quick", cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["channel", "efficiency", "updates"])
def test_benchmark_whose_extra_is_missing_says_so_in_one_line(installed, tmp_path, name):
    done = run(installed / "paceline", "bench", name, "--quick", cwd=tmp_path, ok=False)
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("paceline: ") and line.endswith("pip install 'paceline[bench]'")


def test_benchmarks_import_each_other_by_relative_names():
    """A wheel has them in another package than a checkout."""
    named = re.compile(r"^\s*(?:from|import) benchmarks\b|[\"']benchmarks\.", re.MULTILINE)
    assert [path.name for path in (ROOT / "benchmarks").rglob("*.py") if named.search(path.read_text())] == []
