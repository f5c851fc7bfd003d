"""Packages that not everybody has: tests ask for them before they import them, and the package names their extras."""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from gymnasium.error import DependencyNotInstalled

from paceline.cli import bench
from paceline.envs import resolve
from paceline.errors import EXTRA_OF, MissingExtra, UsageError, extra_hint
from paceline.evaluation import video
from paceline.export import write_onnx
from paceline.telemetry.metrics import MetricsWriter
from tests.api.envs import Corridor

ROOT = Path(__file__).parents[1]
OURS = ("paceline", "benchmarks", "tests")
REQUIRED = {
    *("torch", "numpy", "gymnasium", "cloudpickle", "tyro", "rich", "psutil", "safetensors", "tensorboard"),
    *("matplotlib", "PIL", "pytest", "hypothesis"),
}
"""What every installation with tests has."""
FILES = sorted((ROOT / "tests").rglob("*.py"))


def imported(statement: ast.stmt, package: str = "") -> Iterator[str]:
    """Modules that a statement imports, and what may be modules. Relative names need the `package` of the file."""
    if isinstance(statement, ast.Import):
        yield from (name.name for name in statement.names)
    elif isinstance(statement, ast.ImportFrom) and (package or not statement.level):
        above = package.split(".")[: 1 - statement.level or None] if statement.level else []
        module = ".".join([*above, *([statement.module] if statement.module else [])])
        yield module
        yield from (f"{module}.{name.name}" for name in statement.names)


def asked_for(statement: ast.stmt) -> str | None:
    """The package of `pytest.importorskip("package")`."""
    value = getattr(statement, "value", None)
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "pytest.importorskip"):
        return None
    return ast.literal_eval(value.args[0])


@functools.cache
def statements(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


def packages_of(statement: ast.stmt) -> set[str]:
    """Packages that not everybody has and that a statement imports, by way of our own modules too."""
    return set().union(*map(packages_behind, imported(statement)))


@functools.cache
def packages_behind(name: str) -> set[str]:
    """Packages that not everybody has and that the import of a module, or of what may be one, imports."""
    found: set[str] = set()
    seen: set[str] = set()
    left = [name]
    while left:
        module = left.pop()
        top = module.split(".")[0]
        if top not in OURS:
            found |= {top} - REQUIRED - sys.stdlib_module_names
        elif module not in seen:
            seen.add(module)
            left += imports_of(module)
    return found


@functools.cache
def imports_of(module: str) -> list[str]:
    """What a module of ours imports when it is imported."""
    return [
        name
        for file in files_of(module)
        for part in statements(file)
        for name in imported(part, ".".join(file.relative_to(ROOT).parent.parts))
    ]


def files_of(module: str) -> list[Path]:
    place = ROOT.joinpath(*module.split("."))
    return [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]


def not_asked_for(path: Path) -> set[str]:
    """Packages that a test file imports without having asked for them."""
    found: set[str] = set()
    asked: set[str | None] = set()
    for statement in statements(path):
        asked.add(asked_for(statement))
        found |= packages_of(statement) - asked
    return found


def test_test_files_ask_for_optional_packages_before_they_import_them():
    found = {str(path.relative_to(ROOT)): packages for path in FILES if (packages := not_asked_for(path))}
    assert found == {}, "pytest.importorskip is to come before these"


def test_packages_are_found_by_way_of_our_own_modules():
    statement = ast.parse("from paceline.pool.envpool_engine import Binding").body[0]
    assert packages_of(statement) == {"envpool"}


CHECKED_BEFORE = {
    "envs/atari.py": "resolve, by _roms",
    "envs/dmc_state.py": "envs/dmc_tasks.py",
    "envs/dmc_tasks.py": "the import before it, in the same function",
    "envs/doom_battle.py": "doom_engine.package",
    "envs/doom_bots.py": "doom_engine.package",
    "envs/doom_engine.py": "package, in the same file",
    "envs/envpool.py": "registry.load",
    "envs/gym.py": "a quiet look for MuJoCo, before the environment is made",
    "envs/habitat.py": "_missing, in the same file",
    "evaluation/video.py": "check_path, in the same file",
    "export.py": "onnxruntime is looked for first",
    "accel/lstm_scan_triton.py": "Triton comes with CUDA's PyTorch",
    "sims/control/hand/hand.py": "sims/control/family.py",
    "sims/control/hand/tasks.py": "the same",
    "sims/control/mujoco_env.py": "the same",
    "sims/control/parkour/bodies.py": "sims/control/parkour/family.py",
    "sims/control/parkour/boxes.py": "the same",
    "sims/control/parkour/task.py": "the same",
    "sims/navigation/rendering/render_triton.py": "Triton comes with CUDA's PyTorch",
    "sims/navigation/scenes/geodesic_triton.py": "the same",
    "sims/rearrangement/dynamics/camera.py": "sims/rearrangement/dynamics/family.py",
    "sims/rearrangement/dynamics/house.py": "the same",
    "sims/rearrangement/dynamics/model.py": "the same",
    "sims/rearrangement/dynamics/suction.py": "the same",
    "sims/rearrangement/physics/contact_triton.py": "Triton comes with CUDA's PyTorch",
    "sims/rearrangement/rendering/render_triton.py": "the same",
    "sims/rearrangement/robot/arm_triton.py": "the same",
}
"""Files that import a package without an error of their own, and who has asked for it before."""


def guarded(tree: ast.Module) -> set[ast.stmt]:
    """The imports under `with needs(...)`, or in a `try` that has an answer to an ImportError."""
    found: set[ast.stmt] = set()
    for node in ast.walk(tree):
        answers = isinstance(node, ast.Try) and any("Error" in ast.unparse(h.type) for h in node.handlers if h.type)
        needs = isinstance(node, ast.With) and any("needs(" in ast.unparse(item) for item in node.items)
        if answers or needs:
            found |= {inner for part in node.body for inner in ast.walk(part) if isinstance(inner, ast.stmt)}
    return found


def test_every_import_of_an_optional_package_is_answered_by_its_extra():
    for path in sorted((ROOT / "paceline").rglob("*.py")):
        tree, found = ast.parse(path.read_text()), {}
        for statement in ast.walk(tree):
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                continue
            tops = {name.split(".")[0] for name in imported(statement)} - {*OURS, *REQUIRED, *sys.stdlib_module_names}
            tops = {top for top in tops if isinstance(statement, ast.Import) or statement.module.startswith(top)}
            if tops:
                found[statement] = tops
        unanswered = [found[statement] for statement in found.keys() - guarded(tree)] if found else []
        assert not unanswered or str(path.relative_to(ROOT / "paceline")) in CHECKED_BEFORE, f"{path}: {unanswered}"


def test_extras_of_packages_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRA_OF.values()) <= extras.keys()


@pytest.mark.parametrize(
    ("error", "extra"),
    [
        (
            ModuleNotFoundError("No module named 'pygame.display'", name="pygame.display"),
            "video",
        ),
        (
            DependencyNotInstalled("pygame is not installed, run `pip install gymnasium`"),
            "video",
        ),
        (DependencyNotInstalled("MuJoCo is not installed"), "mujoco"),
        (ModuleNotFoundError("No module named 'ray_tools'", name="ray_tools"), ""),
        (DependencyNotInstalled("Box2D is not installed"), ""),
    ],
)
def test_the_hint_names_the_extra_of_the_missing_package(error, extra):
    assert extra_hint(error) == (f"; pip install 'paceline[{extra}]'" if extra else "")


class Dark(Corridor):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium declares it
    render_mode = "rgb_array"

    def render(self):
        raise DependencyNotInstalled("pygame is not installed")


def needs_pygame(tmp_path):
    (tmp_path / "painted.py").write_text("import pygame\n")
    resolve(f"{tmp_path}/painted.py:Env")


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("pygame", "video", needs_pygame),
        ("ale_py", "atari", lambda tmp_path: resolve("gym:ale_py:ALE/Pong-v5")),
        ("onnx", "onnx", lambda tmp_path: write_onnx(SimpleNamespace(), tmp_path / "policy.onnx")),
        ("wandb", "wandb", lambda tmp_path: MetricsWriter(tmp_path, wandb_project="mine")),
        ("pygame", "video", lambda tmp_path: video.open_camera("tests.test_optional_packages:Dark", seed=0)),
    ],
)
def test_a_missing_package_is_named_with_its_extra_where_it_is_used(tmp_path, monkeypatch, package, extra, use):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"pip install 'paceline\[{extra}\]'") as caught:
        use(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_package_that_a_benchmark_imports_late_is_named(monkeypatch):
    def run(quick):
        raise ModuleNotFoundError("No module named 'envpool'", name="envpool")

    monkeypatch.setattr(bench, "available", lambda: {"mine": ""})
    monkeypatch.setattr(bench.importlib, "import_module", lambda name: SimpleNamespace(run=run))
    monkeypatch.setattr(bench, "_home", lambda: ("", "benchmarks"))
    with pytest.raises(MissingExtra, match=r"paceline\[envpool\]"):
        bench.run_benchmark("mine", quick=True, json_path=None)
