"""The README as the package's description. The project has no public address, so links to its files become text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?://)[^)]*\)\n+(?:\*[^*]+\*\n+)?")
"""A picture, and its caption in italics."""
LINK = re.compile(r"\[([^\]]*)\]\((?!https?://)[^)]*\)")


class Readme(MetadataHookInterface):
    """Sets `project.readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text()
        text = LINK.sub(r"\1", PICTURE.sub("", text))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
