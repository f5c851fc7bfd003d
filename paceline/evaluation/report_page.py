"""The HTML of a report: one page with its style in it, without scripts and without anything to load.

All functions take plain text and escape it; those that take `body` take HTML made by the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from paceline.evaluation.charts import BLUE, FONTS, GRID, INK, MUTED

CSS = f"""
:root {{ color-scheme: light; }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: #f1f5f9; color: {INK}; font: 16px/1.5 {FONTS}; }}
header {{ background: #0f172a; color: #e2e8f0; padding-block: 2.4rem 2.2rem; }}
header > div, main, footer {{ max-width: 72rem; margin-inline: auto; padding-inline: 1.25rem; }}
header .kind {{ color: #93c5fd; font-size: .85rem; letter-spacing: .06em; text-transform: uppercase; margin-block: 0 .3rem; }}
h1 {{ font-size: clamp(1.5rem, 4vw, 2.2rem); line-height: 1.2; margin-block: 0 .6rem; overflow-wrap: anywhere; }}
header .about {{ color: #cbd5e1; margin-block: 0; max-width: 60rem; }}
main {{ padding-block: 1.25rem; }}
section {{ background: #fff; border: 1px solid {GRID}; border-radius: .8rem; padding: 1.4rem 1.5rem 1.5rem; margin-bottom: 1.25rem; }}
h2 {{ font-size: 1.25rem; margin: 0 0 .9rem; }}
h2:has(+ .lead) {{ margin-bottom: .3rem; }}
h3 {{ font-size: 1rem; margin: 0 0 .4rem; font-weight: 600; }}
.lead {{ color: {MUTED}; margin: 0 0 1.1rem; max-width: 50rem; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .9rem; margin-bottom: 1.25rem; }}
.tile {{ background: #fff; border: 1px solid {GRID}; border-radius: .8rem; padding: .9rem 1.1rem; }}
.tile .name {{ color: {MUTED}; font-size: .85rem; }}
.tile .value {{ font-size: 1.7rem; line-height: 1.25; font-weight: 650; font-variant-numeric: tabular-nums; }}
.tile .note {{ color: {MUTED}; font-size: .82rem; }}
.tile.main {{ background: {BLUE}; border-color: {BLUE}; color: #fff; }}
.tile.main .name, .tile.main .note {{ color: #dbeafe; }}
.grid {{ display: grid; gap: 1.5rem 1.75rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, var(--cell)), 1fr)); }}
.grid + .grid {{ margin-top: 1.5rem; }}
figure {{ margin: 0; min-width: 0; }}
figure img {{ display: block; width: 100%; height: auto; border-radius: .3rem; }}
figcaption {{ color: {MUTED}; font-size: .88rem; margin-top: .35rem; }}
figcaption strong {{ color: {INK}; }}
.film {{ display: grid; grid-template-columns: repeat(var(--frames), minmax(5.5rem, 1fr)); gap: .35rem; overflow-x: auto; margin-bottom: .6rem; padding-bottom: .2rem; }}
.film img, .pixels {{ image-rendering: pixelated; }}
.film figcaption {{ text-align: center; font-size: .78rem; margin-top: .15rem; }}
.moving {{ max-width: 42rem; margin: 1.2rem auto 0; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .93rem; }}
th {{ text-align: left; color: {MUTED}; font-weight: 500; font-size: .85rem; }}
th, td {{ padding: .4rem .8rem .4rem 0; border-bottom: 1px solid {GRID}; vertical-align: middle; }}
tr:last-child > * {{ border-bottom: 0; }}
tr.main td {{ font-weight: 650; }}
td small {{ color: {MUTED}; font-weight: 400; white-space: nowrap; }}
.bar {{ display: block; height: .3rem; border-radius: .15rem; background: {GRID}; margin-top: .2rem; min-width: 5rem; }}
.bar span {{ display: block; height: 100%; border-radius: inherit; background: #94a3b8; }}
tr.main .bar span {{ background: {BLUE}; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: 0; font-size: .93rem; }}
dt {{ color: {MUTED}; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
details {{ margin-top: 1.1rem; }}
details[open] summary {{ margin-bottom: .5rem; }}
summary {{ cursor: pointer; color: {BLUE}; font-weight: 500; }}
.config td {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace; font-size: .83rem; padding: .22rem .5rem; overflow-wrap: anywhere; }}
.config tr.changed td {{ background: #eff6ff; }}
.key {{ display: inline-block; width: .8em; height: .8em; border-radius: .15em; margin-right: .35em; vertical-align: -.05em; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; color: {MUTED}; font-size: .88rem; margin: -.4rem 0 1rem; }}
footer {{ color: {MUTED}; font-size: .85rem; padding-bottom: 2rem; }}
@media (max-width: 46rem) {{ section {{ padding: 1.1rem 1rem; }} }}
@media print {{ body {{ background: #fff; }} section {{ break-inside: avoid; }} }}
"""


@dataclass(frozen=True)
class Tile:
    """One number that matters."""

    name: str
    value: str
    note: str = ""
    is_main: bool = False


def page(*, title: str, kind: str, about: str, body: str, footer: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f'<header><div><p class="kind">{escape(kind)}</p><h1>{escape(title)}</h1><p class="about">{escape(about)}</p></div></header>\n'
        f"<main>\n{body}\n</main>\n<footer>{escape(footer)}</footer>\n</body>\n</html>\n"
    )


def section(name: str, heading: str, lead: str, *body: str) -> str:
    shown = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section id="{escape(name)}"><h2>{escape(heading)}</h2>{shown}\n' + "\n".join(body) + "</section>\n"


def tiles(shown: Iterable[Tile]) -> str:
    parts = [
        f'<div class="tile{" main" if tile.is_main else ""}"><div class="name">{escape(tile.name)}</div>'
        f'<div class="value">{escape(tile.value)}</div><div class="note">{escape(tile.note)}</div></div>'
        for tile in shown
    ]
    return '<div class="tiles">' + "".join(parts) + "</div>\n"


def grid(figures: Iterable[str], cell: str = "24rem") -> str:
    """Figures beside each other, as many as the width allows at `cell` each."""
    return f'<div class="grid" style="--cell: {cell}">' + "\n".join(figures) + "</div>"


def figure(uri: str, alt: str, *, heading: str = "", caption: str = "", strong: str = "", pixels: bool = False) -> str:
    """A picture; `alt` says what it shows to those who do not see it. `strong` begins the caption."""
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


def legend(entries: Mapping[str, str]) -> str:
    """Names and their colours."""
    parts = [
        f'<span><span class="key" style="background: {color}"></span>{escape(name)}</span>'
        for name, color in entries.items()
    ]
    return '<div class="legend">' + "".join(parts) + "</div>"


def facts(pairs: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items()) + "</dl>"


def cell(text: str, note: str = "", share: float | None = None) -> str:
    """The inside of a table's cell: a text, something smaller after it, and a bar of that share of the width."""
    small = f" <small>{escape(note)}</small>" if note else ""
    bar = f'<span class="bar"><span style="width: {100 * share:.1f}%"></span></span>' if share is not None else ""
    return f"{escape(text)}{small}{bar}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], main: int | None = None) -> str:
    """`rows` are of cells made by `cell`; row number `main` is set apart."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = [
        f'<tr class="{"main" if index == main else ""}">' + "".join(f"<td>{part}</td>" for part in row) + "</tr>"
        for index, row in enumerate(rows)
    ]
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def config_table(values: Mapping[str, str], changed: Iterable[str]) -> str:
    """A configuration to unfold; what is `changed` is set apart."""
    marked = set(changed)
    rows = "".join(
        f'<tr class="{"changed" if name in marked else ""}"><td>{escape(name)}</td><td>{escape(value)}</td></tr>'
        for name, value in values.items()
    )
    return (
        f"<details><summary>All {len(values)} settings</summary>"
        f'<div class="scroll"><table class="config"><tbody>{rows}</tbody></table></div></details>'
    )
