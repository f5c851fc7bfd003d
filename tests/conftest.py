"""What all tests share."""

from __future__ import annotations

import os
import subprocess

import pytest


@pytest.fixture(scope="session", autouse=True)
def secret_of_the_tests(tmp_path_factory):
    """Runs are signed with a secret of the tests' own, and the user's is not touched."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("xdg_config"))


@pytest.fixture
def tiny_disk(tmp_path):
    """A folder on a disk of 300 KB."""
    folder = tmp_path / "tiny_disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
