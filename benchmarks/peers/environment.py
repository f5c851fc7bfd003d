"""Python environments of peers that need other versions of packages than Paceline. They are created once, in
~/.cache/paceline/peers or under $XDG_CACHE_HOME."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ..cells import CellError, last_line

HERE = Path(__file__).parent
VERSIONS = "import sys, importlib.metadata as m; print(', '.join(f'{name} {m.version(name)}' for name in sys.argv[1:]))"


def environments_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "paceline" / "peers"


def python_of(peer: str, *, make: bool = True) -> Path:
    """The Python of a peer's environment, which has the packages that `PEER.txt` in this folder pins.

    The environment is created if it does not exist or if the pins have changed, which takes minutes. Without `make`
    that is a `CellError`, as is a failure to create it.
    """
    pins = HERE / f"{peer}.txt"
    folder = environments_folder() / peer.replace("_", "-")
    python, made = folder / "bin" / "python", folder / "pins.txt"
    if made.is_file() and made.read_text() == pins.read_text():
        return python
    if not make:
        raise CellError(f"its environment, {folder}, does not exist yet; the benchmark without --quick creates it")
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    install = [str(python), "-m", "pip", "install", "--quiet"]
    _run([*install, "--constraint", str(pins), "torch"])  # first, so that no other package chooses the build
    _run([*install, "--requirement", str(pins)])
    shutil.copyfile(pins, made)
    return python


def versions_in(python: Path, packages: tuple[str, ...]) -> str:
    """Names and versions of packages in another environment."""
    return _run([str(python), "-c", VERSIONS, *packages]).strip()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CellError(f"{' '.join(command)} failed: {last_line(done.stderr)}\n{done.stderr}")
    return done.stdout
