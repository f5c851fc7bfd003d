"""Environment ids: `family:name?option=value&option=value`, or `package.module:function` for the user's own."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from paceline.errors import UsageError


@dataclass(frozen=True)
class EnvId:
    """A parsed id. The module of its `family` interprets `name` and `options`."""

    family: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> EnvId:
        """Parse an id. Whether family, name and options exist is checked later.

        >>> EnvId.parse("doom:my_way_home?frameskip=2&resolution=160x120")
        EnvId(family='doom', name='my_way_home', options={'frameskip': 2, 'resolution': '160x120'})
        """
        address, _, query = text.partition("?")
        family, colon, name = address.partition(":")
        if not family or (colon and not name and not query and family != "synthetic"):
            raise UsageError(f"environment id {text!r} is not of the form family:name?option=value")
        options: dict[str, Any] = {}
        for option in query.split("&") if query else []:
            key, equals, value = option.partition("=")
            if not key or not equals:
                raise UsageError(f"options {query!r} of {text!r} are not of the form option=value&option=value")
            if key in options:
                raise UsageError(f"option {key!r} is twice in {text!r}; allowed: once")
            options[unquote(key)] = _literal(unquote(value))
        return cls(family, name, options)

    def __str__(self) -> str:
        query = "&".join(f"{key}={_text(value)}" for key, value in self.options.items())
        address = f"{self.family}:{self.name}" if self.name else self.family
        return address + (f"?{query}" if query else "")


def _text(value: Any) -> str:
    """As `parse` reads it."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, str) and _literal(value) != value:
        text = repr(value)
    return text.replace("%", "%25").replace("&", "%26")


def _literal(text: str) -> Any:
    """The value of a Python literal, or the text itself. "true" and "false" may have any case."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
