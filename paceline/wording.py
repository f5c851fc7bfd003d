"""Words of messages that depend on a number."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun. `many` is the plural, by default with an s.

    >>> counted(1, "scene"), counted(2, "scene"), counted(2000, "match", "matches")
    ('1 scene', '2 scenes', '2,000 matches')
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
