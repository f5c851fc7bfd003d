"""The HTML of a report: one page that contains its style and its images, without scripts.

Functions take plain text and escape it. Only `body`, `figures`, `frames` and table cells are HTML made by other
functions of this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

INK, MUTED, GRID, BLUE = "#1e293b", "#64748b", "#e2e8f0", "#2563eb"
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
GAP = '<div style="height: 1.6rem"></div>'
"""Space between a table and figures."""
VARIABLES = f"color-scheme: light; --ink: {INK}; --muted: {MUTED}; --grid: {GRID}; --blue: {BLUE}; --fonts: {FONTS}"


@dataclass(frozen=True)
class Tile:
    """A key figure at the top of the page."""

    name: str
    value: str
    note: str = ""
    is_main: bool = False


@dataclass(frozen=True)
class ReportPart:
    """What a simulator adds at the top of a report."""

    tiles: list[Tile]
    sections: list[str]
    """HTML made by `section`."""


def page(*, title: str, kind: str, about: str, body: str, footer: str) -> str:
    css = Path(__file__).with_name("report.css").read_text()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>:root {{ {VARIABLES}; }}\n{css}</style>\n</head>\n<body>\n"
        f'<header><div><p class="kind">{escape(kind)}</p><h1>{escape(title)}</h1>'
        f'<p class="about">{escape(about)}</p></div></header>\n'
        f"<main>\n{body}\n</main>\n<footer>{escape(footer)}</footer>\n</body>\n</html>\n"
    )


def section(name: str, heading: str, lead: str, *body: str) -> str:
    shown = paragraph(lead) if lead else ""
    return f'<section id="{escape(name)}"><h2>{escape(heading)}</h2>{shown}\n' + "\n".join(body) + "</section>\n"


def tiles(shown: Iterable[Tile]) -> str:
    parts = [
        f'<div class="tile{" main" if tile.is_main else ""}"><div class="name">{escape(tile.name)}</div>'
        f'<div class="value">{escape(tile.value)}</div><div class="note">{escape(tile.note)}</div></div>'
        for tile in shown
    ]
    return '<div class="tiles">' + "".join(parts) + "</div>\n"


def grid(figures: Iterable[str], cell: str = "24rem") -> str:
    """Figures side by side, as many as fit with a width of `cell`."""
    return f'<div class="grid" style="--cell: {cell}">' + "\n".join(figures) + "</div>"


def figure(uri: str, alt: str, *, heading: str = "", caption: str = "", strong: str = "", pixels: bool = False) -> str:
    """An image. `alt` describes it in words; `strong` is the bold start of the caption."""
    above = f"<h3>{escape(heading)}</h3>" if heading else ""
    begin = f"<strong>{escape(strong)}</strong> " if strong else ""
    below = f"<figcaption>{begin}{escape(caption)}</figcaption>" if caption or strong else ""
    kind = ' class="pixels"' if pixels else ""
    return f'<figure>{above}<img{kind} src="{uri}" alt="{escape(alt)}">{below}</figure>'


def film(frames: Sequence[str]) -> str:
    return f'<div class="film" style="--frames: {len(frames)}">' + "".join(frames) + "</div>"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str) -> str:
    return f'<p class="lead">{escape(text)}</p>'


def legend(colors: Mapping[str, str]) -> str:
    """A colour key: name to CSS colour."""
    parts = [
        f'<span><span class="key" style="background: {color}"></span>{escape(name)}</span>'
        for name, color in colors.items()
    ]
    return '<div class="legend">' + "".join(parts) + "</div>"


def facts(pairs: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items()) + "</dl>"


def cell(text: str, note: str = "", share: float | None = None) -> str:
    """The inside of a table cell: text, a smaller note, and a bar as long as `share` of the cell."""
    small = f" <small>{escape(note)}</small>" if note else ""
    bar = f'<span class="bar"><span style="width: {100 * share:.1f}%"></span></span>' if share is not None else ""
    return f"{escape(text)}{small}{bar}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], main: int | None = None) -> str:
    """A table with cells made by `cell`; row number `main` is highlighted."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = [
        f'<tr class="{"main" if index == main else ""}">' + "".join(f"<td>{part}</td>" for part in row) + "</tr>"
        for index, row in enumerate(rows)
    ]
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def config_table(values: Mapping[str, str], changed: Iterable[str]) -> str:
    """A configuration, folded at first; the settings in `changed` are highlighted."""
    marked = set(changed)
    rows = "".join(
        f'<tr class="{"changed" if name in marked else ""}"><td>{escape(name)}</td><td>{escape(value)}</td></tr>'
        for name, value in values.items()
    )
    return (
        f"<details><summary>All {len(values)} settings</summary>"
        f'<div class="scroll"><table class="config"><tbody>{rows}</tbody></table></div></details>'
    )
