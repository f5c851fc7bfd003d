"""Closing simulators: one that fails to close must not keep the others from it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger(__name__)


def close_all(made: Iterable[Any]) -> None:
    """Close simulators. Failures are logged."""
    for one in made:
        if not hasattr(one, "close"):
            continue
        try:
            one.close()
        except (Exception, SystemExit) as error:
            log.warning("%s could not be closed: %s: %s", type(one).__name__, type(error).__name__, error)
