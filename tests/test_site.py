"""The documentation as a site (`make docs`): it builds without a warning and without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    offline = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | offline, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return folder


def test_links_out_of_the_documentation_have_a_place_in_the_site(site):
    runs = (site / "runs.html").read_text()
    assert 'href="project/security.html"' in runs and (site / "project" / "security.html").exists()
    throughput = (site / "benchmarks" / "throughput.html").read_text()
    assert 'href="results/throughput.json"' in throughput
    assert (site / "benchmarks" / "results" / "throughput.json").exists()


def test_reference_has_the_public_names_with_their_documentation(site):
    from paceline import API

    text = (site / "api.html").read_text()
    ids = set(re.findall(r'id="paceline\.[\w.]*?(\w+)"', text))
    assert set(API) <= ids
    assert "Train a policy, and return when it is trained." in text and "Passes over each rollout." in text


def test_pages_load_nothing_from_elsewhere(site):
    """The site works in a closed network."""
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?://", re.IGNORECASE)
    pages = {str(page.relative_to(site)): page.read_text() for page in site.rglob("*.html")}
    assert len(pages) > 40
    assert [name for name, text in pages.items() if loaded.search(text)] == []
