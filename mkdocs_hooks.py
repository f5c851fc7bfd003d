"""Hooks of the documentation site. Pages link to files as GitHub sees them; the site has no files outside of docs/.

Pages of the repository's root become pages of the site. Results of benchmarks are copied to it. A link to any other
file or folder becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
PROJECT_PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
"""Pages of the root, and where the site has them."""
RESULTS = "benchmarks/results"
LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root and the results of benchmarks."""
    for name, place in PROJECT_PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / name)))
    for path in sorted((ROOT / RESULTS).glob("*.json")):
        files.append(File.generated(config, f"{RESULTS}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the places of the site."""
    here = PurePosixPath(page.file.src_uri)
    sources = {place: name for name, place in PROJECT_PAGES.items()}
    in_repository = PurePosixPath(sources[str(here)]) if str(here) in sources else "docs" / here

    def moved(link: re.Match[str]) -> str:
        if "://" in link["target"]:
            return link[0]
        target = os.path.normpath(in_repository.parent / link["target"])
        place = PROJECT_PAGES.get(target, target.removeprefix("docs/"))
        if not target.startswith("docs/") and files.get_file_from_path(place) is None:
            return link["text"]
        return f"[{link['text']}]({os.path.relpath(place, here.parent)}{link['anchor'] or ''})"

    return LINK.sub(moved, markdown)
